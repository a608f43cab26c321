"""Colours, sizes and words that every picture of the workbench shares.

The colours are told apart by people with any common colour blindness, and by lightness alone in a grey print; the
states of nodes differ in line and mark as well. Widgets get the colours as CSS variables, for a light and a dark page.
"""

from __future__ import annotations

from pathlib import Path

STATES = ("accepted", "rejected", "left_out", "undrafted")  # of a node; the texts of the legend are below
STATE_WORDS = {
    "root": "pending token (root)",
    "accepted": "accepted",
    "rejected": "selected, rejected",
    "left_out": "drafted, left out",
    "undrafted": "never drafted",
}
CELLS = ("idle", "hit", "miss", "ran", "hit_rejected", "miss_rejected", "ran_rejected", "saved")  # codes 0..7
CELL_WORDS = {
    "idle": "not needed",
    "hit": "resident (hit)",
    "miss": "copied (miss)",
    "ran": "executed, hit or miss not known",
    "hit_rejected": "hit, only for rejected nodes",
    "miss_rejected": "miss, only for rejected nodes",
    "ran_rejected": "executed only for rejected nodes, hit or miss not known",
    "saved": "saved by leaving nodes out",
}
LIGHT = {
    "page": "#ffffff",
    "ink": "#1b1f24",
    "muted": "#5c636b",
    "line": "#c9ced4",
    "accepted": "#00765a",
    "on_accepted": "#ffffff",
    "rejected": "#b34700",
    "left_out": "#5c636b",
    "undrafted": "#80868d",
    "picked": "#6a3d9a",
    "idle": "#f1f3f5",
    "hit": "#0a5f9e",
    "miss": "#e1702a",
    "ran": "#6d6391",
    "hit_rejected": "#8fc1e3",
    "miss_rejected": "#f7c39a",
    "ran_rejected": "#c3bcd9",
    "saved": "#a3dbb5",
    "saved_line": "#2f9e6e",  # where a saved expert is an outline
    "lit": "#111111",
    "even": "#dcebf7",
    "odd": "#fbe6d6",
    "stage_draft": "#8fc1e3",
    "stage_select": "#6a3d9a",
    "stage_verify": "#0a5f9e",
    "stage_commit": "#7cc79a",
}
DARK = {
    "page": "#111111",
    "ink": "#e8eaed",
    "muted": "#a3a9b0",
    "line": "#4a4f55",
    "accepted": "#3ecf9f",
    "on_accepted": "#06251b",
    "rejected": "#ff9a52",
    "left_out": "#a3a9b0",
    "undrafted": "#868c93",
    "picked": "#cfa6ff",
    "idle": "#1e2124",
    "hit": "#5bb4f0",
    "miss": "#f58b45",
    "ran": "#a89ed0",
    "hit_rejected": "#285c80",
    "miss_rejected": "#84491f",
    "ran_rejected": "#544c75",
    "saved": "#1f6347",
    "saved_line": "#2fa574",
    "lit": "#ffffff",
    "even": "#183246",
    "odd": "#43291a",
    "stage_draft": "#a9d4f2",
    "stage_select": "#cfa6ff",
    "stage_verify": "#3d8fc9",
    "stage_commit": "#3ecf9f",
}
METHOD_WORDS = {"ar": "AR", "eagle3": "EAGLE-3", "specfit": "SpecFit"}
METHOD_COLOURS = {"ar": "#8c8c8c", "eagle3": "#e1702a", "specfit": "#0a5f9e"}
OTHER_COLOURS = ("#00765a", "#6a3d9a", "#b34700", "#4d4d4d")  # methods beyond the paper's three, in order
STAGE_COLOURS = {stage: LIGHT[f"stage_{stage}"] for stage in ("draft", "select", "verify", "commit")}

COLUMN_IN, PAGE_IN = 3.25, 6.75  # widths of a paper's column and page, inches
FONT = "DejaVu Sans"  # ships with matplotlib, so a figure has the same bytes everywhere
FONT_PT = 7.0


def method_words(method: str) -> str:
    """A method's name as people write it."""
    name, comma, rest = method.partition(", ")  # as in "specfit, 60% right routes"
    return f"{METHOD_WORDS.get(name, name)}{comma}{rest}"


def method_colour(method: str, others: tuple[str, ...] = ()) -> str:
    """A method's colour; `others` are the methods beyond the paper's three, in the order of the figure."""
    if method in METHOD_COLOURS:
        return METHOD_COLOURS[method]
    return OTHER_COLOURS[(others.index(method) if method in others else 0) % len(OTHER_COLOURS)]


def widget_css(name: str) -> str:
    """The style sheet of one widget: `name`.css of this folder behind the colours as variables, light and dark."""
    light, dark = (
        "".join(f"--sf-{key.replace('_', '-')}:{value};" for key, value in colours.items()) for colours in (LIGHT, DARK)
    )
    ours = ":is(.specfit, .sf-status)"
    dark_pages = f'[data-jp-theme-light="false"] {ours}, [data-vscode-theme-kind="vscode-dark"] {ours}'
    return (
        f"{ours}{{{light}}}\n{dark_pages}{{{dark}}}\n"
        + Path(__file__).with_name("widgets.css").read_text(encoding="utf-8")
        + Path(__file__).with_name(f"{name}.css").read_text(encoding="utf-8")
    )
