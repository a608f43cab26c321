"""Rules side by side on one recorded world: the ablations of SpecFit's choice, and any rule of your own, in one table.

Everything is replayed on the same prompts with the same cache, coefficients and modelled clock, so rows differ by the
rule alone; each is compared with EAGLE-3 by a paired bootstrap over prompts. What a rule needs to know beforehand (the
coefficients, E[F | k], lambda*) is worked out on another world, of prompts kept for tuning.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from specfit.bootstrap import PairedRatio, paired_speedup
from specfit.calibrate import CYCLES, DROPPED
from specfit.fit import Fit, Probe, fit_consecutive
from specfit.methods import AR, EAGLE3, SPECFIT, Method, Policy, with_max_nodes
from specfit.metrics import RunMetrics, measure
from specfit.modelled import ModelledClock
from specfit.objective import CostModel, CycleState, Selection, evaluate
from specfit.records import RunRecord
from specfit.replay import fresh_method, replay
from specfit.select import (
    ChainPolicy,
    ExactPolicy,
    MinUnionPolicy,
    OnlinePricePolicy,
    OptTreeStop,
    PenalizedPolicy,
    PrefixPolicy,
    SizeOnlyPolicy,
    mean_unions,
    min_union_tree,
    prefix_tree,
)
from specfit.tree import DraftPool
from specfit.world import World


@dataclass(frozen=True, slots=True)
class Rule:
    """A row to be: a method, and how good the routes are that it reads."""

    method: Method
    accuracy: float = 1.0  # of a simulated predictor (Section 4.6); 1 reads the true routes


@dataclass(frozen=True, slots=True)
class Compared:
    """A rule's replay, what it measured, and its decode throughput over the baseline's."""

    name: str
    run: RunRecord  # times are modelled
    metrics: RunMetrics
    ratio: PairedRatio


def compare(
    world: World,
    rules: Mapping[str, Rule | Method | Policy],
    cost: CostModel,
    slots: int | None,
    clock: ModelledClock,
    *,
    cleared: bool = False,
    baseline: Method | None = None,
    seed: int = 0,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Compared]:
    """Replay every rule, in the order given, and compare it with the baseline. `progress` hears the finished rules.

    baseline: EAGLE-3 with trees as large as the cost's intercepts reach, unless given.
    Raises ValueError for no rules, and what `replay` raises.
    """
    if not rules:
        raise ValueError("there are no rules to compare; give at least one as {name: rule}")
    again = partial(replay, world, cost=cost, slots=slots, clock=clock, cleared=cleared, seed=seed)
    base = again(with_max_nodes(EAGLE3, cost.max_nodes) if baseline is None else baseline)
    rows = []
    for done, (name, rule) in enumerate(rules.items(), start=1):
        given = rule if isinstance(rule, Rule) else Rule(fresh_method(rule, cost))
        method = replace(given.method, name=name)
        run = again(method, accuracy=given.accuracy)
        rows.append(Compared(name, run, measure(run), paired_speedup(run, base, seed=seed)))
        progress(done)
    return rows


def comparison_table(rows: Sequence[Compared]) -> str:
    """The rows as text of at most 100 columns; throughputs are modelled."""
    width = max(len(row.name) for row in rows)
    heading = ("TPS", "over EAGLE-3, 95 % interval", "nodes", "levels", "committed", "demand", "H2D/token", "hits")
    sizes = (7, 28, 6, 7, 10, 7, 10, 6)
    lines = [" " * width + "".join(f"{text:>{size}}" for text, size in zip(heading, sizes, strict=True))]
    for row in rows:
        m = row.metrics
        cells = (
            _number(m.decode_tps, ".1f"),
            str(row.ratio),
            _number(m.draft_nodes, ".2f"),
            _number(m.drafted_levels, ".2f"),
            _number(m.committed, ".2f"),
            _number(m.demand, ".1f"),
            _number(m.h2d_per_token, ".2f"),
            _number(m.hit_rate, ".0%"),
        )
        lines.append(f"{row.name:<{width}}" + "".join(f"{c:>{size}}" for c, size in zip(cells, sizes, strict=True)))
    return "\n".join(lines)


def ablations(tuning: World, cost: CostModel, *, max_nodes: int = 7) -> dict[str, Rule]:
    """The rules of the comparison, what they need to know taken from the tuning world.

    Adaptive depth is on for the rules that weigh routes, as in SpecFit, and for OPT-Tree, which has a stop of its own;
    the others verify a part of the whole pool, as EAGLE-3 does.
    """
    adaptive = replace(SPECFIT, policy=ExactPolicy(max_nodes), max_nodes=max_nodes)
    prefix, size_only = PrefixPolicy(max_nodes), SizeOnlyPolicy(mean_unions(tuning.states(), max_nodes))
    price = offline_price(tuning, cost, max_nodes=max_nodes)
    rules = {
        "AR": Rule(AR),
        f"EAGLE-3, {max_nodes} nodes": Rule(_blind(prefix, max_nodes)),
    }
    sizes = [size for size in (2, 4) if size <= max_nodes]
    for size in sizes:
        rules[f"chain of {size}"] = Rule(_blind(ChainPolicy(size), max_nodes))
    for size in sizes:
        rules[f"most probable {size}"] = Rule(_blind(PrefixPolicy(size), max_nodes))
    smallest = min(4, max_nodes)
    rules |= {
        "OPT-Tree's stop": Rule(replace(_blind(prefix, max_nodes), adaptive_depth=True, stop=OptTreeStop(max_nodes))),
        "size-only cost": Rule(_blind(size_only, max_nodes)),
        f"minimum union of {smallest}": Rule(Method("", policy=MinUnionPolicy(smallest), max_nodes=max_nodes)),
        "SpecFit, full pool": Rule(replace(adaptive, adaptive_depth=False)),
        "SpecFit, oracle routes": Rule(adaptive),
        "SpecFit, 60 % routes": Rule(adaptive, accuracy=0.6),
        "lambda*, offline": Rule(replace(adaptive, policy=PenalizedPolicy(price, max_nodes))),
        "lambda*, online": Rule(replace(adaptive, policy=OnlinePricePolicy(max_nodes))),
    }
    return rules


def offline_price(tuning: World, cost: CostModel, *, max_nodes: int = 7) -> float:
    """lambda* over the cycles of SpecFit's replay of the tuning world, in tokens per millisecond.

    What is chosen follows from the coefficients alone, so no cache and no clock come into it.
    """
    from specfit.theory.throughput import lambda_star  # here: specfit.theory loads the solvers

    method = replace(SPECFIT, policy=ExactPolicy(max_nodes), max_nodes=max_nodes)
    cycles = [cycle for _, cycle in replay(tuning, method, cost).cycles()]
    states = [CycleState(cycle.pool, cycle.truth.routes) for cycle in cycles if cycle.truth is not None]
    return float(lambda_star(states, cost, max_nodes=max_nodes))


def fit_cost(
    tuning: World,
    slots: int | None,
    clock: ModelledClock,
    *,
    cleared: bool = False,
    max_nodes: int = 7,
    cycles: int = CYCLES,
    seed: int = 0,
) -> Fit:
    """Coefficients for a described machine: the consecutive protocol of `specfit.calibrate`, replayed.

    Trees of random size and kind at random depths, over the tuning world's cycles with their hits and misses.
    Raises ValueError where the world has too few cycles to fit.
    """
    rng = random.Random(seed)
    deepest = max(pool.levels for pool in (p.pool for prompt in tuning.prompts for p in prompt.positions))

    def random_tree(state: CycleState, cost: CostModel) -> Selection:
        size = min(rng.randint(0, max_nodes), len(state.pool))
        return evaluate(state, rng.choice((prefix_tree, min_union_tree))(state, size), cost)

    def random_depth(pool: DraftPool, selection: Selection) -> bool:
        return rng.random() * (deepest - pool.levels + 1) < 1  # every depth up to the deepest is as likely

    method = Method("fit", policy=random_tree, adaptive_depth=True, max_nodes=max_nodes, stop=random_depth)
    free = CostModel((0.0,) * (max_nodes + 1), 0.0)
    run = replay(tuning, method, free, slots, clock, cleared=cleared)
    probes = [
        Probe(len(cycle.selection.nodes), cycle.pool.levels, cycle.selection.union, cycle.times.total_ms)
        for _, cycle in islice(run.cycles(), DROPPED, DROPPED + cycles)
    ]
    return fit_consecutive(probes, max_nodes)


def _blind(policy: Policy, max_nodes: int) -> Method:
    """A method whose rule reads no routes."""
    return Method("", policy=policy, max_nodes=max_nodes, uses_routes=False)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
