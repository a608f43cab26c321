"""Charts drawn by plotly, to look at: values under the pointer, series that can be hidden."""

from __future__ import annotations

import textwrap
from typing import Any

from workbench.charts import Chart, Panel, looks
from workbench.plotly_theme import GREY, axes

DASHES = ("dashdot", "dash", "solid", "longdash")  # of AR, EAGLE-3, SpecFit and others, as in paper_figures.py
SHAPES = ("circle", "diamond", "square", "triangle-up")
WIDE, LINE_PX = 100, 16  # characters and pixels of a line of notes
ON_SCREEN = {  # shades lighter than in print: they must show on a dark page as well
    "#0a5f9e": "#2a80c7",
    "#00765a": "#12906f",
    "#6a3d9a": "#9257d6",
    "#b34700": "#cc5a10",
    "#4d4d4d": "#7a7a7a",
    "#5c636b": "#777d85",
}


def plotly_figure(chart: Chart) -> Any:
    """The chart as a plotly Figure, panels side by side."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    figure = go.Figure() if len(chart.panels) == 1 else make_subplots(rows=1, cols=len(chart.panels))
    lines = [line for note in chart.notes for line in textwrap.wrap(note, WIDE)]
    told = {"text": "<br>".join(map(_text, lines)), "font": {"size": 12}} if lines else {}
    deeper = LINE_PX * max(0, len(lines) - 1)  # than where one line of notes is over it
    title = {
        "text": _text(chart.title),
        "font": {"size": 14},
        "x": 0,
        "xref": "paper",
        "y": 1 - 10 / (340 + deeper),
        "yanchor": "top",
        "subtitle": told,
    }
    look = axes("", "", height=340 + deeper, title=title)
    x_axis, y_axis = look.pop("xaxis"), look.pop("yaxis")
    figure.update_layout(look, barmode="stack" if _stacked(chart) else "group")
    figure.update_layout(margin={"t": 100 + deeper if lines else 76}, legend={"y": 1.01})
    figure.update_xaxes(x_axis)
    figure.update_yaxes(y_axis)
    for number, panel in enumerate(chart.panels, start=1):
        where = {} if len(chart.panels) == 1 else {"row": 1, "col": number}
        for place, series in zip(looks(panel), panel.series, strict=True):
            drawn = _bars if series.mark in ("bars", "stack") else _marks
            shared = {
                "name": _text(series.name),
                "legendgroup": series.name,
                "showlegend": number == 1 and len(panel.series) > 1,
            }
            figure.add_trace(drawn(go, series, place, shared), **where)
        if panel.diagonal and (high := _reach(panel)):
            line = {"color": GREY, "dash": "dot", "width": 1}
            figure.add_trace(
                go.Scatter(x=[0, high], y=[0, high], mode="lines", line=line, name="equal", hoverinfo="skip"), **where
            )
        if panel.level is not None:
            figure.add_hline(y=panel.level, line={"color": GREY, "dash": "dot", "width": 1}, **where)
        figure.update_xaxes(title_text=panel.x_label, **where)
        figure.update_yaxes(title_text=panel.y_label, rangemode="tozero" if panel.from_zero else "normal", **where)
        if any(isinstance(x, str) for series in panel.series for x in series.x):
            figure.update_xaxes(type="category", **where)
    return figure


def _bars(go: Any, series: Any, place: int, shared: dict[str, Any]) -> Any:
    return go.Bar(
        x=[_text(x) for x in series.x],
        y=list(series.y),
        marker_color=_colour(series),
        text=list(series.labels) or None,
        textposition="outside" if series.labels else "none",
        **shared,
    )


def _marks(go: Any, series: Any, place: int, shared: dict[str, Any]) -> Any:
    points = series.mark == "points"
    return go.Scatter(
        x=[_text(x) for x in series.x],
        y=list(series.y),
        mode="markers" if points else "lines" if series.dash else "lines+markers",
        marker={
            "color": _colour(series),
            "symbol": SHAPES[place % 4],
            "size": 5 if points else 8,
            "opacity": 0.6 if points else 1,
        },
        line={"color": _colour(series), "dash": "dot" if series.dash else DASHES[place % 4]},
        error_y=_error(series),
        **shared,
    )


def _error(series: Any) -> dict[str, Any] | None:
    if not series.spread:
        return None
    ends = list(zip(series.y, series.spread, strict=True))
    up, down = [high - y for y, (_, high) in ends], [y - low for y, (low, _) in ends]
    return {"type": "data", "array": up, "arrayminus": down, "thickness": 1, "width": 3}


def _colour(series: Any) -> str:
    return ON_SCREEN.get(series.colour, series.colour)


def _text(value: Any) -> Any:
    """plotly reads a little HTML in texts; a name from a file is none."""
    if not isinstance(value, str):
        return value
    return value.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _stacked(chart: Chart) -> bool:
    return any(series.mark == "stack" for panel in chart.panels for series in panel.series)


def _reach(panel: Panel) -> float:
    values = [v for series in panel.series for v in (*series.x, *series.y) if isinstance(v, int | float)]
    return max(values, default=0.0)
