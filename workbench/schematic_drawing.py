"""Figure 1 on paper, by matplotlib: the tree on the left, the experts of every layer on the right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch, Patch, Rectangle

from workbench.paper_figures import RC
from workbench.theme import CELL_WORDS, CELLS, LIGHT, PAGE_IN, STATE_WORDS
from workbench.tree_layout import PILL

SMALL_PT, TITLE_PT = 5.5, 6.5
SHAPED_LAYERS = 24  # more leave a cell no room for a shape; then colour alone tells
FULL = {"hit_rejected": "hit", "miss_rejected": "miss", "ran_rejected": "ran"}  # the colour of half a cell
SHOWN = 10  # characters that a node has room for, its probability among them


def drawn(cycle: Mapping[str, Any], cells: np.ndarray) -> Figure:
    """A page-wide figure of `cycle_data` and `cell_codes`."""
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(PAGE_IN, 2.9), layout="constrained")
        tree, experts = figure.subplots(1, 2, width_ratios=(1.75, 1))
        _draw_tree(tree, cycle)
        _draw_map(experts, cycle, cells)
        return figure


def _draw_tree(axes: Any, cycle: Mapping[str, Any]) -> None:
    places = {-1: cycle["root"], **{node["id"]: node for node in cycle["nodes"]}}
    high = cycle["pill"]
    for node in cycle["nodes"]:
        up = places[node["parent"]]
        kept = node["state"] in ("accepted", "rejected")
        axes.plot(
            [up["x"] + PILL, node["x"]],
            [up["y"], node["y"]],
            color=LIGHT[node["state"]] if kept else LIGHT["line"],
            linewidth=1.4 if node["state"] == "accepted" else 0.7,
            linestyle="-" if kept else (0, (3, 2)),
            zorder=1,
        )
    for node in ({**cycle["root"], "state": "root", "p": None}, *cycle["nodes"]):
        state = node["state"]
        fill = {"root": LIGHT["ink"], "accepted": LIGHT["accepted"]}.get(state, LIGHT["page"])
        axes.add_patch(
            FancyBboxPatch(
                (node["x"], node["y"] - high / 2), PILL, high, boxstyle="round,pad=0,rounding_size=5", facecolor=fill,
                edgecolor=LIGHT["ink"] if state == "root" else LIGHT[state],
                linewidth=0.8, linestyle="-" if state in ("root", "accepted", "rejected") else (0, (3, 2)), zorder=2,
            )
        )  # fmt: skip
        ink = LIGHT["page"] if state in ("root", "accepted") else LIGHT["ink" if state == "rejected" else "muted"]
        p = node["p"]
        chance = "" if p is None else f"{p:.2f}".removeprefix("0") if p >= 0.005 else "<.01"
        look = {"va": "center", "color": ink, "fontsize": SMALL_PT, "zorder": 3}
        axes.text(node["x"] + 4, node["y"], _short(node["text"], SHOWN - len(chance)), **look)
        axes.text(node["x"] + PILL - 4, node["y"], chance, ha="right", **look)
    axes.set_xlim(0, cycle["width"])
    axes.set_ylim(cycle["height"] + 4, -4)
    axes.set_axis_off()
    said = dict(cycle["summary"])
    axes.set_title(
        f"draft {said['draft']}, select {said['select']}: R = {said['R expected']} tokens, T = {said['T predicted']}",
        fontsize=TITLE_PT,
    )
    drawn = {node["state"] for node in cycle["nodes"]}
    handles = [
        _key(LIGHT[state], STATE_WORDS[state], filled=state == "accepted", dashed=state in ("left_out", "undrafted"))
        for state in STATE_WORDS
        if state in drawn
    ]
    axes.legend(
        handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.01), ncols=4, fontsize=SMALL_PT, handlelength=1.2
    )


def _short(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: room - 1]}…"


def _draw_map(axes: Any, cycle: Mapping[str, Any], cells: np.ndarray) -> None:
    layers, experts = max(1, cycle["layers"]), max(1, cycle["experts"])
    grid = cells.reshape(layers, experts) if cells.size else np.zeros((layers, experts), np.uint8)
    told_by_shape = layers <= SHAPED_LAYERS
    if told_by_shape:
        _draw_shapes(axes, grid)
    else:
        colours = ListedColormap([LIGHT[name] for name in CELLS])
        axes.imshow(grid, cmap=colours, vmin=-0.5, vmax=len(CELLS) - 0.5, aspect="auto", interpolation="nearest")
    axes.locator_params(integer=True)
    axes.set_xlabel("expert")
    axes.set_ylabel("MoE layer")
    said = dict(cycle["summary"])
    title = f"verify {said['verify']}: {said['D executed']} experts, {said['misses']} copied"
    axes.set_title(title, fontsize=TITLE_PT)
    present = [CELLS[code] for code in np.unique(cells) if code]
    if present:
        handles = [_cell_key(name) if told_by_shape else _key(LIGHT[name], CELL_WORDS[name]) for name in present]
        axes.legend(
            handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.2), fontsize=SMALL_PT, handlelength=1.0,
            ncols=1 if any("known" in CELL_WORDS[name] for name in present) else 2, columnspacing=1.0,
        )  # fmt: skip


def _draw_shapes(axes: Any, grid: np.ndarray) -> None:
    """A cell for each expert that is not idle: whole where an accepted node needed it, the lower half where only
    rejected ones did, an outline where it was saved; so that a grey print tells them apart."""
    layers, experts = grid.shape
    axes.set_facecolor(LIGHT["idle"])
    axes.hlines(np.arange(1, layers) - 0.5, -0.5, experts - 0.5, color=LIGHT["page"], linewidth=0.8)
    for layer, expert in zip(*np.nonzero(grid), strict=True):
        name = CELLS[grid[layer, expert]]
        saved, half = name == "saved", name.endswith("_rejected")
        axes.add_patch(
            Rectangle(
                (expert - 0.4, layer if half else layer - 0.42), 0.8, 0.42 if half else 0.84,
                facecolor="none" if saved else LIGHT[FULL.get(name, name)],
                edgecolor=LIGHT["saved_line"] if saved else "none", linewidth=0.7,
            )
        )  # fmt: skip
    axes.set_xlim(-0.5, experts - 0.5)
    axes.set_ylim(layers - 0.5, -0.5)


def _cell_key(name: str) -> Any:
    """A legend's mark that looks like the cell."""
    style: Literal["none", "bottom", "full"] = (
        "none" if name == "saved" else "bottom" if name.endswith("_rejected") else "full"
    )
    colour = LIGHT["saved_line"] if name == "saved" else LIGHT[FULL.get(name, name)]
    edge = 0.7 if name == "saved" else 0
    return Line2D([], [], linestyle="", marker="s", markersize=4.5, fillstyle=style, color=colour, markeredgewidth=edge,
                  markerfacecoloralt="none", label=CELL_WORDS[name])  # fmt: skip


def _key(colour: str, words: str, *, filled: bool = True, dashed: bool = False) -> Any:
    return Patch(facecolor=colour if filled else "none", edgecolor=colour, label=words,
                 linestyle=(0, (2, 1)) if dashed else "-", linewidth=0.8)  # fmt: skip
