"""Runs as the paper's tables: one row a run with the columns of Tables 2 and 3, and what a reader must know beside it.

`summary_rows` is data, `report` is text for a terminal (120 columns) or Markdown. Names come from models and files and
are shown as data: control and direction characters as escapes, Markdown and HTML marks made harmless.
"""

from __future__ import annotations

import json
import textwrap
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from specfit.metrics import DRIFT, RunMetrics, Speedup, measure, speedup
from specfit.records import RunRecord

WIDTH = 120
# What must be alike before two runs are compared; the method, its knobs and its coefficients may differ.
SAME = (
    *("target", "workload", "limits", "slots_per_layer", "cleared", "link", "device", "dtype", "experts", "seed"),
    "order",
)
BASELINE = "ar"

# key in a row, heading, format
COLUMNS = (
    ("method", "method", "{}"),
    ("cache", "cache", "{}"),
    ("decode_tps", "TPS", "{:.2f}"),
    ("speedup", "speed-up", "{:.2f}x"),
    ("draft_nodes", "nodes", "{:.2f}"),
    ("committed", "committed", "{:.2f}"),
    ("cycles", "cycles", "{}"),
    ("cycle_ms", "ms/cycle", "{:.1f}"),
    ("draft_ms", "draft", "{:.1f}"),
    ("select_ms", "select", "{:.2f}"),
    ("verify_ms", "verify", "{:.1f}"),
    ("commit_ms", "commit", "{:.1f}"),
    ("h2d_per_token", "H2D/token", "{:.1f}"),
    ("hit_rate", "hits", "{:.0%}"),
)


def summary_rows(runs: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """One dict a run, in order: the columns, and workload, request_tps, accepted, accepted_share, mean_of_ratios,
    slower_than_ar, predicted_ms, measured_ms, complete and notes. Undefined values are None, with the reason in notes.

    The speed-up is over the AR run among `runs` with the same target, workload, cache and link: decode throughput over
    decode throughput, as in the paper (ratio of sums); mean_of_ratios weighs every request alike instead.
    """
    return [_row(run, _baseline(run, runs)) for run in runs]


def report(runs: Sequence[RunRecord], *, style: str = "text") -> str:
    """A table for every workload with its notes, as "text" or "markdown"."""
    if style not in ("text", "markdown"):
        raise ValueError(f"a report's style is 'text' or 'markdown'; got {style!r}")
    if not runs:
        return "No runs to report.\n"
    groups: dict[str, list[dict[str, Any]]] = {}
    for row, named in zip(summary_rows(runs), told_apart(runs), strict=True):
        groups.setdefault(row["workload"], []).append({**row, "method": named.method})
    parts = []
    for workload, rows in groups.items():
        title = printable(workload)
        parts.append(f"## {escape_markdown(title)}" if style == "markdown" else title)
        parts.append(table(rows, style=style))
        told = [f"{row['method']}, {row['cache']}: {'; '.join(row['notes'])}" for row in rows if row["notes"]]
        parts.append(_notes(told, style=style))
    parts.append(_notes([*link_notes(runs), *DEFINITIONS], style=style))
    return "\n\n".join(part for part in parts if part) + "\n"


DEFINITIONS = (
    "TPS: output tokens after the first per second outside prefill (Eq. 10). Speed-up: TPS over AR's with the same "
    "cache and link, a ratio of sums. Nodes, committed, ms: means per target verification cycle; committed counts the "
    "accepted nodes and one more token. H2D/token: expert copies per output token, prefill included. Hits: share of "
    "executed experts found in a slot, prefill apart.",
)


def table(rows: Sequence[Mapping[str, Any]], *, style: str = "text") -> str:
    """Rows of `summary_rows` as an aligned table, "text" (at most 120 columns) or "markdown"."""
    cells = [[heading for _, heading, _ in COLUMNS]]
    for row in rows:
        cells.append([_cell(row[key], form) for key, _, form in COLUMNS])
    if style == "markdown":
        lines = [f"| {' | '.join(escape_markdown(cell) for cell in line)} |" for line in cells]
        rule = f"|{'|'.join('---' if key in ('method', 'cache') else '---:' for key, _, _ in COLUMNS)}|"
        return "\n".join([lines[0], rule, *lines[1:]])
    numbers = sum(max(text_width(line[at]) for line in cells) for at in range(2, len(COLUMNS)))
    room = max(10, WIDTH - numbers - 10 - (len(COLUMNS) - 1))  # for the method, beside a cache of 10 and the gaps
    cells = [[clip(line[0], room), clip(line[1], 10), *line[2:]] for line in cells]
    widths = [max(text_width(line[at]) for line in cells) for at in range(len(COLUMNS))]
    gap = "  " if sum(widths) + 2 * (len(widths) - 1) <= WIDTH else " "
    lines = [gap.join(_pad(cell, widths[at], left=at < 2) for at, cell in enumerate(line)).rstrip() for line in cells]
    return "\n".join([lines[0], gap.join("-" * width for width in widths), *lines[1:]])


# -- rows ------------------------------------------------------------------------------------------------------------


def _row(run: RunRecord, baseline: RunRecord | None) -> dict[str, Any]:
    metrics = measure(run)
    gain = None if baseline is None else speedup(run, baseline)
    shown = (
        *("decode_tps", "request_tps", "draft_nodes", "accepted", "accepted_share", "committed", "cycles", "cycle_ms"),
        *(
            "draft_ms",
            "select_ms",
            "verify_ms",
            "commit_ms",
            "h2d_per_token",
            "hit_rate",
            "predicted_ms",
            "measured_ms",
        ),
    )
    return {
        "workload": _workload(run),
        "method": run.method,
        "cache": cache_name(run),
        "requests": metrics.requests,
        **{name: getattr(metrics, name) for name in shown},
        "speedup": gain and gain.ratio_of_sums,
        "mean_of_ratios": gain and gain.mean_of_ratios,
        "slower_than_ar": gain is not None and gain.slower,
        "complete": run.complete,
        "notes": tuple(_row_notes(run, metrics, gain)),
    }


def _row_notes(run: RunRecord, metrics: RunMetrics, gain: Speedup | None) -> list[str]:
    notes = []
    if not run.complete:
        notes.append(f"the run is not complete, {metrics.requests} requests are finished")
    if gain is None:
        notes.append("no speed-up, because no AR run with the same workload, cache and link is given")
    elif run.method != BASELINE:
        if gain.slower:
            notes.append(f"SLOWER THAN AR ({gain.ratio_of_sums:.2f}x)")
        if gain.mean_of_ratios is not None:
            notes.append(f"mean of the requests' own speed-ups {gain.mean_of_ratios:.2f}x")
        notes += gain.notes
    if metrics.drift is not None:
        notes.append(
            f"predicted {metrics.predicted_ms:.1f} ms, measured {metrics.measured_ms:.1f} ms a cycle without the "
            f"selector ({round(metrics.drift, 2) + 0:+.0%})"
        )
    if metrics.warning:
        notes.append(f"WARNING: more than {DRIFT:.0%} apart, so calibrate again on this machine and settings")
    shown = {key: heading for key, heading, _ in COLUMNS}
    reasons: dict[str, list[str]] = {}
    for field, reason in metrics.reasons.items():
        if field in shown:
            reasons.setdefault(reason, []).append(shown[field])
    notes += [f"no {', '.join(headings)}, because {reason}" for reason, headings in reasons.items()]
    if "other_machines" in run.machine:
        notes.append("parts of the run come from another machine or other versions, so its times may not compare")
    return notes


def _baseline(run: RunRecord, runs: Sequence[RunRecord]) -> RunRecord | None:
    found = [other for other in runs if other.method == BASELINE and alike(run, other)]
    return run if run in found else found[0] if found else None


def alike(run: RunRecord, other: RunRecord) -> bool:
    """Whether two runs may be compared: all alike but the method, its knobs and its coefficients."""
    return all(run.settings.get(key) == other.settings.get(key) for key in SAME)


def _workload(run: RunRecord) -> str:
    workload = run.settings.get("workload", "unnamed workload")
    return str(workload.get("name", workload)) if isinstance(workload, Mapping) else str(workload)


def cache_name(run: RunRecord) -> str:
    """The cache column: "24 slots", or "cleared" when it is emptied before every target forward."""
    if run.settings.get("cleared"):
        return "cleared"
    slots = run.settings.get("slots_per_layer")
    return "?" if slots is None else f"{slots} slots"


def label(run: RunRecord) -> str:
    """The method, with its routes where they are not those of an atlas or a world, and its seed where it is not 0."""
    routes, words = run.settings.get("routes"), [run.method]
    if isinstance(routes, Mapping):
        source, accuracy = str(routes.get("source")), float(routes.get("accuracy", 1.0))
        if source not in ("atlas", "target", "world"):
            words.append(f"{source} routes")
        elif accuracy < 1:
            words.append(f"{accuracy:.0%} right routes")
    if run.settings.get("seed"):
        words.append(f"seed {run.settings['seed']}")
    return ", ".join(words)


def told_apart(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """The runs under names that tell them apart: their `label` where routes or seeds differ within a method, and a
    number where even so two are of one workload and cache."""
    labels: dict[str, set[str]] = {}
    for run in runs:
        labels.setdefault(run.method, set()).add(label(run))
    seen: Counter[tuple[str, str, str]] = Counter()
    named = []
    for run in runs:
        name = label(run) if len(labels[run.method]) > 1 else run.method
        place = _workload(run), cache_name(run), name
        seen[place] += 1
        if seen[place] > 1:
            name = f"{name}, run {seen[place]}"
        named.append(run if name == run.method else replace(run, settings={**run.settings, "method": name}))
    return named


def link_notes(runs: Sequence[RunRecord]) -> list[str]:
    """What is emulated, and how; one sentence for each kind of link."""
    notes: dict[str, None] = {}
    for run in runs:
        link = run.settings.get("link")
        link = link if isinstance(link, Mapping) else {"kind": "unknown" if link is None else str(link)}
        values = ", ".join(f"{key} {json.dumps(value)}" for key, value in link.items() if key != "kind")
        values = f" ({values})" if values else ""
        notes[
            {
                "emulated": f"EMULATED LINK{values}: copies wait for the deadlines of a described host-to-device link; "
                "all times with this link depend on that description",
                "cuda": f"Link: CUDA copies from host memory{values}.",
                "modelled": f"MODELLED TIMES{values}: computed from counts for a described machine, not measured.",
                "none": f"No host-to-device link{values}: experts are copied within memory, as fast as that goes.",
            }.get(str(link.get("kind")), f"Link: {link.get('kind')}{values}.")
        ] = None
    return list(notes)


# -- text ------------------------------------------------------------------------------------------------------------


def printable(text: str) -> str:
    r"""`text` with every control, direction, separator and unassigned character as an escape such as \u202e."""
    return "".join(
        character if unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
        else character.encode("unicode_escape").decode("ascii")
        for character in text
    )  # fmt: skip


def escape_markdown(text: str) -> str:
    """`text` so that Markdown shows it as it is, in tables too."""
    text = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\\{character}" if character in "\\`*_{}[]#|~" else character for character in text)


def text_width(text: str) -> int:
    """Columns that a terminal takes for `text`: wide East Asian characters take two, combining ones none."""
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )


def clip(text: str, width: int) -> str:
    """`text` in at most `width` columns, with an ellipsis where something is cut."""
    if text_width(text) <= width:
        return text
    while text_width(text) > width - 1:
        text = text[:-1]
    return f"{text}\N{HORIZONTAL ELLIPSIS}"


def _cell(value: Any, form: str) -> str:
    return "n/a" if value is None else printable(form.format(value))


def _pad(text: str, width: int, *, left: bool) -> str:
    space = " " * (width - text_width(text))
    return text + space if left else space + text


def _notes(notes: Sequence[str], *, style: str) -> str:
    """Notes as a list, each once."""
    lines = [printable(note) for note in dict.fromkeys(notes)]
    if style == "markdown":
        return "\n".join(f"- {escape_markdown(line)}" for line in lines)
    return "\n".join(textwrap.fill(line, WIDTH, subsequent_indent="  ") for line in lines)
