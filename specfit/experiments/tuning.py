"""Methods that must know something beforehand, worked out on a recorded world of prompts that are kept for tuning.

    methods = ["specfit", "size-only", "lambda-offline", "lambda-online"]
    tuning = "calibration"       # shipped, of the embedded pair; or a file of `specfit record`, relative to this one

"size-only" takes every tree of k nodes to need E[F | k] experts, the world's mean; "lambda-offline" pays the price of
time that is best over the world's cycles. "lambda-online" estimates that price on the way and needs no tuning.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from specfit.ablations import offline_price
from specfit.experiments.asked import Experiment
from specfit.experiments.toml_values import ExperimentError
from specfit.methods import EAGLE3, SPECFIT, Method, with_max_nodes
from specfit.objective import CostModel, CycleState, Selection
from specfit.run_reading import differences
from specfit.select import PenalizedPolicy, SizeOnlyPolicy, mean_unions
from specfit.world import SHIPPED, World, WorldError, check_same_models


def _untuned(state: CycleState, cost: CostModel) -> Selection:
    raise AssertionError("a method is planned before it is tuned, and decodes only afterwards")


TUNED: dict[str, Callable[[int], Method]] = {  # of K; `tuned` gives them their policies
    "size-only": lambda most: replace(with_max_nodes(EAGLE3, most), name="size-only", policy=_untuned),
    "lambda-offline": lambda most: replace(with_max_nodes(SPECFIT, most), name="lambda-offline", policy=_untuned),
}


def tuned(method: Method, world: World, cost: CostModel) -> tuple[Method, dict[str, Any]]:
    """A method of `TUNED` with its policy, and what it knows, for the run's settings.

    Raises ValueError where the world's pools are too small to say anything about trees of that many nodes.
    """
    most = method.max_nodes
    if method.name == "size-only":
        unions = mean_unions(world.states(), most)
        return replace(method, policy=SizeOnlyPolicy(unions)), {"tuned": {"unions": list(unions)}}
    price = float(f"{offline_price(world, cost, max_nodes=most):.12g}")  # the same on every machine
    return replace(method, policy=PenalizedPolicy(price, most)), {"tuned": {"price_per_ms": price}}


def tuning_file(asked: Experiment, base: Path) -> str | None:
    """The file of the world on which the methods are tuned that need it; the embedded pair's own unless one is given.

    asked: an experiment whose parts are checked; its `tuning` is as the file gives it, relative to `base`.
    Raises ExperimentError where one is missing, serves no method, is no world, was recorded with another target,
    drafter or draft, or has pools that are too small for a method.
    """
    methods = [name for name in asked.methods if name in TUNED]
    if not methods:
        if asked.tuning is not None:
            raise ExperimentError(
                f"tuning is given, but methods has none of {', '.join(TUNED)}, which alone are tuned; leave it out"
            )
        return None
    if asked.tuning is None and asked.target != "embedded":
        raise ExperimentError(
            f"tuning is missing: method {methods[0]!r} is tuned on a world of other prompts; record one with this "
            "target (`specfit record`), or take lambda-online, which needs none"
        )
    name = asked.tuning or "calibration"
    path = SHIPPED.get(name) or (base / Path(name).expanduser()).resolve()
    if not path.is_file():
        raise ExperimentError(
            f"tuning: there is no file {path}; record one with `specfit record`, or name one that ships with the "
            f"package for the embedded target: {', '.join(SHIPPED)}"
        )
    world = World.load(path)
    try:
        check_same_models(world, asked.target, asked.drafter or "embedded")
    except WorldError as error:
        raise ExperimentError(f"tuning: {name} does not fit: {error}") from None
    from specfit.engine.drafter import DraftConfig  # here: it loads torch

    changes = differences(world.made_with.get("draft"), asdict(DraftConfig(**asked.draft)), "draft")
    if changes:
        raise ExperimentError(
            f"tuning: {name} was recorded with another draft ({'; '.join(changes)}); record prompts with this one"
        )
    most = max((len(position.pool) for prompt in world.prompts for position in prompt.positions), default=0)
    if most == 0:
        raise ExperimentError(f"tuning: {name} holds no decode cycle; record prompts with longer answers")
    if "size-only" in methods and asked.max_nodes > most:
        raise ExperimentError(
            f"max_nodes is {asked.max_nodes}, and the largest pool of tuning ({name}) has {most} nodes, which says "
            f"nothing to size-only of larger trees; set max_nodes to {most} or less, or leave size-only out"
        )
    return str(path)
