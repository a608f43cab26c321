"""The player: walk through a run's cycles, forwards, backwards or by what went wrong, one run or two side by side.

player = CyclePlayer("runs/specfit")                   # a run folder, a RunRecord, or a list of records
player = CyclePlayer("runs/specfit", "runs/eagle3")    # the same questions, moving together
player.cycle, player.request                           # what is on the screen, as plain records
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import ipywidgets

from specfit.objective import CostModel
from specfit.records import CycleRecord, RequestRecord, RunRecord
from specfit.run_folder import RunError
from specfit.tree import DraftPool
from workbench.cycle_view import CycleView
from workbench.mime import widget_bundle
from workbench.residency import residency_in
from workbench.run_facts import cycle_order, expected_rates, run_cost, run_of, stage_times, walk
from workbench.run_strip import RunStrip, output_spans, token_run
from workbench.theme import method_words
from workbench.token_text import visible


class RunSide:
    """One run on the screen: its strip above the view of the cycle it stands at."""

    def __init__(self, source: Any, *, cost: CostModel | None = None, tokens: Mapping[int, str] | None = None) -> None:
        self.strip, self.view = RunStrip(), CycleView()
        self.moved: Callable[[RunSide], None] = lambda side: None  # called when the person moved this side
        self.deeper: Callable[[CycleRecord], DraftPool | None] = lambda cycle: None  # a pool that goes deeper, if known
        self.run: RunRecord | None = None
        self._cost, self._tokens = cost, tokens
        self._order: list[int] = []
        self._cycles: list[tuple[int, RequestRecord, CycleRecord]] = []
        self._text_of: int | None = None
        self.strip.observe(self._asked, "asked")
        if source is not None:
            self.load(source)

    def load(self, source: Any) -> None:
        """Show another run from its beginning; a source that is no run shows as a sentence."""
        try:
            run = run_of(source, tokens=self._tokens)
        except RunError as error:
            self.strip.notice = self.view.notice = str(error)
            self.strip.seq += 1
            return
        self.run = run
        self._cycles = walk(run)
        cost = self._cost or run_cost(run)
        self.view.tokens, self.view.cost = run.tokens, cost
        self.view.max_nodes = 7 if cost is None else cost.max_nodes
        self.strip.name = method_words(run.method)
        self.strip.questions = [self._question_words(request) for request in run.requests]
        self.strip.question = -1
        self.reorder("all")

    def reorder(self, order: str, question: int = -1, *, at: int = 0) -> None:
        """Walk through another choice of cycles; one that the run cannot make says why and changes nothing."""
        run = self.run
        assert run is not None
        where = None if question < 0 else question
        try:
            found = cycle_order(run, order, question=where, cost=self.view.cost)
        except RunError as error:
            with self.strip.hold_sync():
                self.strip.notice = str(error)
                self.strip.seq += 1
            return
        self._order, self._text_of = found, None
        cycles = [self._cycles[number] for number in found]
        places = [place for place, _, _ in cycles]
        with self.strip.hold_sync():
            self.strip.order, self.strip.question = order, question
            self.strip.times = stage_times(run)[found].tobytes()
            self.strip.rates = expected_rates(run)[found].tobytes()
            changes = [i for i in range(1, len(places)) if places[i] != places[i - 1]]
            self.strip.breaks = changes if order != "gap" else []
            self.strip.labels = [self._label(request, cycle) for _, request, cycle in cycles]
            self._step(at)
            self.strip.notice = self._what_to_know()
        if not cycles:
            self.view.say("")

    def follow(self, run: RunRecord) -> None:
        """Show the newest cycle of a run that is still growing; everything else as `load` does."""
        fresh = self.run is None or self.run.settings is not run.settings
        self.run, self._cycles = run, walk(run)
        cost = self._cost or run_cost(run)
        with self.strip.hold_sync():
            self.view.tokens, self.view.cost = run.tokens, cost
            if fresh:
                self.view.max_nodes = 7 if cost is None else cost.max_nodes
                self.strip.name = method_words(run.method)
                self.strip.questions = [self._question_words(request) for request in run.requests]
                for part in (self.strip, self.view):
                    part.layout.display = None
            self.reorder("all", at=len(self._cycles) - 1)
            self.strip.notice = ""  # that it is not complete goes without saying

    def hide(self) -> None:
        """Take no room until there is a run."""
        for part in (self.strip, self.view):
            part.layout.display = "none"

    def close(self) -> None:
        """Close both parts and let go of whoever listened."""
        self.strip.unobserve_all()
        self.strip.close()
        self.view.close()
        self.moved, self.deeper = lambda side: None, lambda cycle: None

    @property
    def _shown(self) -> RunRecord:
        """The run, where there must be one."""
        assert self.run is not None
        return self.run

    @property
    def here(self) -> tuple[int, RequestRecord, CycleRecord] | None:
        """(the request's position, the request, the cycle) on the screen; None for a run without cycles."""
        return self._cycles[self._order[self.strip.at]] if self._order else None

    def go(self, position: int) -> None:
        """Turn to a position of the order, clamped to it."""
        with self.strip.hold_sync():
            self._step(position)

    def go_to_token(self, request_id: str, prefix_length: int) -> None:
        """Turn to the cycle of `request_id` that holds this place of the text, if it is in the order."""
        fitting = [
            position
            for position, number in enumerate(self._order)
            if self._cycles[number][1].request_id == request_id
            and self._cycles[number][2].prefix_length <= prefix_length
        ]
        if fitting:
            self.go(max(fitting, key=lambda position: self._cycles[self._order[position]][2].prefix_length))

    def _step(self, position: int) -> None:
        self.strip.at = max(0, min(position, len(self._order) - 1))
        if self.here is not None:
            place, request, cycle = self.here
            if self._text_of != place:
                self._show_text(place, request)
            self.view.show(
                cycle,
                residency=residency_in(self._shown, request, cycle.index),
                full_pool=self.deeper(cycle),
                title=f"{self._question_words(request)} · cycle {cycle.index + 1} of {len(request.cycles)}",
            )
        self.strip.seq += 1

    def _show_text(self, place: int, request: RequestRecord) -> None:
        self._text_of = place
        positions = {
            self._cycles[number][2].index: position
            for position, number in enumerate(self._order)
            if self._cycles[number][0] == place
        }
        text, owners, kinds = output_spans(request, self._shown.tokens, positions)
        self.strip.text, self.strip.owners, self.strip.kinds = text, owners.tobytes(), kinds.tobytes()
        known = all(token in self._shown.tokens for token in request.prompt_tokens)
        self.strip.prompt = "".join(token_run(request.prompt_tokens, self._shown.tokens)) if known else ""

    def _asked(self, change: Any) -> None:
        asked = change["new"]
        if self.run is None:
            return
        if "order" in asked or "question" in asked:
            self.reorder(asked.get("order", self.strip.order), int(asked.get("question", self.strip.question)))
        elif "at" in asked:
            self.go(int(asked["at"]))
        self.moved(self)

    def _what_to_know(self) -> str:
        if not self._cycles:
            return "This run holds no decode cycle yet."
        if not self._order:
            return "No cycle of this run is so."
        if not self._shown.complete:
            return f"This run is not complete: it shows the {len(self._shown.requests)} requests that were finished."
        return ""

    def _label(self, request: RequestRecord, cycle: CycleRecord) -> str:
        return (
            f"{self._question_words(request)}, cycle {cycle.index + 1}, {len(cycle.selection.nodes)} nodes, "
            f"{cycle.committed} committed, {cycle.counts.misses} misses"
        )

    @staticmethod
    def _question_words(request: RequestRecord) -> str:
        category = f" ({visible(request.category, limit=30)})" if request.category else ""
        return f"question {visible(str(request.question_id), limit=30)}{category}"


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
        half = ipywidgets.Layout(flex="1 1 600px", min_width="0", overflow="visible")
        columns = [ipywidgets.VBox([side.strip, side.view], layout=half) for side in self.sides]
        row = ipywidgets.Layout(flex_flow="row wrap", overflow="visible")
        super().__init__([ipywidgets.HBox(columns, layout=row)], layout=ipywidgets.Layout(overflow="visible"))
        if len(self.sides) == 2:
            for side, twin in (self.sides, self.sides[::-1]):
                side.moved = partial(self._move_along, twin=twin)
                side.deeper = partial(_pool_at, twin)
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
        for side in self.sides:
            side.close()
        for box in self.children:
            for column in box.children:
                column.close()
            box.close()
        super().close()

    @staticmethod
    def _move_along(moved: RunSide, twin: RunSide) -> None:
        if moved.here is not None and twin.run is not None:
            _, request, cycle = moved.here
            twin.go_to_token(request.request_id, cycle.prefix_length)

    def __repr__(self) -> str:
        runs = [
            "no run"
            if side.run is None
            else f"{side.strip.name}, {len(side.run.requests)} requests, {len(side._cycles)} cycles"
            for side in self.sides
        ]
        return f"CyclePlayer({'; '.join(runs)})"

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        return widget_bundle(super()._repr_mimebundle_(**kwargs), text=repr(self), svg=self.view.svg())


def _pool_at(side: RunSide, cycle: CycleRecord) -> DraftPool | None:
    """The deepest pool that `side`'s run drafted from the same place of the same text."""
    pools = [
        other.pool
        for _, _, other in side._cycles
        if other.prefix_length == cycle.prefix_length and other.root == cycle.root
    ]
    return max(pools, key=len, default=None)
