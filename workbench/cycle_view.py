"""The cycle view: one draft tree beside the experts that every layer executes, with what-if.

    view = CycleView(cycle, tokens=run.tokens, cost=cost)
    view.nodes        # the subtree that is looked at: the run's choice, or what was clicked together
    view.selection    # what it is worth: R, T, ratio, union, misses, and what it would have committed
    view.frontier()   # all legal subtrees as (T, R), moving with the view

The browser draws and lights up; every number comes from here, from the core's own formulas.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import anywidget
import numpy as np
import traitlets

from specfit.objective import CostModel
from specfit.records import CycleRecord
from specfit.tree import check_legal
from workbench.choices import Choice, choice, deeper
from workbench.cycle_data import COLUMNS, cell_codes, cycle_data, route_rows, shown_data
from workbench.cycle_svg import cycle_svg
from workbench.mime import widget_bundle
from workbench.residency import UNKNOWN, Residency
from workbench.theme import CELL_WORDS, widget_css

HERE = Path(__file__).parent


def script(*names: str) -> str:
    """One ESM of several files of this folder; the last one exports `render`."""
    return "\n".join((HERE / name).read_text(encoding="utf-8") for name in names)


class CycleView(anywidget.AnyWidget):
    """A decode cycle to look at and to play with.

    cycle: the record, or None for an empty view that `show` fills. tokens: text of token ids. cost: coefficients, or
    None if T is not to be known. max_nodes: K of what-if trees. residency: what was in the cache before the cycle.
    fuller: a record of the same place whose pool goes deeper; its further nodes show as never drafted, and EAGLE-3's
    row is made from it.
    """

    _esm = script("dom.js", "draft_tree.js", "expert_map.js", "cycle_view.js")
    _css = widget_css("cycle_view")

    cycle = traitlets.Dict().tag(sync=True)
    """The tree and the recorded numbers, as `cycle_data` gives them; empty for nothing to show."""
    bitmaps = traitlets.Bytes(b"").tag(sync=True)
    """Experts of the root and every drafted node, ceil(layers * experts / 8) bytes each, little bit order."""
    nodes = traitlets.Tuple(()).tag(sync=True)
    """Node ids of the subtree that is looked at, sorted. Set it to look at another; ValueError if it is not legal."""
    shown = traitlets.Dict().tag(sync=True)
    """What depends on `nodes`: comparison rows, counts of the map, accepted path (`shown_data`)."""
    cells = traitlets.Bytes(b"").tag(sync=True)
    """What each expert does if `nodes` are verified, one byte each (`cell_codes`)."""
    max_nodes = traitlets.Int(7).tag(sync=True)
    """K, the most nodes of a what-if tree."""
    words = traitlets.Dict({"cells": CELL_WORDS, "columns": list(COLUMNS)}).tag(sync=True)
    """Words of the legend and the table's head."""
    notice = traitlets.Unicode("").tag(sync=True)
    """A sentence above the view, for what a person must know; empty for none."""
    asked = traitlets.Dict().tag(sync=True)
    """From the browser: {"nodes": [...], "seq": the drawing it was clicked in, "nth": what tells it from others}."""
    answered = traitlets.Any(None).tag(sync=True)
    """`nth` of the wish answered last, granted or not."""
    seq = traitlets.Int(0).tag(sync=True)
    """Counts drawings; bumped last, the browser draws when it changes."""

    def __init__(
        self,
        cycle: CycleRecord | None = None,
        *,
        tokens: Mapping[int, str] | None = None,
        cost: CostModel | None = None,
        max_nodes: int = 7,
        residency: Residency = UNKNOWN,
        fuller: CycleRecord | None = None,
        title: str = "",
    ) -> None:
        super().__init__()
        self.turning = threading.RLock()  # a person clicks while a live run's worker draws
        self.record: CycleRecord | None = None
        self.fuller: CycleRecord | None = None
        self.full_levels: int | None = None  # of a draft that does not stop early, where the run says it
        self.tokens, self.cost = tokens or {}, cost
        self.max_nodes = max_nodes if cost is None else min(max_nodes, cost.max_nodes)
        self._residency = residency
        self._shown_since = 0  # the drawing in which the present cycle first appeared
        if cycle is None:
            self.notice = "No cycle to show yet."
        else:
            self.show(cycle, residency=residency, fuller=fuller, title=title)

    def show(
        self,
        cycle: CycleRecord,
        *,
        residency: Residency = UNKNOWN,
        fuller: CycleRecord | None = None,
        title: str = "",
    ) -> None:
        """Turn to another cycle; what-if starts from its own choice."""
        self.record, self.fuller, self._residency = cycle, deeper(cycle, fuller), residency
        with self.hold_sync():
            self.notice = ""
            pool = None if self.fuller is None else self.fuller.pool
            self.cycle = cycle_data(cycle, tokens=self.tokens, title=title, full_pool=pool)
            self.bitmaps = route_rows(cycle)
            self._look_at(cycle.selection.nodes)
        self._shown_since = self.seq

    def say(self, notice: str) -> None:
        """Show a sentence above the view (empty: none)."""
        with self.hold_sync():
            self.notice = notice
            self.seq += 1

    @property
    def selection(self) -> Choice | None:
        """What `nodes` is worth in this cycle; None while there is no cycle."""
        if self.record is None:
            return None
        name = "this run" if self.nodes == self.record.selection.nodes else "your tree"
        return choice(name, self.record, self.nodes, self.cost, self._residency)

    def frontier(self, *, limit: int = 20_000) -> Any:
        """A plotly FigureWidget of all legal subtrees as (T, R) that follows this view (`workbench.frontier`)."""
        from workbench.frontier import follow  # plotly loads only where it is used

        return follow(self, limit=limit)

    @traitlets.validate("nodes")
    def _legal(self, proposal: Any) -> tuple[int, ...]:
        if self.record is None:
            return ()
        return check_legal(self.record.pool, proposal["value"])

    @traitlets.observe("nodes")
    def _redraw(self, change: Any) -> None:
        if self.record is not None and not self._holding_trait:
            with self.hold_sync():
                self._look_at(self.nodes)

    @traitlets.observe("asked")
    def _answer(self, change: Any) -> None:
        """A click; one that was meant for an earlier cycle, or asks for no legal tree, changes nothing."""
        asked = change["new"]
        with self.turning:
            if self.record is None:
                return
            chosen = self.nodes
            if asked.get("seq", -1) >= self._shown_since:
                most = max(self.max_nodes, len(self.nodes), len(self.record.selection.nodes))
                with suppress(ValueError, TypeError):
                    chosen = check_legal(self.record.pool, tuple(asked.get("nodes", ())), max_nodes=most)
            with self.hold_sync():
                self.answered = asked.get("nth")
                if chosen == self.nodes:
                    self.seq += 1  # an answer, though nothing changes
                self.nodes = chosen

    _holding_trait = False

    def _look_at(self, nodes: Iterable[int]) -> None:
        cycle = self.record
        assert cycle is not None
        self._holding_trait = True
        try:
            self.nodes = tuple(nodes)
        finally:
            self._holding_trait = False
        self.shown = shown_data(
            cycle,
            self.nodes,
            cost=self.cost,
            residency=self._residency,
            max_nodes=self.max_nodes,
            fuller=self.fuller,
            full_levels=self.full_levels,
        )
        self.cells = cell_codes(cycle, self.nodes, self._residency).tobytes()
        self.seq += 1

    # -- where no widget runs ----------------------------------------------------------------------------------------

    def svg(self) -> str:
        """The view as a static picture; empty without a cycle."""
        return cycle_svg(self.cycle, self.shown, np.frombuffer(self.cells, np.uint8)) if self.cycle else ""

    def __repr__(self) -> str:
        if self.record is None:
            return "CycleView(empty)"
        title = f"{self.cycle['title']}: " if self.cycle["title"] else ""
        return (
            f"CycleView({title}{len(self.record.pool)} drafted, {len(self.record.selection.nodes)} selected, "
            f"{self.record.committed} committed, {self.record.counts.misses} misses)"
        )

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        return widget_bundle(super()._repr_mimebundle_(**kwargs), text=repr(self), svg=self.svg())
