"""The only file that writes: charts, tables and views to files, each with its numbers beside it.

Nothing here needs a browser or a network, and the same records give the same bytes.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from functools import cache, partial
from html import escape
from pathlib import Path
from typing import Any

from specfit.records import RunRecord
from specfit.report import escape_markdown, told_apart
from workbench.charts import Chart
from workbench.residency import residency_in
from workbench.run_facts import run_of
from workbench.run_table import rule_of
from workbench.schematic import Schematic, schematic
from workbench.tables import Table, paper_tables, theory_table

FORMATS = ("pdf", "svg", "png")
TABLE_FORMATS = ("csv", "tex", "md")


def export(figure: Any, path: str | Path) -> list[Path]:
    """Write a chart, a table, a view or a player; the ending of `path` says how, none means every way there is.

    Charts: .pdf, .svg, .png with the numbers as .csv beside; .html interactive. Tables: .csv, .tex, .md. Views and
    players: .svg, .html, static. Returns the files written. Raises ValueError for an ending that it cannot be.
    """
    path = Path(path)
    ways = _ways(figure)
    ending = path.suffix.lower().lstrip(".")
    if not ending or ending not in {*FORMATS, *TABLE_FORMATS, "html"}:
        chosen = [way for way in ways if way != "html" or len(ways) <= 2]
        stem = path
        if ending and path.suffix[1:].isalpha() and len(path.suffix) <= 5:
            raise ValueError(f"a {type(figure).__name__} can be written as {_list(ways)}; {path.name} is none of these")
    elif ending not in ways:
        raise ValueError(f"a {type(figure).__name__} can be written as {_list(ways)}, not .{ending}")
    else:
        chosen, stem = [ending], path.with_suffix("")
    if isinstance(figure, Chart | Schematic) and "csv" not in chosen:
        chosen = [*chosen, "csv"]
    return _write_ways(figure, stem, chosen)


def export_all(
    runs: Iterable[Any],
    out: str | Path,
    *,
    transfer_ms: float | None = None,
    formats: Collection[str] = FORMATS,
) -> list[Path]:
    """Every figure and table of these runs (records or folders), and README.md with what must be known of each.

    Those of the paper carry its numbers (figure_2_..., table_5) and, where it prints any, its rows beside ours.
    transfer_ms: the time one expert's copy adds, for Equation 8; as the runs' own copies say, unless given.
    formats: of the figures, of pdf, svg and png; every figure has its CSV, every table all its forms.

    A figure that the runs lack the data for is named there with the reason, and does not keep the others from being
    written.
    """
    from workbench.figures import all_charts

    records = [run_of(run) for run in runs]
    if not records:
        raise ValueError("there is nothing to draw: no run was given")
    if not formats or not set(formats) <= set(FORMATS):
        raise ValueError(f"figures are written as {', '.join(FORMATS)}; got {', '.join(map(repr, formats)) or 'none'}")
    out = Path(out)
    written: list[Path] = []
    notes = ["# Figures and tables", ""]
    taken: set[str] = set()
    charts = all_charts(records, transfer_ms=transfer_ms)
    everything: list[Any] = [*_cycles(records), *charts, *paper_tables(records), *_theory(records, notes)]
    names = Counter(made.name for made in everything if not getattr(made, "empty", False))
    for made in everything:
        if getattr(made, "empty", False):
            notes.append(f"- not drawn: {escape_markdown(made.title)}. {escape_markdown(' '.join(made.notes))}")
            continue
        name = _free_name(made, names[made.name] > 1, taken)
        ways = TABLE_FORMATS if isinstance(made, Table) else (*(form for form in FORMATS if form in formats), "csv")
        files = _write_ways(made, out / name, ways)
        written += files
        notes.append(f"- {escape_markdown(made.title)}: {', '.join(file.name for file in files)}")
        notes += [f"  - {escape_markdown(' '.join(note.split()))}" for note in made.notes]
    return [*written, _write(out / "README.md", ("\n".join(notes) + "\n").encode())]


# -- what can be written how -------------------------------------------------------------------------------------------


def _ways(figure: Any) -> dict[str, Callable[[], bytes]]:
    """Endings and what gives their bytes."""
    if isinstance(figure, Chart | Schematic):
        once = cache(figure.matplotlib)
        drawn = {form: partial(lambda form: _printed(once(), form), form) for form in FORMATS}
        html = {"html": lambda: _plotly_page(figure.plotly())} if isinstance(figure, Chart) else {}
        return {**drawn, "csv": lambda: figure.csv().encode(), **html}
    if isinstance(figure, Table):
        return {
            "csv": lambda: figure.csv().encode(),
            "tex": lambda: figure.latex().encode(),
            "md": lambda: figure.markdown().encode(),
        }
    view = getattr(figure, "view", figure)
    if callable(getattr(view, "svg", None)):
        return {"svg": lambda: view.svg().encode(), "html": lambda: _static_page(repr(figure), view.svg())}
    if callable(getattr(figure, "savefig", None)):
        return {form: partial(_printed, figure, form) for form in FORMATS}
    if callable(getattr(figure, "to_html", None)):
        return {"html": lambda: _plotly_page(figure)}
    raise ValueError(f"a {type(figure).__name__} is no figure, table or view; workbench.figures makes them from runs")


def _write_ways(figure: Any, stem: Path, chosen: Iterable[str]) -> list[Path]:
    ways = _ways(figure)
    return [_write(stem.with_name(f"{stem.name}.{way}"), ways[way]()) for way in chosen]


def _printed(figure: Any, form: str) -> bytes:
    from workbench.paper_figures import figure_bytes  # matplotlib loads only where it is used

    return figure_bytes(figure, form)


def _plotly_page(figure: Any) -> bytes:
    """A page of its own with plotly inside, so that it opens without a network."""
    return figure.to_html(include_plotlyjs=True, full_html=True, div_id="figure").encode()


def _static_page(title: str, svg: str) -> bytes:
    head = f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title></head>'
    return f"{head}<body>{svg or escape(title)}</body></html>\n".encode()


def _write(path: Path, data: bytes) -> Path:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(data)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path


# -- which figures there are -------------------------------------------------------------------------------------------


def _cycles(runs: list[RunRecord]) -> list[Schematic]:
    """Figure 1 from the most telling cycle of the first run that drafts: accepted, rejected and left-out nodes."""
    for run in sorted(runs, key=lambda run: run.method != "specfit"):
        best = max(
            ((request, cycle) for request, cycle in run.cycles() if cycle.selection.nodes),
            key=lambda pair: (
                min(len(pair[1].accepted), 3)
                + min(len(pair[1].selection.nodes) - len(pair[1].accepted), 2)
                + min(len(pair[1].pool) - len(pair[1].selection.nodes), 5)
            ),
            default=None,
        )
        if best is not None:
            request, cycle = best
            residency = residency_in(run, request, cycle.index)
            return [schematic(cycle, tokens=run.tokens, residency=residency)]
    return []


def _theory(runs: list[RunRecord], notes: list[str]) -> list[Table]:
    tables = []
    for run in told_apart(runs):
        if rule_of(run) != "specfit":
            continue
        try:
            tables.append(theory_table(run))
        except ValueError as error:
            notes.append(f"- not drawn: Table 5. {escape_markdown(str(error))}")
    return tables


def _free_name(made: Any, shared: bool, taken: set[str]) -> str:
    """The figure's own name, with its runs where several share it, and a number where that is not enough."""
    name = made.name
    if shared:
        words = "".join(char if char.isascii() and char.isalnum() else " " for char in made.about.lower())
        name = "_".join([made.name, *words.split()])[:80]
    stem, number = name, 2
    while name in taken:
        name, number = f"{stem}_{number}", number + 1
    taken.add(name)
    return name


def _list(ways: Iterable[str]) -> str:
    return ", ".join(f".{way}" for way in ways)
