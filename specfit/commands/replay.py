"""`specfit replay`: the ablation table of a recorded world, without a model."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from specfit.ablations import ablations, compare, comparison_table, fit_cost
from specfit.commands import options as add_options
from specfit.demo import bar
from specfit.methods import EAGLE3, with_max_nodes
from specfit.modelled import ModelledClock
from specfit.objective import CostModel
from specfit.report import printable
from specfit.world import SHIPPED, World, WorldError, check_same_models


def add(commands: Any) -> None:
    replay = commands.add_parser(
        "replay", help="compare SpecFit with its ablations on a recorded world, without a model", allow_abbrev=False
    )
    replay.add_argument("world", metavar="WORLD", help=f"a file of `specfit record`, or {', '.join(SHIPPED)} (shipped)")
    replay.add_argument(
        "--tuning", default="calibration", metavar="WORLD", help="where coefficients are fitted (calibration, shipped)"
    )
    replay.add_argument("--cost", type=Path, metavar="FILE", help="coefficients, instead of fitted ones")
    replay.add_argument("--slots", type=add_options.positive, help="expert slots per layer (all)")
    replay.add_argument("--cleared", action="store_true", help="clear the expert cache before every forward")
    replay.add_argument(
        "--forward-ms", type=add_options.milliseconds, default=9.0, help="modelled: fixed part of a forward (9)"
    )
    replay.add_argument("--level-ms", type=add_options.milliseconds, default=1.0, help="modelled: a drafted level (1)")
    replay.add_argument(
        "--expert-ms", type=add_options.milliseconds, default=0.06, help="modelled: an executed expert (0.06)"
    )
    replay.add_argument(
        "--miss-ms", type=add_options.milliseconds, default=0.3, help="modelled: an expert copied, on top (0.3)"
    )
    replay.add_argument("--max-nodes", type=add_options.positive, default=7, help="draft nodes at most, K (7)")
    add_options.seed(replay, "the bootstrap, and of noisy routes")
    replay.set_defaults(command=_replay)


def _replay(options: argparse.Namespace) -> None:
    clock = ModelledClock(options.forward_ms, options.level_ms, options.expert_ms, options.miss_ms)
    world, tuning = _open(options.world), _open(options.tuning)
    _check_pair(world, tuning)
    cost, notes = _cost(options, tuning, clock)
    rules = ablations(tuning, cost, max_nodes=options.max_nodes)
    with bar(f"replay {world.workload}", len(rules)) as step:
        how = {"cleared": options.cleared, "baseline": with_max_nodes(EAGLE3, options.max_nodes), "seed": options.seed}
        rows = compare(world, rules, cost, options.slots, clock, progress=step, **how)
    cache = "cache cleared before every forward" if options.cleared else f"{options.slots or world.experts} slots"
    print(f"{printable(world.workload)}, {len(world.prompts)} prompts, {cache}; times are modelled, not measured\n")
    print(comparison_table(rows))
    for note in notes:
        print(f"note on the fitted coefficients: {note}")


def _cost(options: argparse.Namespace, tuning: World, clock: ModelledClock) -> tuple[CostModel, tuple[str, ...]]:
    """The given coefficients, or those that fit the described machine on the tuning world, and what to distrust."""
    if options.cost is not None:
        return CostModel.load(options.cost), ()
    sizes = {"max_nodes": options.max_nodes, "seed": options.seed}
    fitted = fit_cost(tuning, options.slots, clock, cleared=options.cleared, **sizes)
    return fitted.cost, fitted.warnings


def _check_pair(world: World, tuning: World) -> None:
    """ValueError where the two are of different models."""
    target, drafter = (str(world.made_with.get(kind)) for kind in ("target", "drafter"))
    try:
        check_same_models(tuning, target, drafter)
    except WorldError as error:
        raise ValueError(f"--tuning does not fit the world: {error}") from None
    if world.layer_experts != tuning.layer_experts:
        raise ValueError(
            f"--tuning does not fit the world: its layers are {tuning.layers} x {tuning.experts} experts, the world's "
            f"{world.layers} x {world.experts}; record prompts with the same target"
        )


def _open(name: str) -> World:
    """A shipped world by its name, or a file."""
    return World.load(SHIPPED[name] if name in SHIPPED and not Path(name).exists() else name)
