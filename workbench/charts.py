"""A chart as plain values: what both drawings, plotly's to look at and matplotlib's to print, are made from.

`figures.py` turns records into charts; a chart shows itself in a notebook, interactive where plotly's own renderer
lives and as a small static picture elsewhere, and carries every number it draws as rows.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from workbench.mime import fitting
from workbench.theme import COLUMN_IN, METHOD_COLOURS, OTHER_COLOURS


@dataclass(frozen=True, slots=True)
class Series:
    """One set of marks. x may be texts (categories) or numbers; None in y is a gap."""

    name: str
    x: tuple[Any, ...]
    y: tuple[float | None, ...]
    colour: str
    mark: Literal["bars", "line", "points", "stack"] = "bars"  # stack: bars on top of the series before
    dash: bool = False
    labels: tuple[str, ...] = ()  # one a value, written at it
    spread: tuple[tuple[float, float], ...] = ()  # one a value, the ends of its interval


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes."""

    x_label: str
    y_label: str
    series: tuple[Series, ...]
    diagonal: bool = False  # draw y = x
    level: float | None = None  # draw y = level
    from_zero: bool = True


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure: panels side by side, the rows of all numbers in it, and what its reader must know."""

    name: str  # of its files
    title: str
    panels: tuple[Panel, ...]
    rows: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...] = ()
    width_in: float = COLUMN_IN
    height_in: float = 2.2
    about: str = ""  # the runs, for the file name where several charts share one

    @property
    def empty(self) -> bool:
        """Whether there is nothing to draw; the notes say why."""
        return not any(value is not None for panel in self.panels for series in panel.series for value in series.y)

    def csv(self) -> str:
        """The rows as CSV; None is an empty cell."""
        return rows_csv(self.rows)

    def plotly(self) -> Any:
        """A plotly Figure."""
        from workbench.plotly_charts import plotly_figure

        return plotly_figure(self)

    def matplotlib(self) -> Any:
        """A matplotlib Figure of the exact printed size."""
        from workbench.paper_figures import paper_figure

        return paper_figure(self)

    def __repr__(self) -> str:
        return f"Chart({self.name}: {self.title}, {len(self.rows)} rows)"

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        from workbench.paper_figures import figure_bytes

        bundle = {"text/plain": repr(self), "image/svg+xml": fitting(figure_bytes(self.matplotlib(), "svg").decode())}
        if not self.empty:
            bundle["application/vnd.plotly.v1+json"] = self.plotly().to_plotly_json()
        return bundle


def looks(panel: Panel) -> list[int]:
    """Which shape, dash and hatch each series of the panel takes, 0 to 3: a method's own, so that it looks the same in
    every figure, or one that is still free. Clouds of points come last, and dotted lines take none: they need no shape.
    """
    if any(series.mark == "stack" for series in panel.series):  # stages, which are no methods
        return [at % 4 for at in range(len(panel.series))]
    methods = [*METHOD_COLOURS.values(), OTHER_COLOURS[0]]
    found: dict[int, int] = {}
    for at, series in enumerate(panel.series):
        if series.colour in methods and not series.dash and methods.index(series.colour) not in found.values():
            found[at] = methods.index(series.colour)
    order = (3, 0, 1, 2) if found else (0, 1, 2, 3)  # beside methods, first what none of the paper's has
    free = [look for look in order if look not in found.values()]
    for at in sorted(range(len(panel.series)), key=lambda at: panel.series[at].mark == "points"):
        if at not in found:
            found[at] = free.pop(0) if free and not panel.series[at].dash else at % 4
    return [found[at] for at in range(len(panel.series))]


def rows_csv(rows: tuple[Mapping[str, Any], ...]) -> str:
    """Rows as CSV with a head; a text that a spreadsheet would run as a formula is made text by a leading quote."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_cell(row.get(column)) for column in columns])
    return out.getvalue()


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, float):
        return format(value, ".10g")
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return f"'{value}"
    return value
