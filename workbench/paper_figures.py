"""Charts drawn by matplotlib, to print: exact sizes, TrueType fonts, no clock and no chance, so the same bytes twice.

`matplotlib.figure.Figure` is used without pyplot: nothing global changes, and nothing is shown by itself.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from workbench.charts import Chart, Panel, Series, looks
from workbench.theme import FONT, FONT_PT, LIGHT

RC: Any = {
    "font.family": FONT,
    "font.size": FONT_PT,
    "axes.linewidth": 0.6,
    "axes.labelsize": FONT_PT,
    "axes.titlesize": FONT_PT,
    "xtick.labelsize": FONT_PT - 0.5,
    "ytick.labelsize": FONT_PT - 0.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.fontsize": FONT_PT - 0.5,
    "legend.frameon": False,
    "pdf.fonttype": 42,  # TrueType, as publishers ask
    "svg.fonttype": "none",
    "svg.hashsalt": "specfit",  # ids do not change from run to run
    "path.simplify": True,
    "hatch.linewidth": 0.5,
    "text.parse_math": False,  # a name with a dollar sign is a name
}
HATCHES = ("", "///", "\\\\\\", "xx")  # so that bars are told apart in grey
LINES = ("-.", "--", "-", (0, (6, 1.5)))  # AR, EAGLE-3, SpecFit, others
SHAPES = ("o", "D", "s", "^")
DPI = 300


def paper_figure(chart: Chart) -> Figure:
    """The chart at its printed size; one without data says why in its place."""
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(chart.width_in, chart.height_in), layout="constrained")
        if chart.empty:
            why = " ".join(chart.notes) or "There is nothing to draw."
            figure.text(0.5, 0.5, why, ha="center", va="center", wrap=True, color=LIGHT["muted"])
            return figure
        all_axes = figure.subplots(1, len(chart.panels), squeeze=False)[0]
        for axes, panel in zip(all_axes, chart.panels, strict=True):
            _draw(axes, panel)
        handles, names = all_axes[0].get_legend_handles_labels()
        if len(names) > 1:
            room = int(72 * chart.width_in / (0.62 * FONT_PT * max(map(len, names)) + 4 * FONT_PT))
            scatter = all(series.mark == "points" for series in chart.panels[0].series)
            figure.legend(
                handles,
                names,
                loc="outside upper center",
                ncols=max(1, min(len(names), room)),
                markerscale=3 if scatter else 1,
            )
        return figure


def figure_bytes(figure: Figure, form: str) -> bytes:
    """The figure as "pdf", "svg" or "png", the same bytes for the same figure."""
    metadata = {
        "pdf": {"CreationDate": None, "Producer": None, "Creator": None},
        "svg": {"Date": None, "Creator": None},
        "png": {"Software": None},
    }[form]
    out = io.BytesIO()
    with matplotlib.rc_context(RC):
        figure.savefig(out, format=form, dpi=DPI if form == "png" else "figure", metadata=metadata)
    return out.getvalue()


def _draw(axes: Any, panel: Panel) -> None:
    bars = [series for series in panel.series if series.mark == "bars"]
    low: list[float] = []
    for place, series in zip(looks(panel), panel.series, strict=True):
        if series.mark == "bars":
            _bars(axes, series, place, bars.index(series), len(bars))
        elif series.mark == "stack":
            low = _stack(axes, series, place, low)
        else:
            _marks(axes, series, place)
    if panel.diagonal:
        high = max(axes.get_xlim()[1], axes.get_ylim()[1])
        axes.plot([0, high], [0, high], color=LIGHT["muted"], linewidth=0.6, linestyle=":", zorder=0)
        axes.set_xlim(left=0)
    if panel.level is not None:
        axes.axhline(panel.level, color=LIGHT["muted"], linewidth=0.6, linestyle=":", zorder=0)
    if panel.from_zero:
        axes.set_ylim(bottom=0)
    if any(series.labels for series in panel.series):
        axes.margins(y=0.12)
        axes.set_ylim(0, axes.get_ylim()[1] * 1.06)
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    axes.grid(axis="y", color=LIGHT["line"], linewidth=0.4)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _bars(axes: Any, series: Series, place: int, number: int, count: int) -> None:
    wide = 0.8 / count
    at = [i - 0.4 + wide * (number + 0.5) for i in range(len(series.x))]
    high = [value if value is not None else 0.0 for value in series.y]
    drawn = axes.bar(
        at,
        high,
        wide * 0.94,
        label=series.name,
        color=series.colour,
        hatch=HATCHES[place % 4],
        edgecolor="white",
        linewidth=0.3,
    )
    if series.labels:
        axes.bar_label(drawn, labels=series.labels, fontsize=FONT_PT - 2, padding=1)
    _name_places(axes, series.x)


def _stack(axes: Any, series: Series, place: int, low: list[float]) -> list[float]:
    low = low or [0.0] * len(series.x)
    high = [value or 0.0 for value in series.y]
    axes.bar(
        range(len(high)), high, 0.62, bottom=low, label=series.name, color=series.colour, hatch=HATCHES[place % 4],
        edgecolor="white", linewidth=0.3,
    )  # fmt: skip
    _name_places(axes, series.x)
    return [a + b for a, b in zip(low, high, strict=True)]


def _marks(axes: Any, series: Series, place: int) -> None:
    words = any(isinstance(x, str) for x in series.x)
    at = list(range(len(series.x))) if words else list(series.x)
    high = [float("nan") if value is None else value for value in series.y]
    if series.mark == "points":
        axes.plot(at, high, SHAPES[place % 4], color=series.colour, label=series.name, markersize=1.8, alpha=0.55,
                  markeredgewidth=0, rasterized=len(at) > 500)  # fmt: skip
    else:
        dash, shape = (":", "") if series.dash else (LINES[place % 4], SHAPES[place % 4])
        axes.plot(at, high, linestyle=dash, marker=shape, color=series.colour, label=series.name, linewidth=1.1,
                  markersize=3)  # fmt: skip
        if series.spread:
            lows, highs = zip(*series.spread, strict=True)
            axes.vlines(at, lows, highs, color=series.colour, linewidth=0.6, alpha=0.8)
    if words:
        _name_places(axes, series.x)


def _name_places(axes: Any, names: Sequence[Any]) -> None:
    """Names of categories below their places: on lines where there is room, else upright."""
    lines = [str(name).replace(", ", "\n") for name in names]
    figure = axes.get_figure()
    room_pt = 0.8 * 72 * figure.get_size_inches()[0] / figure.axes[0].get_gridspec().ncols / max(1, len(names))
    needed_pt = 0.6 * FONT_PT * max((len(part) for line in lines for part in line.split("\n")), default=0)
    if needed_pt <= room_pt:
        axes.set_xticks(range(len(names)), lines)
    else:
        axes.set_xticks(range(len(names)), [str(name) for name in names], rotation=90, fontsize=FONT_PT - 1.5)
