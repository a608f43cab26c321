"""Figure 1 from a real cycle: the drafted tree and the experts of every layer, as they were, step by step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from specfit.records import CycleRecord
from workbench.charts import rows_csv
from workbench.cycle_data import cell_codes, cycle_data
from workbench.mime import fitting
from workbench.residency import UNKNOWN, Residency


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
        from workbench.schematic_drawing import drawn

        return drawn(self.cycle, self.cells)

    def __repr__(self) -> str:
        return f"Schematic({self.title}, {len(self.cycle['nodes'])} nodes)"

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        from workbench.paper_figures import figure_bytes

        return {"text/plain": repr(self), "image/svg+xml": fitting(figure_bytes(self.matplotlib(), "svg").decode())}


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
