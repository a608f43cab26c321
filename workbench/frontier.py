"""The frontier of a cycle: every legal subtree as a point (T, R), and the line from the origin that Equation 5 raises.

`frontier_data` gives plain values, `frontier_figure` draws them with plotly, `follow` keeps such a figure by a view.
"""

from __future__ import annotations

import weakref
from itertools import islice
from typing import Any

import numpy as np

from specfit.objective import CostModel, CycleState
from specfit.records import CycleRecord
from specfit.select import count_subtrees, legal_subtrees
from workbench.charts import Chart, Panel, Series
from workbench.choices import Choice, ar_choice, choice, eagle3_choice, known_routes
from workbench.mime import widget_bundle
from workbench.theme import METHOD_COLOURS

DRAWN = 6_000  # points a browser draws at ease; beyond, dominated ones are thinned
MARKS = {"AR": "square", "EAGLE-3": "diamond", "this run": "circle", "your tree": "star"}
SIZES = {"AR": 12, "EAGLE-3": 18, "this run": 12, "your tree": 9}  # where they are one, each shows behind the next
COLOURS = {
    "AR": METHOD_COLOURS["ar"],
    "EAGLE-3": METHOD_COLOURS["eagle3"],
    "this run": "#12906f",
    "your tree": "#9257d6",
}


def frontier_data(
    cycle: CycleRecord, cost: CostModel | None, *, max_nodes: int = 7, limit: int = 20_000
) -> dict[str, Any]:
    """T (ms) and R of legal subtrees of at most `max_nodes` nodes, their number, and how many were looked at.

    limit: subtrees looked at, the first of Algorithm 1's order; `note` says when there are more.
    Raises ValueError where the record holds no cost or no routes, so that T is not known.
    """
    routes = known_routes(cycle, range(len(cycle.pool)), true=False)
    if cost is None or routes is None:
        lacking = "cost coefficients" if cost is None else "routes of the nodes left out"
        raise ValueError(f"the frontier needs every subtree's time, and this record has no {lacking}")
    most = min(max_nodes, cost.max_nodes, len(cycle.pool))
    state = CycleState(cycle.pool, routes)
    found = list(islice(legal_subtrees(state, max_nodes=most), limit))
    sizes = np.array([len(nodes) for nodes, _, _ in found])
    unions = np.array([bitmap.bit_count() for _, _, bitmap in found])
    reward = np.array([steps / (1 << 48) for _, steps, _ in found])
    levels = cost.level_ms * cycle.pool.levels
    time = np.asarray(cost.intercepts_ms)[sizes] + cost.expert_ms * unions + levels
    total = count_subtrees(cycle.pool, max_nodes=most)
    kept = _thinned(time, reward)
    note = f"all {total:,} legal subtrees" if total <= limit else f"{len(found):,} of {total:,} legal subtrees"
    return {
        "time_ms": time[kept],
        "reward": reward[kept],
        "subtrees": total,
        "note": note,
        "best": float((reward / time).max()),
    }


def marked_choices(view: Any) -> list[Choice]:
    """AR, EAGLE-3, the run's choice and the tree that is looked at, for a CycleView."""
    cycle, cost = view.record, view.cost
    return [
        ar_choice(cycle, cost),
        eagle3_choice(cycle, cost, view.max_nodes, fuller=view.fuller),
        choice("this run", cycle, cycle.selection.nodes, cost),
        choice("your tree", cycle, view.nodes, cost),
    ]


def frontier_figure(data: dict[str, Any], marks: list[Choice], *, widget: bool = False) -> Any:
    """The points, the tangent from the origin and the marked choices; a FigureWidget if `widget`."""
    import plotly.graph_objects as go

    from workbench.plotly_theme import axes

    longest = float(data["time_ms"].max()) * 1.06
    figure = go.Figure()
    figure.add_scatter(
        x=data["time_ms"], y=data["reward"], mode="markers", name=data["note"], marker={"size": 4, "color": "#9aa3ad"}
    )
    figure.add_scatter(
        x=[0, longest],
        y=[0, data["best"] * longest],
        mode="lines",
        name="best R/T",
        line={"color": "#6b7280", "dash": "dot"},
    )
    for made in marks:
        figure.add_scatter(
            x=[made.predicted_ms],
            y=[made.reward],
            mode="markers",
            name=made.name,
            marker={
                "size": SIZES[made.name],
                "symbol": MARKS[made.name],
                "color": COLOURS[made.name],
                "line": {"width": 1},
            },
        )
    figure.update_layout(
        axes("cycle time T, ms (predicted)", "expected tokens R"), height=360, legend={"entrywidth": 170}
    )
    shortest = min([float(data["time_ms"].min()), *(made.predicted_ms for made in marks if made.predicted_ms)])
    figure.update_xaxes(range=[0.9 * shortest, longest])
    highest = float(data["reward"].max())
    room = 0.07 * max(highest - 1, 0.5)
    figure.update_yaxes(range=[1 - room, highest + room])
    return _widget(figure, frontier_chart(data, marks)) if widget else figure


def frontier_chart(data: dict[str, Any], marks: list[Choice]) -> Chart:
    """The same as a chart, for pages where no plotly lives and for print."""
    longest = float(data["time_ms"].max())
    points = Series(data["note"], tuple(data["time_ms"].tolist()), tuple(data["reward"].tolist()), "#9aa3ad", "points")
    line = Series("best R/T", (0.0, longest), (0.0, data["best"] * longest), "#6b7280", "line", dash=True)
    stands = [Series(m.name, (m.predicted_ms,), (m.reward,), COLOURS[m.name], "line") for m in marks]
    rows = [{"tree": m.name, "nodes": len(m.nodes), "time_ms": m.predicted_ms, "reward": m.reward} for m in marks]
    panel = Panel("cycle time T, ms (predicted)", "expected tokens R", (points, line, *stands))
    return Chart("frontier", f"Frontier, {data['note']}", (panel,), tuple(rows), width_in=4.5, height_in=2.8)


def _widget(figure: Any, chart: Chart) -> Any:
    """A FigureWidget that is told apart by what it shows, not by an address, and has a picture for static pages."""
    import plotly.graph_objects as go

    class Frontier(go.FigureWidget):
        def __repr__(self) -> str:
            return f"Frontier({chart.title.removeprefix('Frontier, ')})"

        def _repr_mimebundle_(self, *args: Any, **kwargs: Any) -> Any:
            from workbench.paper_figures import figure_bytes

            svg = figure_bytes(chart.matplotlib(), "svg").decode()
            return widget_bundle(super()._repr_mimebundle_(*args, **kwargs), text=repr(self), svg=svg)

    return Frontier(figure)


def follow(view: Any, *, limit: int = 20_000) -> Any:
    """A frontier FigureWidget for a CycleView: new points with a new cycle, "your tree" with every click."""
    if view.record is None:
        raise ValueError("the view shows no cycle yet, so there is no frontier to draw")
    figure = frontier_figure(
        frontier_data(view.record, view.cost, max_nodes=view.max_nodes, limit=limit), marked_choices(view), widget=True
    )
    drawn = [view.record]
    target = weakref.ref(figure)

    def update(change: Any) -> None:
        shown = target()
        if shown is None:  # the figure is gone; let go of the view
            view.unobserve(update, "seq")
            return
        with shown.batch_update():
            if view.record is not drawn[0]:
                drawn[0] = view.record
                fresh = frontier_figure(
                    frontier_data(view.record, view.cost, max_nodes=view.max_nodes, limit=limit), marked_choices(view)
                )
                for old, new in zip(shown.data, fresh.data, strict=True):
                    old.x, old.y, old.name = new.x, new.y, new.name
                shown.layout.xaxis.range, shown.layout.yaxis.range = fresh.layout.xaxis.range, fresh.layout.yaxis.range
            yours = choice("your tree", view.record, view.nodes, view.cost)
            shown.data[-1].x, shown.data[-1].y = [yours.predicted_ms], [yours.reward]

    view.observe(update, "seq")
    return figure


def _thinned(time: np.ndarray, reward: np.ndarray) -> np.ndarray:
    """Points to draw: all, or the best reward of every time bucket and an even share of the others."""
    if len(time) <= DRAWN:
        return np.arange(len(time))
    bucket = np.digitize(time, np.linspace(time.min(), time.max(), 800))
    order = np.lexsort((-reward, bucket))
    best = order[np.unique(bucket[order], return_index=True)[1]]
    return np.union1d(best, np.arange(0, len(time), -(-len(time) // DRAWN)))
