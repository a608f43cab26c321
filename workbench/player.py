"""The player: walk through a run's cycles, forwards, backwards or by what went wrong, one run or two side by side.

player = CyclePlayer("runs/specfit")                   # a run folder, a RunRecord, or a list of records
player = CyclePlayer("runs/specfit", "runs/eagle3")    # the same questions, moving together
player.cycle, player.request                           # what is on the screen, as plain records
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import ipywidgets

from specfit.objective import CostModel
from specfit.records import CycleRecord, RequestRecord, RunRecord
from workbench.closing import close_box, close_dress
from workbench.cycle_view import CycleView
from workbench.mime import widget_bundle
from workbench.run_side import RunSide


class CyclePlayer(ipywidgets.VBox):
    """A run to walk through; a second run beside it moves along the same text.

    run, other: a run folder, a RunRecord, or a list of requests or cycles. cost: coefficients where the run has none.
    tokens: texts of token ids for bare records.
    """

    def __init__(
        self,
        run: Any,
        other: Any = None,
        *,
        cost: CostModel | None = None,
        tokens: Mapping[int, str] | None = None,
    ) -> None:
        self.sides = [
            RunSide(source, cost=cost, tokens=tokens) for source in ([run] if other is None else [run, other])
        ]
        half = ipywidgets.Layout(flex="1 1 580px", min_width="0", overflow="visible")
        columns = [ipywidgets.VBox([side.strip, side.view], layout=half) for side in self.sides]
        row = ipywidgets.Layout(flex_flow="row wrap", overflow="visible", grid_gap="12px 28px")
        super().__init__([ipywidgets.HBox(columns, layout=row)], layout=ipywidgets.Layout(overflow="visible"))
        if len(self.sides) == 2:
            for side, twin in (self.sides, self.sides[::-1]):
                side.moved = partial(self._move_along, twin=twin)
                side.fuller = partial(_fullest_at, twin)
            self.sides[0].go(0)
            self._move_along(self.sides[0], self.sides[1])

    @property
    def run(self) -> RunRecord | None:
        """The (first) run."""
        return self.sides[0].run

    @property
    def cycle(self) -> CycleRecord | None:
        """The cycle on the screen, of the first run."""
        here = self.sides[0].here
        return None if here is None else here[2]

    @property
    def request(self) -> RequestRecord | None:
        """Its request."""
        here = self.sides[0].here
        return None if here is None else here[1]

    @property
    def view(self) -> CycleView:
        """The cycle view of the first run: `player.view.nodes`, `player.view.selection`, `player.view.frontier()`."""
        return self.sides[0].view

    def go(self, position: int) -> None:
        """Turn to a position of the first run's order."""
        self.sides[0].go(position)
        if len(self.sides) == 2:
            self._move_along(*self.sides)

    def filter(self, order: str, question: int = -1) -> None:
        """Walk through "all" cycles, those where "ar" would have been faster, or by the "gap" to EAGLE-3."""
        for side in self.sides:
            side.reorder(order, question)

    def close(self) -> None:
        """Close all parts."""
        super().close()
        for side in self.sides:
            side.close()
        close_box(self)
        close_dress(self)

    @staticmethod
    def _move_along(moved: RunSide, twin: RunSide) -> None:
        if moved.here is not None and twin.run is not None:
            _, request, cycle = moved.here
            twin.go_to_token(request.request_id, cycle.prefix_length)

    def __repr__(self) -> str:
        runs = [
            "no run"
            if side.run is None
            else f"{side.strip.name}, {len(side.run.requests)} requests, {len(side.cycles)} cycles"
            for side in self.sides
        ]
        return f"CyclePlayer({'; '.join(runs)})"

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        return widget_bundle(super()._repr_mimebundle_(**kwargs), text=repr(self), svg=self.view.svg())


def _fullest_at(side: RunSide, request: RequestRecord, cycle: CycleRecord) -> CycleRecord | None:
    """The record of `side`'s run that drafted most from the same place of the same text."""
    there = [
        other
        for _, asked, other in side.cycles
        if asked.request_id == request.request_id and other.prefix_length == cycle.prefix_length
    ]
    return max(there, key=lambda other: len(other.pool), default=None)
