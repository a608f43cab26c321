"""`specfit check-lossless`: is every method's greedy text the library's, in this dtype and on this machine?"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from specfit.commands import options as add_options
from specfit.commands.setup import make_engine, make_workload, set_threads
from specfit.methods import AR, EAGLE3, SPECFIT, with_max_nodes
from specfit.objective import CostModel
from specfit.prompts import token_text
from specfit.report import printable
from specfit.runs import prompts_of

if TYPE_CHECKING:
    from specfit.engine.engine import Engine
    from specfit.engine.near_ties import Comparison

ANY_COST = CostModel.affine(1.0, 0.1, expert_ms=0.01)  # which nodes are verified cannot change the text


def add(commands: Any) -> None:
    check = commands.add_parser(
        "check-lossless", help="compare every method's greedy text with the library's", allow_abbrev=False
    )
    add_options.questions(check)
    add_options.configuration(check)
    check.add_argument(
        "--reference",
        choices=["library", "engine"],
        default="library",
        help="the library's own model, whole in memory; or, where that does not fit, this engine's AR (library)",
    )
    check.set_defaults(command=_check)


def _check(options: argparse.Namespace) -> None:
    workload = make_workload(options)
    set_threads(options)
    limit = options.max_new_tokens or 128
    with make_engine(options) as engine:
        from specfit.engine.near_ties import check_lossless, engine_reference, library_reference
        from specfit.engine.route_sources import LastTokenRoutes

        prompts = [prompt.ids for prompt in prompts_of(engine, workload, raw=options.raw)]
        library = options.reference == "library"
        methods = [AR] if library else []
        if engine.drafter is not None:
            methods += [with_max_nodes(method, options.max_nodes) for method in (EAGLE3, SPECFIT)]
        if not methods:
            raise ValueError("without a drafter there is only AR to check, against --reference library")
        found = check_lossless(
            engine,
            prompts,
            library_reference(engine) if library else engine_reference(engine),
            methods=methods,
            cost=ANY_COST,
            routes=LastTokenRoutes(engine),
            max_new_tokens=limit,
        )
        dtype = engine.settings["dtype"]
        what = "the library's own model" if library else "this engine's AR"
        print(f"reference: {what}, {dtype}; {len(prompts)} prompts, up to {limit} tokens each")
        for method in methods:
            _print_method(engine, method.name, [one for one in found if one.method == method.name])
    wrong = [one for one in found if one.difference is not None and not one.difference.near_tie]
    if wrong:
        raise ValueError(f"{len(wrong)} of {len(found)} texts leave the reference by more than a near-tie in {dtype}")


def _print_method(engine: Engine, name: str, found: Sequence[Comparison]) -> None:
    equal = sum(one.difference is None for one in found)
    print(f"{name}: {equal} of {len(found)} texts equal, {sum(one.tokens for one in found)} tokens before a difference")
    for one in found:
        if (at := one.difference) is not None:
            words = [repr(token_text(engine.tokenizer, token)) for token in (at.found, at.expected)]
            kind = "near-tie" if at.near_tie else "NOT A NEAR-TIE"
            line = f"prompt {one.prompt}, token {at.position}: {words[0]} for {words[1]}, {at.gap:.3g} below"
            print(printable(f"  {line} ({at.ulps:.1f} ulps; top-2 gap {at.top_2_gap:.3g}): {kind}"))
