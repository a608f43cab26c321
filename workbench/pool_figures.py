"""Figures of what the pools say: reliability of probabilities, experts by tree size, predicted against measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from specfit.objective import CycleState
from specfit.records import CycleRecord, RunRecord
from specfit.routes import expert_union
from specfit.select import prefix_tree
from specfit.tree import ROOT
from workbench.charts import Chart, Panel, Series
from workbench.choices import known_routes
from workbench.run_table import colour_of, methods_of, name_among, runs_of, timing_notes, workload_of
from workbench.theme import method_words

INTERVALS = "Upright lines: 95 % intervals, as if nodes were independent; few nodes make them long."
POINTS = 3_000  # cycles drawn in a scatter; more are thinned evenly


def reliability(runs: Iterable[Any], *, bins: int = 10) -> Chart:
    """Reliability of path probabilities: how often a drafted path with probability p was the target's own.

    With an atlas over all drafted nodes; without one over verified nodes whose parent was accepted or the root, which
    the note says. Diagonal: perfectly calibrated. Upright lines: 95 % intervals.
    """
    records = runs_of(runs)
    series, rows = [], []
    bare = False
    for method in methods_of(_drafting(records)):
        mine = [run for run in records if run.method == method]
        pairs = _once(mine)
        bare |= any(cycle.truth is None for run in mine for _, cycle in run.cycles())
        if not pairs:
            continue
        probs, right = (np.array(column, float) for column in zip(*pairs, strict=True))
        place = np.minimum((probs * bins).astype(int), bins - 1)
        filled = [b for b in range(bins) if (place == b).any()]
        said = tuple(float(probs[place == b].mean()) for b in filled)
        seen = tuple(float(right[place == b].mean()) for b in filled)
        counts = [int((place == b).sum()) for b in filled]
        spread = tuple(wilson(share, count) for share, count in zip(seen, counts, strict=True))
        colour = colour_of(method, records)
        series.append(Series(method_words(method), said, seen, colour, "line", spread=spread))
        rows += [
            {"method": method, "path_probability": p, "share_right": s, "low": low, "high": high, "nodes": count}
            for p, s, (low, high), count in zip(said, seen, spread, counts, strict=True)
        ]
    notes: tuple[str, ...] = (INTERVALS,) if rows else ()
    if bare:
        notes += ("Without an atlas only verified nodes are counted, so left-out nodes are missing.",)
    notes += () if rows else ("None of these runs drafted anything, so there are no path probabilities.",)
    panel = Panel("path probability", "share that the target takes", tuple(series), diagonal=True)
    return Chart("reliability", "Reliability of path probabilities", (panel,), tuple(rows), tuple(notes))


def wilson(share: float, count: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's interval of a share of `count` independent trials, 95 % for the given z."""
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    reach = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    return max(0.0, min(share, middle - reach)), min(1.0, max(share, middle + reach))


def path_outcomes(cycle: CycleRecord) -> list[tuple[float, bool]]:
    """(path probability, whether the whole path is the target's own) of every node of which the record can tell."""
    pool = cycle.pool
    right: dict[int, bool] = {ROOT: True}
    if cycle.truth is not None:
        after = cycle.truth.next_tokens
        for node, parent in enumerate(pool.parents):
            right[node] = right[parent] and after[1 + parent] == pool.tokens[node]
        return [(pool.path_probs[node], right[node]) for node in range(len(pool))]
    accepted = set(cycle.accepted)
    return [(pool.path_probs[node], node in accepted) for node in cycle.selection.nodes]


def predicted_and_measured(runs: Iterable[Any]) -> Chart:
    """Predicted against measured cycle time, the selector's own apart, a point a cycle."""
    records = runs_of(runs)
    series, rows, lacking = [], [], []
    for method in methods_of(records):
        mine = [run for run in records if run.method == method]
        points = [
            (name_among(run, records), cycle.selection.predicted_ms, cycle.times.total_ms - cycle.times.select_ms)
            for run in mine
            for _, cycle in run.cycles()
            if cycle.selection.predicted_ms
        ]
        if not points:
            lacking.append(method_words(method))
            continue
        _, said, took = zip(*points[:: -(-len(points) // POINTS)], strict=True)
        series.append(Series(method_words(method), said, took, colour_of(method, records), "points"))
        rows += [{"run": name, "predicted_ms": p, "measured_ms": m} for name, p, m in points]
    notes = (*timing_notes(records), *(f"{name} predicted no times." for name in lacking))
    panel = Panel("predicted ms per cycle", "measured ms per cycle", tuple(series), diagonal=True)
    return Chart("predicted_measured", "Predicted and measured cycle time", (panel,), tuple(rows), notes)


def union_by_size(runs: Iterable[Any], *, most: int = 7) -> Chart:
    """Experts that a tree of the k most probable nodes needs, k = 0.., beside what strangers would need.

    Means over cycles whose record holds routes of the whole pool. The reference line is the expected union if every
    token drew its experts at random; real tokens share more.
    """
    records = runs_of(runs)
    series, rows = [], []
    by_method: dict[str, list[list[int]]] = {}
    chance: list[list[float]] = []
    for run in records:
        for _, cycle in run.cycles():
            routes = known_routes(cycle, range(len(cycle.pool)), true=True)
            if routes is None or len(cycle.pool) < most:
                continue
            state = CycleState(cycle.pool, routes)
            by_method.setdefault(run.method, []).append(
                [expert_union(routes, prefix_tree(state, size)) for size in range(most + 1)]
            )
            share = routes.root.bit_count() / (routes.layers * routes.experts)
            whole = routes.layers * routes.experts
            chance.append([whole * (1 - (1 - share) ** (size + 1)) for size in range(most + 1)])
    sizes = tuple(range(most + 1))
    for method, unions in by_method.items():
        means = tuple(float(value) for value in np.mean(unions, axis=0))
        series.append(Series(f"pools of {method_words(method)}", sizes, means, colour_of(method, records), "line"))
        rows += [
            {"method": method, "nodes": k, "union": u, "cycles": len(unions)} for k, u in zip(sizes, means, strict=True)
        ]
    if chance:
        means = tuple(float(value) for value in np.mean(chance, axis=0))
        series.append(Series("random routing", sizes, means, "#8c8c8c", "line", dash=True))
        rows += [{"method": "random routing", "nodes": k, "union": u} for k, u in zip(sizes, means, strict=True)]
    notes = (
        () if rows else (f"No cycle here has routes of a whole pool of at least {most} nodes (an atlas gives them).",)
    )
    panel = Panel("draft nodes verified", "experts executed, F(S)", tuple(series))
    return Chart("union_by_size", "Experts by tree size", (panel,), tuple(rows), notes)


def _once(runs: Iterable[RunRecord]) -> list[tuple[float, bool]]:
    """`path_outcomes` of the runs, each path at each place once: another cache, or a draft that stopped elsewhere, is
    no further evidence. Sorted, so that the order of the runs changes no digit."""
    found: dict[Any, tuple[float, bool]] = {}
    for run in runs:
        for request, cycle in run.cycles():
            place, pool = (workload_of(run), request.request_id, cycle.prefix_length), cycle.pool
            told = range(len(pool)) if cycle.truth is not None else cycle.selection.nodes
            for node, outcome in zip(told, path_outcomes(cycle), strict=True):
                path = (*place, tuple(pool.tokens[step] for step in pool.path(node)))
                found[path] = max(outcome, found.get(path, outcome))
    return sorted(found.values())


def _drafting(runs: Sequence[RunRecord]) -> list[RunRecord]:
    return [run for run in runs if any(len(cycle.pool) for _, cycle in run.cycles())]
