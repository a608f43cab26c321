"""Charts and tables as values: what they say is what the metrics say, and what is lacking is said."""

import json
from dataclasses import asdict, replace

import pytest

from specfit.calibrate import Calibration
from specfit.fit import Probe, fit_consecutive
from specfit.methods import AR, EAGLE3, SPECFIT
from specfit.metrics import copy_ms, decompose, measure
from specfit.run_folder import save_run
from tests.toys import TOY_COST, ToyWorld, toy_decoding, toy_request, toy_run
from workbench import figures
from workbench.calibration_figures import residuals
from workbench.charts import looks
from workbench.cycle_view import CycleView
from workbench.frontier import frontier_chart, frontier_data, marked_choices
from workbench.paper_place import PLACES, place_of, table_rows
from workbench.pool_figures import wilson
from workbench.tables import run_tables, theory_table


def with_cost(run, **settings):
    return replace(run, settings={**run.settings, "cost": asdict(TOY_COST), **settings})


RUNS = [with_cost(toy_run(method, slots=slots)) for slots in (8, 4) for method in (AR, EAGLE3, SPECFIT)]


def test_bars_are_the_measured_throughput():
    (chart,) = figures.decode_throughput(RUNS)
    bars = {(s.name, cache): value for s in chart.panels[0].series for cache, value in zip(s.x, s.y, strict=True)}
    assert bars["SpecFit", "4 slots"] == measure(RUNS[5]).decode_tps
    assert bars["AR", "8 slots"] == measure(RUNS[0]).decode_tps
    assert len(chart.rows) == 6


def test_one_throughput_chart_a_workload():
    other = with_cost(toy_run(AR), workload="other")
    assert [chart.title for chart in figures.decode_throughput([*RUNS, other])] == [
        "Decode throughput, toy",
        "Decode throughput, other",
    ]


def test_cache_pressure_orders_slots_and_puts_the_cleared_cache_last():
    cleared = with_cost(toy_run(SPECFIT), cleared=True)
    chart = figures.cache_pressure([*RUNS, cleared])
    assert chart.panels[0].series[2].x == ("8", "4", "cleared")
    assert "several" in " ".join(figures.cache_pressure(RUNS[:3]).notes)
    silent = replace(RUNS[5], settings={k: v for k, v in RUNS[5].settings.items() if k != "slots_per_layer"})
    for runs in ([*RUNS, cleared, silent], [silent, cleared, *RUNS]):  # a cache of which nothing is known is its own
        chart = figures.cache_pressure(runs)
        (specfit,) = (series for series in chart.panels[0].series if series.name == "SpecFit")
        shown = dict(zip(specfit.x, specfit.y, strict=True))
        assert set(shown) == {"8", "4", "cleared", "?"}
        assert shown["cleared"] == measure(cleared).decode_tps and shown["?"] == measure(silent).decode_tps
        slots = [row["slots"] for row in chart.rows if row["method"] == "specfit"]
        assert sorted(slots, key=str) == [0, 4, 8, None]


def test_figures_4a_and_4b_are_the_panels_of_cache_pressure_and_workloads_stay_apart():
    whole, left, right = figures.cache_pressure(RUNS), figures.figure_4a(RUNS), figures.figure_4b(RUNS)
    assert [panel.y_label for panel in (*left.panels, *right.panels)] == [panel.y_label for panel in whole.panels]
    assert left.panels[0].series == whole.panels[0].series
    other = [with_cost(toy_run(SPECFIT, slots=slots), workload="other") for slots in (8, 4)]
    chart = figures.figure_4a([*RUNS, *other])
    assert [series.name for series in chart.panels[0].series][-2:] == ["SpecFit, toy", "SpecFit, other"]


def test_equation_8_is_the_decomposition_of_every_pair():
    runs = [with_cost(run, link={"kind": "modelled", "miss_ms": 0.004}) for run in RUNS]
    chart = figures.equation_8(runs)
    assert [row["cache"] for row in chart.rows] == ["8 slots", "4 slots"]
    for row, (eagle3, specfit) in zip(chart.rows, ((RUNS[1], RUNS[2]), (RUNS[4], RUNS[5])), strict=True):
        parts = decompose(specfit, eagle3, transfer_ms=0.004)
        assert (row["ratio"], row["weight"]) == (parts.ratio, parts.weight) and parts.ratio
        mean = (1 - row["weight"]) * row["fixed_ratio"] + row["weight"] * row["transfer_ratio"]
        assert row["ratio"] == pytest.approx(mean)
    measured = [row["tau_ms"] for row in figures.equation_8(RUNS).rows]
    assert measured == [copy_ms([RUNS[2], RUNS[1]])[0], copy_ms([RUNS[5], RUNS[4]])[0]]
    unsaid = figures.equation_8([with_cost(toy_run(method, tokens=1)) for method in (EAGLE3, SPECFIT)])
    assert unsaid.empty and "because nothing was copied" in " ".join(unsaid.notes)
    assert not figures.equation_8(RUNS, transfer_ms=0.004).empty
    assert "compares a SpecFit and an EAGLE-3 run" in figures.equation_8(RUNS[:1]).notes[-1]
    assert "would take" in " ".join(figures.equation_8(RUNS, transfer_ms=1e6).notes)


@pytest.mark.parametrize(
    "settings,table",
    [
        ({"workload": "news"}, 2),
        ({"workload": "problems"}, 3),
        ({"workload": "spec-bench-summarization"}, 2),
        ({"workload": "spec-bench", "questions": ["401", "402"]}, 3),
        ({"workload": "spec-bench", "questions": list(range(401, 480, 2))}, 4),
        ({"workload": "spec-bench", "questions": list(range(242, 321, 2))}, 2),
        ({"workload": "spec-bench", "questions": [81, 82]}, None),
        ({"workload": "poems"}, None),
        ({"workload": "gsm8k", "questions": list(range(401, 480, 2))}, 4),
        ({"workload": "newsroom-qa"}, None),
        ({"workload": "math"}, None),
        ({"workload": "spec-bench-math_reasoning"}, 3),
    ],
)
def test_a_workload_knows_its_place_in_the_paper(settings, table):
    place = place_of(with_cost(toy_run(AR, tokens=2), **settings))
    assert (place and place.table) == table


def test_the_papers_speedups_are_over_ar_with_the_same_cache():
    shown = {(row["method"], row["cache"]): row["speedup"] for row in table_rows(PLACES[4])}
    assert shown["AR", "yes"] == 1.0 and shown["SpecFit", "yes"] == pytest.approx(6.70 / 4.24)


def test_runs_of_one_method_are_told_apart_by_their_routes_and_seeds():
    routes = {"source": "atlas", "accuracy": 0.6, "seed": 0}
    noisy = with_cost(toy_run(SPECFIT, tokens=20, slots=8), routes=routes)
    seeded = [with_cost(toy_run(method, slots=8), seed=1) for method in (AR, EAGLE3)]
    runs = [*RUNS[:2], noisy, RUNS[2], RUNS[2], *seeded]
    (chart,) = figures.decode_throughput(runs)
    bars = {series.name: series.y for series in chart.panels[0].series}
    assert bars["SpecFit"] == (measure(RUNS[2]).decode_tps,)
    assert bars["SpecFit, 60% right routes"] == (measure(noisy).decode_tps,)
    assert {"SpecFit, run 2", "AR, seed 1", "EAGLE-3, seed 1"} < set(bars) and len(chart.rows) == len(runs)
    assert len(figures.figure_4a(runs).rows) == len(runs)
    assert len(figures.equation_8(runs, transfer_ms=0.0).rows) == 3  # none of them with the other seed's EAGLE-3
    (table,) = run_tables(runs)
    speedups = {row["method"]: row["speedup"] for row in table.rows}
    assert len(speedups) == len(runs) and speedups["AR, seed 1"] == 1.0
    assert {run.method for run in figures.runs_of([noisy])} == {"specfit"}  # alone it needs no longer name


def test_reliability_counts_every_drafted_node_once():
    chart = figures.reliability(RUNS[2:3])
    nodes = sum(len(cycle.pool) for _, cycle in RUNS[2].cycles())
    assert sum(row["nodes"] for row in chart.rows) == nodes
    assert all(0 <= row["share_right"] <= 1 for row in chart.rows)
    bare = replace(
        RUNS[2],
        requests=tuple(
            replace(request, cycles=tuple(replace(cycle, truth=None) for cycle in request.cycles))
            for request in RUNS[2].requests
        ),
    )
    chart = figures.reliability([bare])
    assert "left-out nodes are missing" in " ".join(chart.notes)
    assert sum(row["nodes"] for row in chart.rows) == sum(len(c.selection.nodes) for _, c in RUNS[2].cycles())
    twice = figures.reliability([RUNS[1], with_cost(toy_run(EAGLE3, slots=4))])  # another cache, the same drafts
    assert twice.rows == figures.reliability(RUNS[1:2]).rows


def test_reliability_counts_a_path_once_whatever_the_order_of_the_runs():
    def without_truth(run):
        bare = [
            replace(request, cycles=tuple(replace(cycle, truth=None) for cycle in request.cycles))
            for request in run.requests
        ]
        return replace(run, requests=tuple(bare))

    patient = toy_run(SPECFIT, tokens=30)
    shallow = [toy_request(n, toy_decoding(ToyWorld(0), (n, 1, 2), depth=2, max_new_tokens=30)) for n in range(3)]
    eager = replace(patient, requests=tuple(shallow), settings={**patient.settings, "slots_per_layer": 8})
    for runs in ([eager, patient], [without_truth(eager), without_truth(patient)], [eager, without_truth(patient)]):
        paths = {
            (request.request_id, cycle.prefix_length, tuple(cycle.pool.tokens[step] for step in cycle.pool.path(node)))
            for run in runs
            for request, cycle in run.cycles()
            for node in (range(len(cycle.pool)) if cycle.truth is not None else cycle.selection.nodes)
        }
        one, other = figures.reliability(runs), figures.reliability(runs[::-1])
        assert sum(row["nodes"] for row in one.rows) == len(paths)
        assert one.rows == other.rows


def test_intervals_are_wilsons():
    assert wilson(0.5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert wilson(1.0, 1) == pytest.approx((0.2065, 1.0), abs=1e-4) and wilson(0.0, 4)[0] == 0
    for count in range(1, 400):  # a share lies in its own interval to the last digit, or an error bar is negative
        assert wilson(0.0, count)[0] == 0.0 and wilson(1.0, count)[1] == 1.0


def test_a_method_looks_the_same_in_every_figure_and_no_two_series_alike():
    alone, three = figures.figure_4a(RUNS[1:3]).panels[0], figures.figure_4a(RUNS).panels[0]
    assert looks(alone) == looks(three)[1:]
    other = [with_cost(toy_run(SPECFIT, slots=slots), workload="other") for slots in (8, 4)]
    mixed = looks(figures.figure_4a([RUNS[2], RUNS[5], *other]).panels[0])
    assert len(mixed) == len(set(mixed)) == 2
    mine = [series for series in three.series if series.name == "SpecFit"]
    other_first = replace(three, series=(replace(mine[0], colour="#00765a"), *three.series[::-1]))
    assert looks(other_first) == [3, 2, 1, 0]  # what others take before a method is not its own look
    cycle = RUNS[2].requests[0].cycles[4]
    view = CycleView(cycle, cost=TOY_COST)
    (panel,) = frontier_chart(frontier_data(cycle, TOY_COST), marked_choices(view)).panels
    assert [series.name for series in panel.series][2:] == ["AR", "EAGLE-3", "this run", "your tree"]
    assert looks(panel)[2:] == [0, 1, 3, 2]


def test_every_note_of_a_chart_stands_over_it():
    link = {"kind": "emulated"}
    cut = replace(with_cost(RUNS[2], link=link), complete=False)
    chart = figures.stage_times([cut])
    assert len(chart.notes) == 2
    said = chart.plotly().layout.title.subtitle.text
    assert "Emulated link" in said and "<br>A run here is not complete" in said
    shorter = figures.stage_times([RUNS[2]]).plotly().layout
    assert chart.plotly().layout.margin.t > shorter.margin.t


def test_residuals_are_drawn_in_the_order_of_the_probes():
    fit = fit_consecutive([Probe(k, k % 3, 40 + 7 * k * k, 9.0 + k + k % 2) for k in range(8)] * 2)
    kept = Calibration.of(fit, protocol="consecutive", settings={}, prompts=["a"])
    chart = residuals(kept)
    assert chart.panels[0].series[0].y == fit.residuals_ms and chart.panels[0].level == 0
    assert "without its residuals" in residuals(replace(kept, residuals_ms=())).notes[0]


def test_path_outcomes_agree_with_the_accepted_path():
    for _, cycle in RUNS[1].cycles():
        outcomes = figures.path_outcomes(cycle)
        for node in cycle.accepted:
            assert outcomes[node][1]


def test_unions_grow_with_the_tree_and_stay_below_strangers():
    chart = figures.union_by_size(RUNS[1:3])
    for series in chart.panels[0].series:
        assert list(series.y) == sorted(series.y)
    with_nothing = figures.union_by_size(RUNS[:1])
    assert with_nothing.empty and "No cycle here" in with_nothing.notes[0]


def test_predicted_and_measured_leave_the_selector_out():
    chart = figures.predicted_and_measured(RUNS[5:])
    first = RUNS[5].requests[0].cycles[0]
    assert chart.rows[0]["measured_ms"] == first.times.total_ms - first.times.select_ms
    assert chart.rows[0]["predicted_ms"] == first.selection.predicted_ms


@pytest.mark.parametrize("runs", [RUNS[:1], RUNS, [toy_run(SPECFIT, tokens=1)]], ids=["ar", "all", "one token"])
def test_every_chart_draws_with_both_and_holds_no_nan(runs):
    for chart in figures.all_charts(runs):
        json.dumps(chart.plotly().to_plotly_json(), default=lambda array: array.tolist(), allow_nan=False)
        assert chart.matplotlib().get_size_inches()[0] == pytest.approx(chart.width_in)
        assert chart.empty == (not any(v is not None for p in chart.panels for s in p.series for v in s.y))
        if chart.empty:
            assert chart.notes


def test_folders_work_as_records_do(tmp_path):
    save_run(tmp_path / "run", RUNS[2])
    assert figures.stage_times([tmp_path / "run"]) == figures.stage_times([RUNS[2]])
    assert figures.stage_times(str(tmp_path / "run")) == figures.stage_times(RUNS[2])
    with pytest.raises(ValueError, match="no run folder"):
        figures.stage_times([tmp_path])
    with pytest.raises(ValueError, match="none is given"):
        figures.stage_times([])


def test_emulated_and_modelled_links_are_said():
    for kind, word in (("emulated", "Emulated link"), ("modelled", "Modelled times")):
        run = with_cost(toy_run(SPECFIT), link={"kind": kind})
        assert word in " ".join(figures.stage_times([run]).notes)


def test_tables_hold_the_metrics_and_the_papers_rows():
    (table,) = run_tables(RUNS, beside=2)
    assert len(table.rows) == 6 + 6
    assert table.cells()[1][1:3] == ["AR", "8 slots"]
    assert "paper, Table 2" in table.markdown() and r"\toprule" in table.latex()
    with pytest.raises(ValueError, match="Tables 2, 3 and 4"):
        run_tables(RUNS, beside=7)


def test_names_cannot_break_out_of_a_table():
    (table,) = run_tables([replace(RUNS[0], settings={**RUNS[0].settings, "workload": "a|b_$#<b>\u202e\n"})])
    latex, html, markdown = table.latex(), table._repr_html_(), table.markdown()
    assert "\u202e" not in latex + html + markdown
    assert "<b>\\" not in html and "&lt;b&gt;" in html
    assert markdown.splitlines()[0].count("|") == markdown.splitlines()[0].count(r"\|")


def test_table_5_stands_beside_the_papers():
    table = theory_table(RUNS[2])
    assert table.rows[0]["ours"] == str(len(RUNS[2].cycles()))
    assert table.rows[0]["summarization"] == "4389"
    with pytest.raises(ValueError, match="cost coefficients"):
        theory_table(toy_run(SPECFIT))
