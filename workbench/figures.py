"""The paper's figures from any runs: functions from records to charts (plain values that draw themselves).

Every function takes RunRecords (or run folders) and gives a `Chart`; one without its data comes out empty, with a
sentence that says what is lacking. The paper's own numbers stand in the rows where there are any, never in the bars.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from specfit.metrics import measure
from specfit.objective import CycleState
from specfit.records import CycleRecord, RunRecord
from specfit.routes import expert_union
from specfit.select import prefix_tree
from specfit.tree import ROOT
from workbench.charts import Chart, Panel, Series
from workbench.choices import known_routes
from workbench.run_facts import run_of
from workbench.run_table import by_workload, cache_of, workload_of
from workbench.theme import COLUMN_IN, PAGE_IN, STAGE_COLOURS, method_colour, method_words

POINTS = 3_000  # cycles drawn in a scatter; more are thinned evenly


def decode_throughput(runs: Iterable[Any]) -> list[Chart]:
    """Figures 2 and 3: decode tokens per second by method, with and without an expert cache; a chart a workload."""
    return [_throughput(workload, group) for workload, group in by_workload(_runs(runs)).items()]


def _throughput(workload: str, runs: Sequence[RunRecord]) -> Chart:
    caches = list(dict.fromkeys(cache_of(run) for run in runs))
    found = {(run.method, cache_of(run)): measure(run) for run in runs}
    series, rows = [], []
    for method in _methods(runs):
        values = [found.get((method, cache)) for cache in caches]
        rates = tuple(None if metrics is None else metrics.decode_tps for metrics in values)
        labels = tuple("" if rate is None else f"{rate:.2f}" if rate < 100 else f"{rate:.0f}" for rate in rates)
        series.append(Series(method_words(method), tuple(caches), rates, _colour(method, runs), "bars", labels=labels))
        rows += [
            {"workload": workload, "cache": cache, "method": method, "decode_tps": rate}
            for cache, rate in zip(caches, rates, strict=True)
        ]
    panel = Panel("expert cache", "decode tokens per second", tuple(series))
    return Chart("throughput", f"Decode throughput, {workload}", (panel,), tuple(rows), _timing_notes(runs))


def cache_pressure(runs: Iterable[Any]) -> Chart:
    """Figures 4a and 4b: throughput, time per cycle and copies per token by expert slots a layer."""
    records = _runs(runs)
    keys = (
        ("decode_tps", "decode tokens per second"),
        ("cycle_ms", "ms per cycle"),
        ("h2d_per_token", "copies per token"),
    )
    slots = sorted({_slots(run) for run in records}, reverse=True)
    rows = []
    for run in records:
        metrics = measure(run)
        values = {key: getattr(metrics, key) for key, _ in keys}
        rows.append({"workload": workload_of(run), "slots": _slots(run), "method": run.method, **values})
    panels = []
    for key, label in keys:
        series = []
        for method in _methods(records):
            by_slots = {row["slots"]: row[key] for row in rows if row["method"] == method}
            names = tuple("none" if count == 0 else str(count) for count in slots)
            points = tuple(by_slots.get(count) for count in slots)
            series.append(Series(method_words(method), names, points, _colour(method, records), "line"))
        panels.append(Panel("expert slots per layer", label, tuple(series)))
    notes = _timing_notes(records)
    if len(slots) < 2:
        notes += ("Only one cache size is among these runs; give runs with several to see the trend.",)
    return Chart("cache_pressure", "Cache pressure", tuple(panels), tuple(rows), notes, PAGE_IN, 2.0)


def stage_times(runs: Iterable[Any]) -> Chart:
    """Where a cycle's time goes: mean milliseconds of draft, select, verify and commit, stacked."""
    records = _runs(runs)
    names = tuple(_name(run, records) for run in records)
    metrics = [measure(run) for run in records]
    series = tuple(
        Series(stage, names, tuple(getattr(m, f"{stage}_ms") for m in metrics), colour, "stack")
        for stage, colour in STAGE_COLOURS.items()
    )
    rows = tuple(
        {"run": name, **{f"{stage}_ms": getattr(m, f"{stage}_ms") for stage in STAGE_COLOURS}}
        for name, m in zip(names, metrics, strict=True)
    )
    panels = (Panel("", "ms per cycle", series),)
    wide = COLUMN_IN if len(records) <= 4 else PAGE_IN
    return Chart("stage_times", "Time per cycle by stage", panels, rows, _timing_notes(records), wide)


def reliability(runs: Iterable[Any], *, bins: int = 10) -> Chart:
    """Reliability of path probabilities: how often a drafted path with probability p was the target's own.

    With an atlas over all drafted nodes; without one over verified nodes whose parent was accepted or the root, which
    the note says. Diagonal: perfectly calibrated.
    """
    records = _runs(runs)
    series, rows = [], []
    bare = False
    for method in _methods(_drafting(records)):
        cycles = [cycle for run in records if run.method == method for _, cycle in run.cycles()]
        pairs = [pair for cycle in cycles for pair in path_outcomes(cycle)]
        bare |= any(cycle.truth is None for cycle in cycles)
        if not pairs:
            continue
        probs, right = (np.array(column, float) for column in zip(*pairs, strict=True))
        place = np.minimum((probs * bins).astype(int), bins - 1)
        filled = [b for b in range(bins) if (place == b).any()]
        said = tuple(float(probs[place == b].mean()) for b in filled)
        seen = tuple(float(right[place == b].mean()) for b in filled)
        series.append(Series(method_words(method), said, seen, _colour(method, records), "line"))
        rows += [
            {"method": method, "path_probability": p, "share_right": s, "nodes": int((place == b).sum())}
            for p, s, b in zip(said, seen, filled, strict=True)
        ]
    notes: tuple[str, ...] = ()
    if bare:
        notes = ("Without an atlas only verified nodes are counted, so left-out nodes are missing.",)
    notes += () if rows else ("None of these runs drafted anything, so there are no path probabilities.",)
    panel = Panel("path probability", "share that the target takes", tuple(series), diagonal=True)
    return Chart("reliability", "Reliability of path probabilities", (panel,), tuple(rows), tuple(notes))


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
    records = _runs(runs)
    series, rows, lacking = [], [], []
    for method in _methods(records):
        mine = [run for run in records if run.method == method]
        points = [
            (_name(run, records), cycle.selection.predicted_ms, cycle.times.total_ms - cycle.times.select_ms)
            for run in mine
            for _, cycle in run.cycles()
            if cycle.selection.predicted_ms
        ]
        if not points:
            lacking.append(method_words(method))
            continue
        _, said, took = zip(*points[:: -(-len(points) // POINTS)], strict=True)
        series.append(Series(method_words(method), said, took, _colour(method, records), "points"))
        rows += [{"run": name, "predicted_ms": p, "measured_ms": m} for name, p, m in points]
    notes = (*_timing_notes(records), *(f"{name} predicted no times." for name in lacking))
    panel = Panel("predicted ms per cycle", "measured ms", tuple(series), diagonal=True)
    return Chart("predicted_measured", "Predicted and measured cycle time", (panel,), tuple(rows), notes)


def union_by_size(runs: Iterable[Any], *, most: int = 7) -> Chart:
    """Experts that a tree of the k most probable nodes needs, k = 0.., beside what strangers would need.

    Means over cycles whose record holds routes of the whole pool. The reference line is the expected union if every
    token drew its experts at random; real tokens share more.
    """
    records = _runs(runs)
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
        series.append(Series(f"pools of {method_words(method)}", sizes, means, _colour(method, records), "line"))
        rows += [
            {"method": method, "nodes": k, "union": u, "cycles": len(unions)} for k, u in zip(sizes, means, strict=True)
        ]
    if chance:
        means = tuple(float(value) for value in np.mean(chance, axis=0))
        series.append(Series("independent tokens", sizes, means, "#8c8c8c", "line", dash=True))
        rows += [{"method": "independent", "nodes": k, "union": u} for k, u in zip(sizes, means, strict=True)]
    notes = (
        () if rows else (f"No cycle here has routes of a whole pool of at least {most} nodes (an atlas gives them).",)
    )
    panel = Panel("draft nodes verified", "experts executed, F(S)", tuple(series))
    return Chart("union_by_size", "Experts by tree size", (panel,), tuple(rows), notes)


def all_charts(runs: Iterable[Any]) -> list[Chart]:
    """Every chart of these runs, those without data included (their notes say what is lacking)."""
    records = _runs(runs)
    makers: list[Callable[..., Chart]] = [
        cache_pressure,
        stage_times,
        reliability,
        predicted_and_measured,
        union_by_size,
    ]
    return [*decode_throughput(records), *(make(records) for make in makers)]


# -- what they share ---------------------------------------------------------------------------------------------------


def _runs(runs: Any) -> list[RunRecord]:
    if isinstance(runs, RunRecord | str) or not isinstance(runs, Iterable):
        runs = [runs]
    found = [run_of(run) for run in runs]
    if not found:
        raise ValueError("figures are made of runs, and none is given")
    return found


def _drafting(runs: Sequence[RunRecord]) -> list[RunRecord]:
    return [run for run in runs if any(len(cycle.pool) for _, cycle in run.cycles())]


def _methods(runs: Sequence[RunRecord]) -> list[str]:
    """The methods in the paper's order, others behind in the order of the runs."""
    order = {"ar": 0, "eagle3": 1, "specfit": 2}
    return sorted(dict.fromkeys(run.method for run in runs), key=lambda method: order.get(method, 3))


def _colour(method: str, runs: Sequence[RunRecord]) -> str:
    return method_colour(method, tuple(m for m in _methods(runs) if m not in ("ar", "eagle3", "specfit")))


def _slots(run: RunRecord) -> int:
    return 0 if run.settings.get("cleared") else int(run.settings.get("slots_per_layer") or 0)


def _name(run: RunRecord, runs: Sequence[RunRecord]) -> str:
    """The method, and what tells this run from the others of its method."""
    parts = [method_words(run.method)]
    for tell in (workload_of, cache_of):
        if len({tell(other) for other in runs}) > 1:
            parts.append(tell(run))
    return ", ".join(parts)


def _timing_notes(runs: Sequence[RunRecord]) -> tuple[str, ...]:
    kinds = {
        str((run.settings.get("link") or {}).get("kind")) for run in runs if isinstance(run.settings.get("link"), dict)
    }
    notes = []
    if "emulated" in kinds:
        notes.append("Emulated link: copies wait for the deadlines of a described host-to-device link.")
    if "modelled" in kinds:
        notes.append("Modelled times: computed from counts for a described machine, not measured.")
    if not all(run.complete for run in runs):
        notes.append("A run here is not complete; its finished requests are drawn.")
    for run in runs:
        if not run.cycles():
            notes.append(f"{_name(run, runs)} has no decode cycle, so nothing of it can be drawn.")
    return tuple(notes)
