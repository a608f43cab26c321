"""The paper's tables from any runs, as plain rows that write themselves as CSV, Markdown and LaTeX (booktabs)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from specfit.objective import CostModel
from specfit.records import RunRecord
from specfit.report import escape_markdown, printable, summary_rows, told_apart
from workbench.charts import rows_csv
from workbench.paper_place import BESIDE, OURS, PLACES, place_of, table_rows
from workbench.run_facts import run_cost, run_of
from workbench.run_table import cache_of, workload_of
from workbench.theme import method_words

RUN_COLUMNS = (
    ("method", "Method", "{}"),
    ("cache", "Cache", "{}"),
    ("decode_tps", "TPS", "{:.2f}"),
    ("speedup", "Speed-up", "{:.2f}x"),
    ("draft_nodes", "Draft nodes", "{:.2f}"),
    ("committed", "Committed", "{:.2f}"),
    ("cycles", "Cycles", "{}"),
    ("cycle_ms", "ms/cycle", "{:.1f}"),
    ("h2d_per_token", "H2D/token", "{:.1f}"),
)
LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
         ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\textquotedbl{}"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Table:
    """Rows with the columns to print, and what their reader must know."""

    name: str  # of its files
    title: str
    columns: tuple[tuple[str, str, str], ...]  # key in a row, heading, format
    rows: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...] = ()
    about: str = ""  # the runs, for the file name where several tables share one

    def cells(self) -> list[list[str]]:
        """The head and the rows as text; an undefined value is "n/a", and "-" where a row has no such column."""
        shown = [[heading for _, heading, _ in self.columns]]
        for row in self.rows:
            shown.append([_cell(row, key, form) for key, _, form in self.columns])
        return shown

    def csv(self) -> str:
        """All values of the rows at full precision."""
        return rows_csv(tuple({key: value for key, value in row.items() if _plain(value)} for row in self.rows))

    def markdown(self) -> str:
        """A Markdown table with its notes."""
        head, *body = [[escape_markdown(cell) for cell in line] for line in self.cells()]
        rule = [":--" if at < 1 else "--:" for at in range(len(head))]
        lines = [f"| {' | '.join(line)} |" for line in (head, rule, *body)]
        notes = [f"- {escape_markdown(note)}" for note in self.notes]
        return "\n".join([f"**{escape_markdown(self.title)}**", "", *lines, *([""] if notes else []), *notes]) + "\n"

    def latex(self) -> str:
        """A booktabs table; notes as comments above it."""
        head, *body = [[_latex(cell) for cell in line] for line in self.cells()]
        lines = [f"% {printable(note)}" for note in self.notes]
        lines += [
            rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
            r"\toprule",
            " & ".join(head) + r" \\",
            r"\midrule",
        ]
        lines += [" & ".join(line) + r" \\" for line in body]
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"

    def __repr__(self) -> str:
        cells = [[printable(cell) for cell in line] for line in self.cells()]
        widths = [max(len(line[at]) for line in cells) for at in range(len(cells[0]))]
        lines = ["  ".join(cell.rjust(w) if at else cell.ljust(w) for at, (cell, w) in enumerate(zip(line, widths)))
                 for line in cells]  # fmt: skip
        return "\n".join([self.title, *(line.rstrip() for line in lines), *self.notes])

    def _repr_html_(self) -> str:
        head, *body = self.cells()
        rows = "".join(
            "<tr>"
            + "".join(
                f"<td style='text-align:{'right' if at else 'left'}'>{escape(cell)}</td>"
                for at, cell in enumerate(line)
            )
            + "</tr>"
            for line in body
        )
        names = "".join(f"<th>{escape(name)}</th>" for name in head)
        notes = "".join(f"<li>{escape(printable(note))}</li>" for note in self.notes)
        table = f"<table><thead><tr>{names}</tr></thead><tbody>{rows}</tbody></table>"
        return f"<b>{escape(printable(self.title))}</b>{table}<ul>{notes}</ul>"


def run_tables(runs: Iterable[Any], *, beside: int | None = None) -> list[Table]:
    """Tables 2 to 4: a row a run, one table a workload.

    beside: 2, 3 or 4 puts the paper's rows of that table below ours, marked as the paper's.
    """
    if beside is not None and beside not in PLACES:
        raise ValueError(f"the paper prints runs in Tables 2, 3 and 4; got {beside}")
    return [_run_table(workload, rows, beside) for workload, (_, rows) in _rows_by_workload(runs).items()]


def paper_tables(runs: Iterable[Any]) -> list[Table]:
    """`run_tables` with the paper's rows below ours wherever the paper has the workload, named as its table is."""
    tables = []
    for workload, (first, rows) in _rows_by_workload(runs).items():
        place = place_of(first)
        tables.append(_run_table(workload, rows, None if place is None else place.table))
    return tables


def _rows_by_workload(runs: Iterable[Any]) -> dict[str, tuple[RunRecord, list[dict[str, Any]]]]:
    """For every workload its first run, and a row a run."""
    records = [run_of(run) for run in runs]
    groups: dict[str, tuple[RunRecord, list[dict[str, Any]]]] = {}
    for run, row in zip(told_apart(records), summary_rows(records), strict=True):
        _, rows = groups.setdefault(workload_of(run), (run, []))
        rows.append({**row, "method": method_words(run.method), "source": OURS})
    return groups


def _run_table(workload: str, rows: list[dict[str, Any]], beside: int | None) -> Table:
    notes = tuple(f"{row['method']}, {row['cache']}: {note}" for row in rows for note in row["notes"])
    if beside is None:
        return Table("runs", f"Methods on {workload}", RUN_COLUMNS, tuple(rows), notes, about=workload)
    columns = (("source", "Source", "{}"), *RUN_COLUMNS)
    title = f"Table {beside}. Methods on {workload}, beside the paper's {PLACES[beside].setting}"
    rows = [*rows, *table_rows(PLACES[beside])]
    return Table(f"table_{beside}", title, columns, tuple(rows), (*notes, BESIDE), about=workload)


def theory_table(run: Any, cost: CostModel | None = None) -> Table:
    """Table 5: the selection theory on the run's recorded pools, beside the paper's two workloads.

    cost: coefficients, the run's own where not given. Raises ValueError for a run without them or without routes.
    """
    from specfit.theory import table_5  # the solvers load only where they are used

    record: RunRecord = run_of(run)
    cost = cost or run_cost(record)
    if cost is None:
        raise ValueError("Table 5 needs cost coefficients, and this run's settings hold none; pass cost=")
    rows = []
    notes = []
    for row in table_5(record, cost):
        shown: dict[str, Any] = {"quantity": row.quantity}
        for name in ("ours", "summarization", "gsm8k"):
            values = getattr(row, name)
            shown[name] = " / ".join(f"{value:.{row.digits}f}" for value in values) or None
        rows.append(shown)
        if row.note:
            notes.append(f"{row.quantity}: {row.note}")
    columns = (
        ("quantity", "Recorded pools", "{}"),
        ("ours", "This run", "{}"),
        ("summarization", "Paper, summarization", "{}"),
        ("gsm8k", "Paper, GSM8K", "{}"),
    )
    about = f"{workload_of(record)}, {cache_of(record)}"
    if record.method != "specfit":
        about += f", {method_words(record.method)}"
    title = f"Table 5. Selection theory on recorded pools of {about}"
    return Table("table_5", title, columns, tuple(rows), tuple(notes), about=about)


def _cell(row: Mapping[str, Any], key: str, form: str) -> str:
    if key not in row:
        return "-"
    return "n/a" if row[key] is None else form.format(row[key])


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


def _latex(text: str) -> str:
    shown = "".join(LATEX.get(char, f"\\{char}" if char in "#$%&_{}" else char) for char in printable(text))
    return shown
