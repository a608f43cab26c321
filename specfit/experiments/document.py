"""A report as data: sections with tables, notes and pictures; as terminal text, Markdown, CSV and one HTML page.

Every text comes from models, files or people and is shown as data: control characters as escapes, marks of the format
made harmless. The HTML page stands alone: no script, no request, pictures inside; its own policy forbids the rest.
"""

from __future__ import annotations

import base64
import csv
import html
import io
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specfit.report import WIDTH, escape_markdown, printable, text_width

Column = tuple[str, str, str]  # key in a row, heading, format


@dataclass(frozen=True, slots=True)
class Grid:
    """A table: rows of values, of which the columns show some. A missing key is shown "-", None "n/a"."""

    name: str  # of its CSV file
    columns: tuple[Column, ...]
    rows: tuple[Mapping[str, Any], ...]

    def cells(self) -> list[list[str]]:
        """The heading and the rows as text."""
        return [
            [heading for _, heading, _ in self.columns],
            *([_cell(row, key, form) for key, _, form in self.columns] for row in self.rows),
        ]

    def csv(self) -> str:
        """All values at full precision; a text that a spreadsheet would run as a formula gets a leading quote."""
        keys = list(dict.fromkeys(key for row in self.rows for key in row))
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(keys)
        for row in self.rows:
            writer.writerow([_csv_cell(row.get(key)) for key in keys])
        return out.getvalue()


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawing as SVG, with its caption."""

    caption: str
    svg: bytes


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with what stands below it, in this order."""

    title: str
    text: tuple[str, ...] = ()  # paragraphs
    grid: Grid | None = None
    pictures: tuple[Picture, ...] = ()
    verbatim: str | None = None  # shown as it is, line breaks kept
    notes: tuple[str, ...] = ()  # a list


def as_text(sections: Sequence[Section]) -> str:
    """For a terminal; wide tables are not wrapped."""
    parts: list[str] = []
    for section in sections:
        title = printable(section.title)
        parts += [f"{title}\n{'=' * text_width(title)}", *(_filled(paragraph) for paragraph in section.text)]
        if section.grid is not None:
            parts.append(_aligned(section.grid.cells()))
        if section.verbatim is not None:
            parts.append(textwrap.indent(_lines(section.verbatim), "    "))
        parts += ["\n".join(_filled(f"- {note}") for note in section.notes)] if section.notes else []
    return "\n\n".join(parts) + "\n"


def as_markdown(sections: Sequence[Section], *, title: str) -> str:
    """One Markdown document."""
    parts = [f"# {escape_markdown(title)}"]
    for section in sections:
        parts += [f"## {escape_markdown(section.title)}", *map(escape_markdown, section.text)]
        if section.grid is not None:
            head, *body = [[escape_markdown(cell) for cell in line] for line in section.grid.cells()]
            lines = [head, ["---"] * len(head), *body]
            parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
        if section.verbatim is not None:
            parts.append(textwrap.indent(_lines(section.verbatim), "    "))
        if section.notes:
            parts.append("\n".join(f"- {escape_markdown(note)}" for note in section.notes))
    return "\n\n".join(parts) + "\n"


POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: .7rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .15rem .6rem; text-align: right; border-bottom: 1px solid #8884; white-space: nowrap; }
th:first-child, td:first-child, th:nth-child(2), td:nth-child(2) { text-align: left; }
pre { background: #8881; padding: .7rem; overflow-x: auto; white-space: pre-wrap; }
figure { margin: .7rem 0; } img { max-width: 100%; background: white; } .wide { overflow-x: auto; }
@media (prefers-color-scheme: dark) { body { background: #181818; color: #ddd; } }
"""


def as_html(sections: Sequence[Section], *, title: str) -> str:
    """One self-contained page."""
    name = _escape(title)
    parts = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(POLICY)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{name}</title><style>{STYLE}</style></head><body><h1>{name}</h1>",
    ]
    for section in sections:
        parts.append(f"<h2>{_escape(section.title)}</h2>")
        parts += [f"<p>{_escape(paragraph)}</p>" for paragraph in section.text]
        if section.grid is not None:
            parts.append(_html_table(section.grid.cells()))
        for picture in section.pictures:
            data = base64.b64encode(picture.svg).decode()
            caption = _escape(picture.caption)
            image = f'<img alt="{caption}" src="data:image/svg+xml;base64,{data}">'
            parts.append(f"<figure>{image}<figcaption>{caption}</figcaption></figure>")
        if section.verbatim is not None:
            parts.append(f"<pre>{html.escape(_lines(section.verbatim))}</pre>")
        if section.notes:
            parts.append(f"<ul>{''.join(f'<li>{_escape(note)}</li>' for note in section.notes)}</ul>")
    return "\n".join([*parts, "</body></html>\n"])


def _html_table(cells: list[list[str]]) -> str:
    head, *body = [[_escape(cell) for cell in line] for line in cells]
    rows = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in line)}</tr>\n" for line in body)
    names = "".join(f"<th>{cell}</th>" for cell in head)
    return f'<div class="wide"><table><thead><tr>{names}</tr></thead><tbody>\n{rows}</tbody></table></div>'


def _escape(text: str) -> str:
    return html.escape(printable(text))


def _lines(text: str) -> str:
    """Text with its line breaks kept and everything else that is not plain shown as an escape."""
    return "\n".join(printable(line) for line in text.split("\n"))


def _filled(text: str) -> str:
    return textwrap.fill(printable(text), WIDTH, subsequent_indent="  " if text.startswith("- ") else "")


def _aligned(cells: list[list[str]]) -> str:
    widths = [max(text_width(line[at]) for line in cells) for at in range(len(cells[0]))]

    def line(texts: list[str]) -> str:
        padded = (
            text + " " * (width - text_width(text)) if at < 2 else " " * (width - text_width(text)) + text
            for at, (text, width) in enumerate(zip(texts, widths, strict=True))
        )
        return "  ".join(padded).rstrip()

    return "\n".join([line(cells[0]), "  ".join("-" * width for width in widths), *map(line, cells[1:])])


def _cell(row: Mapping[str, Any], key: str, form: str) -> str:
    if key not in row:
        return "-"
    value = row[key]
    if value is None:
        return "n/a"
    return printable(value if isinstance(value, str) else form.format(value))


def _csv_cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, float):
        return format(value, ".10g")
    if isinstance(value, list | tuple):
        value = "; ".join(map(str, value))
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return f"'{value}"
    return value
