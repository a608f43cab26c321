"""The paper's figures from any runs: functions from records to charts (plain values that draw themselves).

Every function takes RunRecords (or run folders) and gives a `Chart`; one without its data comes out empty, with a
sentence that says what is lacking. The paper's own numbers stand in the rows, each with its source, never in the bars.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from specfit.metrics import Decomposition, copy_ms, decompose, measure
from specfit.records import RunRecord
from specfit.report import alike
from workbench.charts import Chart, Panel, Series
from workbench.paper_place import BESIDE, OURS, place_of, pressure_rows, throughput_rows
from workbench.pool_figures import path_outcomes, predicted_and_measured, reliability, union_by_size
from workbench.run_table import (
    by_workload,
    cache_of,
    colour_of,
    methods_of,
    name_among,
    rule_of,
    runs_of,
    slots_of,
    timing_notes,
    workload_of,
)
from workbench.theme import COLUMN_IN, LIGHT, PAGE_IN, STAGE_COLOURS, method_words

__all__ = [
    "all_charts",
    "cache_pressure",
    "decode_throughput",
    "equation_8",
    "figure_4a",
    "figure_4b",
    "path_outcomes",
    "predicted_and_measured",
    "reliability",
    "stage_times",
    "union_by_size",
]

FIXED_COLOUR = "#2f9e6e"  # dark enough for a line on white, and lighter in grey than the two beside it
PRESSURE = {
    "decode_tps": "decode tokens per second",
    "cycle_ms": "ms per cycle",
    "h2d_per_token": "copies per token",
}


def decode_throughput(runs: Iterable[Any]) -> list[Chart]:
    """Figures 2 and 3: decode tokens per second by method, with and without an expert cache; a chart a workload."""
    return [_throughput(workload, group) for workload, group in by_workload(runs_of(runs)).items()]


def _throughput(workload: str, runs: Sequence[RunRecord]) -> Chart:
    caches = [cache_of(run) for run in sorted(runs, key=slots_of, reverse=True)]
    caches = list(dict.fromkeys(caches))
    found = {(run.method, cache_of(run)): measure(run) for run in runs}
    series = []
    rows: list[Mapping[str, Any]] = []
    for method in methods_of(runs):
        values = [found.get((method, cache)) for cache in caches]
        rates = tuple(None if metrics is None else metrics.decode_tps for metrics in values)
        labels = tuple("" if rate is None else _three_digits(rate) for rate in rates)
        series.append(
            Series(method_words(method), tuple(caches), rates, colour_of(method, runs), "bars", labels=labels)
        )
        rows += [
            {"source": OURS, "workload": workload, "cache": cache, "method": method, "decode_tps": rate}
            for cache, rate in zip(caches, rates, strict=True)
        ]
    panel = Panel("expert cache", "decode tokens per second", tuple(series))
    place, notes = place_of(runs[0]), timing_notes(runs)
    name, title = "throughput", f"Decode throughput, {workload}"
    if place is not None:
        rows += throughput_rows(place)
        notes += (f"The paper's {place.setting} is among the numbers. {BESIDE}",)
        if place.figure:
            name, title = f"figure_{place.figure}_throughput", f"Figure {place.figure}. {title}"
    wide = COLUMN_IN if len(caches) * len(series) <= 9 else PAGE_IN
    return Chart(name, title, (panel,), tuple(rows), notes, wide, about=workload)


def _three_digits(rate: float) -> str:
    return f"{rate:.{2 if rate < 10 else 1 if rate < 100 else 0}f}"


def cache_pressure(runs: Iterable[Any]) -> Chart:
    """Figure 4 in one: throughput, time per cycle and copies per token by expert slots a layer."""
    return _pressure(runs_of(runs), tuple(PRESSURE), "cache_pressure", "Cache pressure", PAGE_IN)


def figure_4a(runs: Iterable[Any]) -> Chart:
    """Figure 4a: decode throughput by expert slots a layer."""
    title = f"Figure 4a. Decode throughput by cache size, {', '.join(by_workload(runs_of(runs)))}"
    return _pressure(runs_of(runs), ("decode_tps",), "figure_4a_throughput_by_slots", title, COLUMN_IN)


def figure_4b(runs: Iterable[Any]) -> Chart:
    """Figure 4b: time per cycle and copies per token by expert slots a layer."""
    title = f"Figure 4b. Time per cycle and copies per token, {', '.join(by_workload(runs_of(runs)))}"
    return _pressure(runs_of(runs), ("cycle_ms", "h2d_per_token"), "figure_4b_time_and_copies", title, PAGE_IN)


def _pressure(records: list[RunRecord], keys: Sequence[str], name: str, title: str, width: float) -> Chart:
    caches = {cache_of(run): _slots_said(run) for run in sorted(records, key=slots_of, reverse=True)}
    places = tuple(cache.removesuffix(" slots") for cache in caches)
    groups = by_workload(records)
    found = {(workload_of(run), run.method, cache_of(run)): measure(run) for run in records}
    rows: list[Mapping[str, Any]] = [
        {
            "source": OURS,
            "workload": workload,
            "slots": caches[cache],
            "method": method,
            **{key: getattr(metrics, key) for key in keys},
        }
        for (workload, method, cache), metrics in found.items()
    ]
    panels = []
    for key in keys:
        series = []
        for workload, group in groups.items():
            for method in methods_of(group):
                measured = [found.get((workload, method, cache)) for cache in caches]
                points = tuple(None if metrics is None else getattr(metrics, key) for metrics in measured)
                words = method_words(method) if len(groups) == 1 else f"{method_words(method)}, {workload}"
                series.append(Series(words, places, points, colour_of(method, records), "line"))
        panels.append(Panel("expert slots per layer", PRESSURE[key], tuple(series)))
    notes = timing_notes(records)
    if len(caches) < 2:
        notes += ("Only one cache size is among these runs; give runs with several to see the trend.",)
    if any((place := place_of(run)) is not None and place.figure == 2 for run in records):
        rows += [{key: row[key] for key in ("source", "workload", "slots", "method", *keys)} for row in pressure_rows()]
        notes += (f"The paper's Figure 4 is among the numbers. {BESIDE}",)
    return Chart(name, title, tuple(panels), tuple(rows), notes, width, 2.0, about=", ".join(groups))


def _slots_said(run: RunRecord) -> int | None:
    """Expert slots a layer, 0 for a cleared cache; None where the run does not say."""
    return slots_of(run) if run.settings.get("cleared") or run.settings.get("slots_per_layer") is not None else None


def equation_8(runs: Iterable[Any], *, transfer_ms: float | None = None) -> Chart:
    """Equation 8: SpecFit's gain over EAGLE-3 as the mean of two, per fixed time and per copy, by cache size.

    transfer_ms: tau, the time one expert's copy adds; as `specfit.metrics.copy_ms` finds it in each pair, unless given.
    """
    records = runs_of(runs)
    labels, found, notes = [], [], list(timing_notes(records))
    pairs = [
        (run, other)
        for run in records
        for other in records
        if rule_of(run) == "specfit" and rule_of(other) == "eagle3" and alike(run, other)
    ]
    for run, other in sorted(pairs, key=lambda pair: (workload_of(pair[0]), -slots_of(pair[0]))):
        tau, how = copy_ms([run, other]) if transfer_ms is None else (transfer_ms, "given")
        label = name_among(run, [one for one, _ in pairs]).removeprefix(f"{method_words('specfit')}, ")
        if tau is None:
            parts = Decomposition(None, None, None, None, f"what a copy takes is not known, because {how}")
        else:
            notes.append(f"{label}: tau {tau:.3f} ms, {how}.")
            parts = decompose(run, other, transfer_ms=tau)
        if parts.reason is not None:
            notes.append(f"{label}: {parts.reason}.")
        labels.append(label)
        found.append((parts, tau, run))
    if not pairs:
        notes.append("Equation 8 compares a SpecFit and an EAGLE-3 run with the same questions and cache.")
    rows = tuple(
        {
            "workload": workload_of(run),
            "cache": cache_of(run),
            "tau_ms": tau,
            "fixed_ratio": parts.fixed_ratio,
            "transfer_ratio": parts.transfer_ratio,
            "weight": parts.weight,
            "ratio": parts.ratio,
        }
        for parts, tau, run in found
    )
    parts_drawn = (("fixed_ratio", "tokens per fixed ms", FIXED_COLOUR),
                   ("transfer_ratio", "tokens per copy", LIGHT["rejected"]),
                   ("ratio", "both: throughput", LIGHT["hit"]))  # fmt: skip
    series = tuple(
        Series(words, tuple(labels), tuple(getattr(parts, key) for parts, _, _ in found), colour, "line")
        for key, words, colour in parts_drawn
    )
    weights = Series("w", tuple(labels), tuple(parts.weight for parts, _, _ in found), LIGHT["muted"], "bars")
    panels = (
        Panel("expert cache", "SpecFit over EAGLE-3", series, from_zero=False, level=1.0),
        Panel("expert cache", "w: copies' share of time", (weights,)),
    )
    about = ", ".join(by_workload(records))
    title = f"Equation 8. The gain over EAGLE-3, per fixed time and per copy, {about}"
    return Chart("equation_8_decomposition", title, panels, rows, tuple(notes), PAGE_IN, about=about)


def stage_times(runs: Iterable[Any]) -> Chart:
    """Where a cycle's time goes: mean milliseconds of draft, select, verify and commit, stacked."""
    groups = by_workload(runs_of(runs)).values()  # the cleared cache last, as in the other figures
    records = [run for group in groups for run in sorted(group, key=lambda run: -slots_of(run))]
    names = tuple(name_among(run, records) for run in records)
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
    wide, high = (COLUMN_IN, 2.2) if len(records) <= 4 else (PAGE_IN, 2.2 if len(records) <= 8 else 2.8)
    about = ", ".join(by_workload(records))
    title = f"Time per cycle by stage, {about}"
    return Chart("stage_times", title, panels, rows, timing_notes(records), wide, high, about)


def all_charts(runs: Iterable[Any], *, transfer_ms: float | None = None) -> list[Chart]:
    """Every chart of these runs, those without data included (their notes say what is lacking)."""
    records = runs_of(runs)
    charts = decode_throughput(records)
    for group in by_workload(records).values():
        charts += [figure_4a(group), figure_4b(group), equation_8(group, transfer_ms=transfer_ms), stage_times(group)]
    makers: list[Callable[..., Chart]] = [reliability, predicted_and_measured, union_by_size]
    return [*charts, *(make(records) for make in makers)]
