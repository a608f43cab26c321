"""Figure 1 from a real cycle: the drafted tree and the experts of every layer, as they were, step by step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from specfit.records import CycleRecord
from workbench.charts import rows_csv
from workbench.cycle_data import cell_codes, cycle_data
from workbench.residency import UNKNOWN, Residency
from workbench.theme import CELL_WORDS, CELLS, LIGHT, PAGE_IN, STATE_WORDS
from workbench.tree_layout import PILL


@dataclass(frozen=True, slots=True)
class Schematic:
    """One cycle as a printed figure; draws and exports itself like a Chart."""

    name: str
    title: str
    cycle: Mapping[str, Any]  # `cycle_data`
    cells: np.ndarray  # `cell_codes`
    notes: tuple[str, ...] = ()
    empty: bool = False
    about: str = ""

    @property
    def rows(self) -> tuple[Mapping[str, Any], ...]:
        """A row a node."""
        keys = ("id", "parent", "level", "text", "p", "state")
        return tuple({key: node[key] for key in keys} for node in self.cycle["nodes"])

    def csv(self) -> str:
        """The nodes as CSV."""
        return rows_csv(self.rows)

    def matplotlib(self) -> Any:
        """A page-wide matplotlib Figure."""
        import matplotlib
        from matplotlib.figure import Figure

        from workbench.paper_figures import RC

        with matplotlib.rc_context(RC):
            figure = Figure(figsize=(PAGE_IN, 2.9), layout="constrained")
            tree, experts = figure.subplots(1, 2, width_ratios=(1.45, 1))
            _draw_tree(tree, self.cycle)
            _draw_map(experts, self.cycle, self.cells)
            return figure

    def __repr__(self) -> str:
        return f"Schematic({self.title}, {len(self.cycle['nodes'])} nodes)"

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        from workbench.paper_figures import figure_bytes

        return {"text/plain": repr(self), "image/svg+xml": figure_bytes(self.matplotlib(), "svg").decode()}


def schematic(
    cycle: CycleRecord,
    *,
    tokens: Mapping[int, str],
    residency: Residency = UNKNOWN,
    title: str = "Figure 1. One decoding cycle",
) -> Schematic:
    """Figure 1 of this cycle."""
    return Schematic(
        "figure_1_cycle", title, cycle_data(cycle, tokens=tokens), cell_codes(cycle, cycle.selection.nodes, residency)
    )


def _draw_tree(axes: Any, cycle: Mapping[str, Any]) -> None:
    from matplotlib.patches import FancyBboxPatch

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
        text = node["text"] if node["p"] is None else f"{node['text']}  {node['p']:.2f}"
        axes.text(node["x"] + PILL / 2, node["y"], text, ha="center", va="center", color=ink, fontsize=5, zorder=3)
    axes.set_xlim(0, cycle["width"])
    axes.set_ylim(cycle["height"] + 4, -4)
    axes.set_axis_off()
    said = dict(cycle["summary"])
    axes.set_title(
        f"draft {said['draft']}, select {said['select']}: R = {said['R expected']}, T = {said['T predicted']}",
        fontsize=6.5,
    )
    drawn = {node["state"] for node in cycle["nodes"]}
    handles = [
        _key(LIGHT[state], STATE_WORDS[state], filled=state == "accepted") for state in STATE_WORDS if state in drawn
    ]
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.01), ncols=4, fontsize=5, handlelength=1.2)


def _draw_map(axes: Any, cycle: Mapping[str, Any], cells: np.ndarray) -> None:
    from matplotlib.colors import ListedColormap

    grid = cells.reshape(cycle["layers"], cycle["experts"]) if cycle["layers"] else np.zeros((1, 1))
    axes.imshow(
        grid, cmap=ListedColormap([LIGHT[name] for name in CELLS]), vmin=-0.5, vmax=len(CELLS) - 0.5, aspect="auto",
        interpolation="nearest",
    )  # fmt: skip
    axes.locator_params(integer=True)
    axes.set_xlabel("expert")
    axes.set_ylabel("MoE layer")
    said = dict(cycle["summary"])
    axes.set_title(f"verify {said['verify']}: {said['D executed']} experts, {said['misses']} copied", fontsize=6.5)
    present = [CELLS[code] for code in np.unique(cells) if code]
    handles = [_key(LIGHT[name], CELL_WORDS[name], filled=True) for name in present]
    if handles:
        axes.legend(
            handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2, fontsize=5, handlelength=1.0
        )


def _key(colour: str, words: str, *, filled: bool) -> Any:
    from matplotlib.patches import Patch

    return Patch(facecolor=colour if filled else "none", edgecolor=colour, label=words)
