"""`specfit inspect`: what a drafter's checkpoint was read as; with its target, whether another reading fits better."""

from __future__ import annotations

import argparse
from typing import Any

from specfit.commands import options as add_options
from specfit.commands.setup import set_threads
from specfit.demo import bar, calibration_workload
from specfit.report import printable


def add(commands: Any) -> None:
    inspect = commands.add_parser(
        "inspect", help="what a drafter was read as; with --target, whether it fits", allow_abbrev=False
    )
    inspect.add_argument("drafter", help="embedded, an EAGLE-3 checkpoint folder, or a hub id")
    inspect.add_argument("--target", help="embedded, a checkpoint folder, or a hub id: count what it accepts")
    inspect.add_argument(
        "--slots", type=add_options.slots, metavar="N|SHARE", help="expert slots per layer (all that fit)"
    )
    inspect.add_argument("--max-new-tokens", type=add_options.positive, metavar="N", help="of an answer (40)")
    inspect.add_argument("--device", help="cpu, cuda, ... (CUDA if there is one)")
    inspect.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], help="float32 on a CPU, else as stored")
    add_options.threads(inspect)
    inspect.set_defaults(command=_inspect)


def _inspect(options: argparse.Namespace) -> None:
    from specfit.engine.engine import load_engine  # here: they load torch
    from specfit.engine.inspect_drafter import inspect_drafter, probe_drafter, probe_prompts

    set_threads(options)
    if options.target is None:
        of_an_engine = ["--slots", "--max-new-tokens", "--device", "--dtype"]
        add_options.refuse_given(options, of_an_engine, "without --target nothing is decoded")
        _print(str(inspect_drafter(options.drafter)))
        return
    with load_engine(
        options.target, slots_per_layer=options.slots, device=options.device, dtype=options.dtype, self_test=False
    ) as engine:
        if options.target == "embedded":
            prompts = [engine.encode(question.turns[0]) for question in calibration_workload(1).questions]
        else:
            prompts = probe_prompts(engine)
        with bar("readings", 8) as step:
            report, found = probe_drafter(
                engine, options.drafter, prompts, max_new_tokens=options.max_new_tokens or 40, progress=step
            )
        left_out = "".join(
            f"\nof the target not used: {kind}, {count} tensors" for kind, count in engine.left_out.items()
        )
    _print(f"{report}{left_out}\n{found}")


def _print(text: str) -> None:
    """Names and values of a config.json are data: their control characters are shown as escapes."""
    print("\n".join(printable(line) for line in text.split("\n")))
