"""One run on the screen: the strip of its cycles above the view of the cycle it stands at.

The player shows one or two of these, a live run one that grows. Everything is decided here, in Python: the strip and
the view draw what they are given and say what the person asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from specfit.objective import CostModel
from specfit.records import CycleRecord, RequestRecord, RunRecord
from specfit.run_folder import RunError
from workbench.closing import close_dress
from workbench.cycle_view import CycleView
from workbench.residency import residency_in
from workbench.run_facts import (
    Fuller,
    cycle_order,
    expected_rates,
    full_levels,
    most_nodes,
    order_note,
    run_cost,
    run_of,
    stage_times,
    walk,
)
from workbench.run_strip import RunStrip, output_spans, token_run
from workbench.theme import method_words
from workbench.token_text import visible


class RunSide:
    """One run on the screen: its strip above the view of the cycle it stands at."""

    def __init__(self, source: Any, *, cost: CostModel | None = None, tokens: Mapping[int, str] | None = None) -> None:
        self.strip, self.view = RunStrip(), CycleView()
        self.turning = self.view.turning  # held by whoever changes what is shown
        self.moved: Callable[[RunSide], None] = lambda side: None  # called when the person moved this side
        self.fuller: Fuller = lambda request, cycle: None
        self.run: RunRecord | None = None
        self._cost, self._tokens = cost, tokens
        self._order: list[int] = []
        self.cycles: list[tuple[int, RequestRecord, CycleRecord]] = []
        self._text_of: int | None = None
        self.strip.observe(self._asked, "asked")
        if source is not None:
            self.load(source)

    def load(self, source: Any) -> None:
        """Show another run from its beginning; a source that is no run shows as a sentence."""
        try:
            run = run_of(source, tokens=self._tokens)
        except RunError as error:
            self.strip.notice, self.view.notice = str(error), ""
            self.strip.seq += 1
            return
        self.run = run
        self.cycles = walk(run)
        cost = self._cost or run_cost(run)
        self.view.tokens, self.view.cost = run.tokens, cost
        self.view.max_nodes, self.view.full_levels = most_nodes(run, cost), full_levels(run)
        self.strip.name = method_words(run.method)
        self.strip.questions = [self._question_words(request) for request in run.requests]
        self.strip.question = -1
        self.reorder("all")

    def reorder(self, order: str, question: int = -1, *, at: int = 0) -> None:
        """Walk through another choice of cycles; one that the run cannot make says why and changes nothing."""
        run = self.run
        if run is None:  # the source was none, which the notice says
            return
        where = None if question < 0 else question
        try:
            found = cycle_order(run, order, question=where, cost=self.view.cost, fuller=self.fuller)
        except RunError as error:
            with self.strip.hold_sync():
                self.strip.notice = str(error)
                self.strip.seq += 1
            return
        self._order, self._text_of = found, None
        cycles = [self.cycles[number] for number in found]
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
            self.strip.note = order_note(order, found=len(found), cost=self.view.cost)
        if not cycles:
            self.view.say("")

    def follow(self, run: RunRecord) -> None:
        """Show the newest cycle of a run that is still growing; everything else as `load` does."""
        fresh = self.run is None or self.run.settings is not run.settings
        self.run, self.cycles = run, walk(run)
        cost = self._cost or run_cost(run)
        with self.strip.hold_sync():
            self.view.tokens, self.view.cost = run.tokens, cost
            if fresh:
                self.view.max_nodes, self.view.full_levels = most_nodes(run, cost), full_levels(run)
                self.strip.name = method_words(run.method)
                self.strip.questions = [self._question_words(request) for request in run.requests]
                for part in (self.strip, self.view):
                    part.layout.display = None
            self.reorder("all", at=len(self.cycles) - 1)
            self.strip.notice = ""  # that it is not complete goes without saying

    def hide(self) -> None:
        """Take no room until there is a run."""
        for part in (self.strip, self.view):
            part.layout.display = "none"

    def close(self) -> None:
        """Close both parts and let go of whoever listened."""
        self.strip.unobserve_all()
        for part in (self.strip, self.view):
            part.close()
            close_dress(part)
        self.moved, self.fuller = lambda side: None, lambda request, cycle: None

    @property
    def _shown(self) -> RunRecord:
        """The run, where there must be one."""
        assert self.run is not None
        return self.run

    @property
    def here(self) -> tuple[int, RequestRecord, CycleRecord] | None:
        """(the request's position, the request, the cycle) on the screen; None for a run without cycles."""
        return self.cycles[self._order[self.strip.at]] if self._order else None

    def go(self, position: int) -> None:
        """Turn to a position of the order, clamped to it."""
        with self.strip.hold_sync():
            self._step(position)

    def go_to_token(self, request_id: str, prefix_length: int) -> None:
        """Turn to the cycle of `request_id` that holds this place of the text, if it is in the order."""
        fitting = [
            position
            for position, number in enumerate(self._order)
            if self.cycles[number][1].request_id == request_id and self.cycles[number][2].prefix_length <= prefix_length
        ]
        if fitting:
            self.go(max(fitting, key=lambda position: self.cycles[self._order[position]][2].prefix_length))

    def _step(self, position: int) -> None:
        self.strip.at = max(0, min(position, len(self._order) - 1))
        if self.here is not None:
            place, request, cycle = self.here
            if self._text_of != place:
                self._show_text(place, request)
            self.view.show(
                cycle,
                residency=residency_in(self._shown, request, cycle.index),
                fuller=self.fuller(request, cycle),
                title=f"{self._question_words(request)} · cycle {cycle.index + 1} of {len(request.cycles)}",
            )
        self.strip.seq += 1

    def _show_text(self, place: int, request: RequestRecord) -> None:
        self._text_of = place
        positions = {
            self.cycles[number][2].index: position
            for position, number in enumerate(self._order)
            if self.cycles[number][0] == place
        }
        text, owners, kinds = output_spans(request, self._shown.tokens, positions)
        self.strip.text, self.strip.owners, self.strip.kinds = text, owners.tobytes(), kinds.tobytes()
        known = all(token in self._shown.tokens for token in request.prompt_tokens)
        self.strip.prompt = "".join(token_run(request.prompt_tokens, self._shown.tokens)) if known else ""

    def _asked(self, change: Any) -> None:
        asked = change["new"]
        with self.turning:
            if self.run is None:
                self.strip.seq += 1  # an answer, though there is nothing to turn to
                return
            if "order" in asked or "question" in asked:
                self.reorder(asked.get("order", self.strip.order), int(asked.get("question", self.strip.question)))
            elif "at" in asked:
                self.go(int(asked["at"]))
            self.moved(self)

    def _what_to_know(self) -> str:
        if not self.cycles:
            return "This run holds no decode cycle yet."
        if not self._order:
            return "No cycle of this run is so."
        return "" if self._shown.complete else cut_short_words(self._shown)

    def _label(self, request: RequestRecord, cycle: CycleRecord) -> str:
        return (
            f"{self._question_words(request)}, cycle {cycle.index + 1}, {len(cycle.selection.nodes)} nodes, "
            f"{cycle.committed} committed, {cycle.counts.misses} misses"
        )

    @staticmethod
    def _question_words(request: RequestRecord) -> str:
        category = f" ({visible(request.category, limit=30)})" if request.category else ""
        return f"question {visible(str(request.question_id), limit=30)}{category}"


def cut_short_words(run: RunRecord) -> str:
    """What a run that is not complete holds, in a sentence."""
    for request in run.requests:
        if request.stop_reason in ("stopped", "error"):
            why = "was stopped" if request.stop_reason == "stopped" else "ended with an error"
            return f"This run was cut short: it {why} after {len(request.output_tokens)} tokens of its last question."
    wanted = run.settings.get("questions")
    of = f" of {len(wanted)}" if isinstance(wanted, list | tuple) else ""
    return f"This run is not complete (cut short, or still going on): {len(run.requests)}{of} requests are finished."
