from dataclasses import replace

from specfit.methods import SPECFIT
from tests.toys import TOY_COST, toy_run
from workbench.cycle_view import CycleView
from workbench.frontier import frontier_chart, frontier_data, marked_choices

CYCLE = toy_run(SPECFIT).requests[0].cycles[4]


def test_the_widget_has_a_stable_repr_and_a_static_picture():
    view = CycleView(CYCLE, cost=TOY_COST)
    figure = view.frontier()
    assert repr(figure) == "Frontier(all 271 legal subtrees)"
    data = figure._repr_mimebundle_()
    data = data[0] if isinstance(data, tuple) else data
    assert data["text/plain"] == repr(figure)
    assert "<svg" in data["image/svg+xml"]


def test_the_chart_marks_the_four_trees():
    view = CycleView(CYCLE, cost=TOY_COST)
    chart = frontier_chart(frontier_data(CYCLE, TOY_COST), marked_choices(view))
    assert [row["tree"] for row in chart.rows] == ["AR", "EAGLE-3", "this run", "your tree"]


def test_ar_is_in_sight_though_it_drafts_nothing():
    view = CycleView(CYCLE, cost=replace(TOY_COST, level_ms=3.0))
    figure = view.frontier()
    (ar,) = (trace for trace in figure.data if trace.name == "AR")
    left, right = figure.layout.xaxis.range
    assert left < ar.x[0] < min(figure.data[0].x) < right
