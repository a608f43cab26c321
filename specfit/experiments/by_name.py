"""Methods and route sources by the names an experiment file gives them. Only here: elsewhere both are values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from specfit.experiments.toml_values import ExperimentError
from specfit.experiments.tuning import TUNED
from specfit.methods import AR, EAGLE3, SPECFIT, Method, with_max_nodes
from specfit.runs import ROUTE_SOURCES, RouteChoice
from specfit.select import ChainPolicy, MinUnionPolicy, OnlinePricePolicy, OptTreeStop, PrefixPolicy

PLAIN: dict[str, Callable[[int], Method]] = {  # of K
    AR.name: lambda most: AR,
    EAGLE3.name: lambda most: with_max_nodes(EAGLE3, most),
    SPECFIT.name: lambda most: with_max_nodes(SPECFIT, most),
    "full-pool": lambda most: replace(with_max_nodes(SPECFIT, most), name="full-pool", adaptive_depth=False),
    "opt-tree": lambda most: replace(
        with_max_nodes(EAGLE3, most), name="opt-tree", adaptive_depth=True, stop=OptTreeStop(most)
    ),
    "lambda-online": lambda most: replace(
        with_max_nodes(SPECFIT, most), name="lambda-online", policy=OnlinePricePolicy(most)
    ),
    **TUNED,
}
SIZED: dict[str, Callable[[str, int], Method]] = {  # of the name and a number of nodes, at most K
    "chain": lambda name, size: Method(name, policy=ChainPolicy(size), max_nodes=size, uses_routes=False),
    "prefix": lambda name, size: Method(name, policy=PrefixPolicy(size), max_nodes=size, uses_routes=False),
    "min-union": lambda name, size: Method(name, policy=MinUnionPolicy(size), max_nodes=size),
}
TRAINED = ("head", "prior")  # route sources that a trained predictor's file makes
METHOD_NAMES = ", ".join([*PLAIN, *(f"{name}:NODES" for name in SIZED)])
ROUTE_NAMES = ", ".join([*ROUTE_SOURCES, "noisy:SHARE (as noisy:0.6)"])


def method_named(name: str, max_nodes: int) -> Method:
    """The method of this name with K = max_nodes; ExperimentError for an unknown one, or a size beyond K."""
    if name in PLAIN:
        return PLAIN[name](max_nodes)
    kind, _, size = name.partition(":")
    if kind not in SIZED or not (size.isascii() and size.isdigit()):
        raise ExperimentError(f"there is no method {name!r}; choose from {METHOD_NAMES}")
    if not 1 <= int(size) <= max_nodes:
        raise ExperimentError(f"method {name!r} verifies {size} nodes; expected 1 to max_nodes, which is {max_nodes}")
    return SIZED[kind](f"{kind}:{int(size)}", int(size))


def route_choice(name: str, seed: int, head: str | None = None) -> RouteChoice:
    """The route source that a file calls by this name; ExperimentError for an unknown one.

    head: a file of `specfit train-routes`, for "head" and "prior"; the embedded pair's own unless given.
    """
    source, _, share = name.partition(":")
    if source == "noisy":
        try:
            accuracy = float(share)
        except ValueError:
            accuracy = -1.0
        if 0 <= accuracy < 1:
            return RouteChoice(accuracy=accuracy, seed=seed)
    elif name in ROUTE_SOURCES:
        trained = None
        if head is not None and name in TRAINED:
            from specfit.engine.route_head import RouteHead  # here: it loads torch

            trained = RouteHead.load(head)
        return RouteChoice(source=name, seed=seed, head=trained)
    raise ExperimentError(f"there is no route source {name!r}; choose from {ROUTE_NAMES}")
