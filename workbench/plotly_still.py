"""A plotly figure that has a picture with it, for pages where no plotly runs: GitHub, an HTML export, a printed page.

plotly's own way to a picture needs a browser; this one draws with matplotlib what the figures of `theory_figures.py`
are made of: scatters (marks, lines, texts), bars that lie, straight lines across, and a title.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from workbench.mime import fitting
from workbench.theme import LIGHT

SHAPES = {"circle": "o", "square": "s", "diamond": "D"}
DASHES = {"dot": ":", "dash": "--"}
POINT = 0.6  # points of print for a pixel of the screen


def pictured(figure: Any, about: str) -> Any:
    """The same figure, which shows itself with a static picture beside and `about` as its text."""
    made = _kind()(figure)
    made._about = about
    return made


@cache
def _kind() -> Any:
    """The class of such figures; made where it is needed, as plotly loads only there."""
    import plotly.graph_objects as go

    class Pictured(go.Figure):
        # plotly's own ways to show itself: nothing beside the figure, or a page that fetches plotly from the network
        _ipython_display_: Any = None
        _repr_html_: Any = None
        _about = ""

        def __repr__(self) -> str:
            return self._about

        def __reduce__(self) -> Any:
            return pictured, (self.to_dict(), self._about)  # as plotly's own, which knows no text

        def _repr_mimebundle_(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
            return {
                "text/plain": repr(self),
                "image/svg+xml": fitting(still_svg(self)),
                "application/vnd.plotly.v1+json": self.to_plotly_json(),
            }

    return Pictured


def still_svg(figure: Any) -> str:
    """The figure drawn by matplotlib, as SVG; the same bytes for the same figure."""
    import matplotlib
    from matplotlib.figure import Figure

    from workbench.paper_figures import RC, figure_bytes

    with matplotlib.rc_context(RC):
        still = Figure(figsize=(6.75, (figure.layout.height or 360) / 130), layout="constrained")
        axes = still.subplots()
        for trace in figure.data:
            (_lying_bars if trace.type == "bar" else _scatter)(axes, trace)
        for shape in figure.layout.shapes:
            line = {"color": _colour(shape.line.color), "linewidth": 0.8, "zorder": 0.5}
            if shape.x0 == shape.x1:
                axes.axvline(shape.x0, linestyle=DASHES.get(shape.line.dash, "-"), **line)
            else:
                axes.axhline(shape.y0, linestyle=DASHES.get(shape.line.dash, "-"), **line)
        _dress(axes, figure)
        return figure_bytes(still, "svg").decode()


def _scatter(axes: Any, trace: Any) -> None:
    x, y = ([float("nan") if value is None else value for value in values] for values in (trace.x, trace.y))
    name = trace.name if trace.name and trace.showlegend is not False else "_"  # matplotlib: not in the legend
    line, marker = trace.line, trace.marker
    if "lines" in trace.mode:
        both = "markers" in trace.mode
        colour = _colour(line.color)
        dash = DASHES.get(line.dash, "-")
        mark = {"marker": "o", "markersize": POINT * marker.size} if both else {}
        axes.plot(x, y, color=colour, linestyle=dash, linewidth=POINT * (line.width or 2), label=name, **mark)
        return
    colours = marker.color if isinstance(marker.color, list | tuple) else [marker.color] * len(x)
    axes.scatter(
        x,
        y,
        s=(POINT * marker.size) ** 2,
        c=[_colour(colour) for colour in colours],
        marker=SHAPES[marker.symbol or "circle"],
        edgecolors=_colour(marker.line.color) if marker.line.width else "none",
        linewidths=0.8,
        label=name,
        zorder=3,
        clip_on=False,
    )
    if "text" in trace.mode:
        for place_x, place_y, text in zip(x, y, trace.text, strict=True):
            axes.text(place_x, place_y, text, color=trace.textfont.color, ha="center", va="center", zorder=4)


def _lying_bars(axes: Any, trace: Any) -> None:
    axes.barh(list(trace.y), list(trace.x), 0.8, color=[_colour(colour) for colour in trace.marker.color])


def _dress(axes: Any, figure: Any) -> None:
    layout = figure.layout
    if layout.title.text:
        axes.set_title(layout.title.text, loc="left")
    for note in layout.annotations:
        axes.annotate(
            note.text, (note.x, note.y), xycoords=("data", "axes fraction"), xytext=(3, 1), textcoords="offset points",
            ha="left", va="top" if note.y == 1 else "bottom", color=LIGHT["muted"],
        )  # fmt: skip
    if layout.xaxis.visible is False:
        axes.set_axis_off()
        axes.set_aspect("equal")
        return
    axes.set_xlabel(layout.xaxis.title.text or "")
    axes.set_ylabel(layout.yaxis.title.text or "")
    for limit, axis in ((axes.set_xlim, layout.xaxis), (axes.set_ylim, layout.yaxis)):
        if axis.range is not None:
            limit(*axis.range)
    axes.grid(color=LIGHT["line"], linewidth=0.4)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0))


def _colour(colour: str) -> Any:
    """What matplotlib calls a CSS colour, #rrggbb or rgba(r,g,b,a)."""
    if not colour.startswith("rgba("):
        return colour
    *channels, alpha = (float(part) for part in colour.removeprefix("rgba(").removesuffix(")").split(","))
    return (*(channel / 255 for channel in channels), alpha)
