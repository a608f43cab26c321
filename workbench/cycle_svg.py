"""A cycle as a static picture: what a page shows where no widget runs (GitHub, an HTML export, a reopened notebook).

Drawn from the same values as the widget, always on its own light ground, and small: cells of one kind are one path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

import numpy as np

from workbench.cycle_data import COLUMNS
from workbench.theme import CELL_WORDS, CELLS, LIGHT, STATE_WORDS
from workbench.tree_layout import PILL

GAP, PAD, LINE = 34, 6, 17
BESIDE = 640  # widest picture in which the map stands beside the tree; else below, as paper is narrow
COLUMN_ENDS = (120, 170, 230, 310, 375, 475, 555)  # of the numbers of the table
SANS = "system-ui, 'DejaVu Sans', sans-serif"
MONO = "ui-monospace, 'DejaVu Sans Mono', monospace"
MARKS = {"accepted": "✓", "rejected": "✕"}


def cycle_svg(cycle: Mapping[str, Any], shown: Mapping[str, Any], cells: np.ndarray) -> str:
    """The tree, the map, the comparison and the summary of `cycle_data`, `shown_data` and `cell_codes`."""
    side = cell_size(cycle["layers"], cycle["experts"])
    map_wide, map_high = side[0] * cycle["experts"] + 30, side[1] * cycle["layers"]
    beside = cycle["width"] + GAP + map_wide <= BESIDE
    map_x, map_y = (cycle["width"] + GAP, 0.0) if beside else (0.0, cycle["height"] + 2 * LINE)
    wide = max(600.0, map_x + map_wide if beside else max(cycle["width"], map_wide))
    below = max(cycle["height"] + LINE, map_y + map_high + LINE)
    parts = [_text(0, -8, cycle["title"][: int(wide / 7)], weight="600")] if cycle["title"] else []
    parts += [*_tree(cycle), f'<g transform="translate({map_x:g} {map_y:g})">', *_map(cycle, cells, side), "</g>"]
    entries = [*_state_keys(cycle), *_cell_keys(shown)]
    for keys in _legend(entries, wide):
        parts += [f'<g transform="translate(0 {below:g})">', *keys, "</g>"]
        below += LINE
    below += 6
    for line in _summary(cycle, int(wide / 7)):
        parts.append(_text(0, below, line))
        below += LINE
    below += 4
    for row, texts in enumerate([COLUMNS, *shown["rows"]]):
        parts += _table_row(texts, below, head=not row)
        below += LINE
    box = f"{-PAD} {-PAD - LINE} {wide + 2 * PAD:g} {below + 2 * PAD + LINE:g}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" width="{wide + 2 * PAD:g}" '
        f'height="{below + 2 * PAD + LINE:g}" font-family="{SANS}" role="img" '
        f'aria-label="{_quoted(cycle["title"] or "a decode cycle")}">'
        f'<rect x="{-PAD}" y="{-PAD - LINE}" width="100%" height="100%" fill="{LIGHT["page"]}"/>'
        + "".join(parts)
        + "</svg>"
    )


def cell_size(layers: int, experts: int) -> tuple[int, int]:
    """Width and height of an expert's cell, pixels."""
    wide = max(3, min(14, 420 // max(1, experts)))
    return wide, max(3, min(14, 400 // max(1, layers), 2 * wide))


def _tree(cycle: Mapping[str, Any]) -> list[str]:
    nodes, high = cycle["nodes"], cycle["pill"]
    places = {-1: cycle["root"], **{node["id"]: node for node in nodes}}
    parts = []
    for node in nodes:
        up = places[node["parent"]]
        x1, y1, x2, y2 = up["x"] + PILL, up["y"], node["x"], node["y"]
        bend = (x1 + x2) / 2
        stroke, width, dash = {
            "accepted": (LIGHT["accepted"], 2.6, ""),
            "rejected": (LIGHT["rejected"], 1.6, ""),
            "left_out": (LIGHT["line"], 1.2, "4 3"),
            "undrafted": (LIGHT["line"], 1.2, "1 3"),
        }[node["state"]]
        parts.append(
            f'<path d="M{x1:g} {y1:g}C{bend:g} {y1:g} {bend:g} {y2:g} {x2:g} {y2:g}" fill="none" stroke="{stroke}" '
            f'stroke-width="{width}"{_dash(dash)}/>'
        )
    for node in ({**cycle["root"], "state": "root", "p": None}, *nodes):
        state, x, y = node["state"], node["x"], node["y"]
        fill = {"root": LIGHT["ink"], "accepted": LIGHT["accepted"]}.get(state, LIGHT["page"])
        stroke = LIGHT["ink"] if state == "root" else LIGHT[state]
        ink = LIGHT["page"] if state in ("root", "accepted") else LIGHT["ink" if state == "rejected" else "muted"]
        dash = {"left_out": "4 3", "undrafted": "1 3"}.get(state, "")
        parts.append(
            f'<g><title>{escape(node["whole"])}: {STATE_WORDS[state]}</title><rect x="{x:g}" y="{y - high / 2:g}" '
            f'width="{PILL}" height="{high:g}" rx="5" fill="{fill}" stroke="{stroke}"{_dash(dash)}/>'
        )
        if node["p"] is not None:
            wide = max(2.0, (PILL - 2) * node["p"])
            parts.append(
                f'<rect x="{x + 1:g}" y="{y - high / 2 + 1:g}" width="{wide:.1f}" height="{high - 2:g}" rx="4" '
                f'fill="{ink}" opacity="0.2"/>'
            )
        parts.append(_text(x + 7, y + 3.6, node["text"], size=11 if high >= 18 else 10, fill=ink, mono=True))
        if state in MARKS:
            parts.append(_text(x + PILL - 13, y + 3, MARKS[state], size=9, fill=ink))
        parts.append("</g>")
    return parts


def _map(cycle: Mapping[str, Any], cells: np.ndarray, side: tuple[int, int]) -> list[str]:
    layers, experts = cycle["layers"], cycle["experts"]
    if not layers:
        return []
    wide, high = side
    gap = 1 if min(side) >= 6 else 0
    grid = cells.reshape(layers, experts)
    parts = [
        f'<rect x="30" y="0" width="{wide * experts}" height="{high * layers}" fill="{LIGHT["idle"]}"/>',
    ]
    for code, name in enumerate(CELLS[1:], start=1):
        path = "".join(
            f"M{30 + wide * first} {high * layer}h{wide * count - gap}v{high - gap}h{gap - wide * count}z"
            for layer, first, count in _stretches(grid == code, joined=not gap)
        )
        if path:
            parts.append(f'<path d="{path}" fill="{LIGHT[name]}"/>')
    step = -(-13 // high)
    for layer in range(0, layers, step):
        parts.append(_text(25, high * layer + high / 2 + 3, f"L{layer}", size=9, fill=LIGHT["muted"], end=True))
    return parts


def _stretches(mask: np.ndarray, *, joined: bool) -> list[tuple[int, int, int]]:
    """(layer, first expert, count) of set cells, neighbours in one stretch where there is no gap between cells."""
    if not joined:
        return [(int(layer), int(expert), 1) for layer, expert in np.argwhere(mask)]
    edges = np.diff(np.pad(mask.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    starts, ends = np.argwhere(edges == 1), np.argwhere(edges == -1)
    return [(int(a[0]), int(a[1]), int(b[1] - a[1])) for a, b in zip(starts, ends, strict=True)]


def _state_keys(cycle: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(a key's drawing, its words) of the states that the tree has."""
    keys = []
    present = {"root", *(node["state"] for node in cycle["nodes"])}
    for state in (state for state in STATE_WORDS if state in present):
        colour = LIGHT["ink"] if state == "root" else LIGHT[state]
        fill = colour if state in ("root", "accepted") else LIGHT["page"]
        dash = _dash({"left_out": "3 2", "undrafted": "1 2"}.get(state, ""))
        keys.append((f'<rect y="-8" width="18" height="9" rx="4" fill="{fill}" stroke="{colour}"{dash}/>',
                     STATE_WORDS[state]))  # fmt: skip
    return keys


def _cell_keys(shown: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The same of the kinds of experts that the map has, with their number."""
    return [
        (f'<rect x="7" y="-9" width="11" height="11" fill="{LIGHT[name]}"/>', f"{CELL_WORDS[name]} {count}")
        for name, count in shown["counts"].items()
        if name != "idle" and count
    ] or [("", "no routes recorded")]


def _legend(entries: list[tuple[str, str]], wide: float) -> list[list[str]]:
    """Keys and words in as many rows as `wide` pixels need."""
    rows: list[list[str]] = [[]]
    x = 0.0
    for key, words in entries:
        needed = 24 + 7 * len(words) + 16
        if x and x + needed > wide:
            rows, x = [*rows, []], 0.0
        rows[-1].append(f'<g transform="translate({x:g} 0)">{key}{_text(24, 0, words, fill=LIGHT["muted"])}</g>')
        x += needed
    return rows


def _summary(cycle: Mapping[str, Any], most: int) -> list[str]:
    """The summary in lines of at most `most` characters."""
    lines: list[str] = []
    for name, value in cycle["summary"]:
        pair = f"{name} {value}"
        if lines and len(lines[-1]) + 3 + len(pair) <= most:
            lines[-1] += f" · {pair}"
        else:
            lines.append(pair)
    return lines


def _table_row(cells: Sequence[str], y: float, *, head: bool) -> list[str]:
    """The name on the left, the numbers ending below each other."""
    ink = LIGHT["muted"] if head else LIGHT["ink"]
    ends = [_text(x, y, cell, fill=ink, end=True) for x, cell in zip(COLUMN_ENDS, cells[1:], strict=True)]
    return [_text(0, y, cells[0], weight="600"), *ends]


def _text(
    x: float,
    y: float,
    text: str,
    *,
    size: int = 12,
    fill: str = LIGHT["ink"],
    mono: bool = False,
    end: bool = False,
    weight: str = "",
) -> str:
    more = (' text-anchor="end"' if end else "") + (f' font-weight="{weight}"' if weight else "")
    more += f' font-family="{MONO}"' if mono else ""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{fill}"{more} '
        f'style="unicode-bidi:isolate">{escape(text)}</text>'
    )


def _dash(dash: str) -> str:
    return f' stroke-dasharray="{dash}"' if dash else ""


def _quoted(text: str) -> str:
    return escape(text, {'"': "&quot;"})
