"""What a person chooses before a live run, and what it tells meanwhile: two rows of controls, without any decoding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ipywidgets

from specfit.methods import Method
from workbench.closing import close_box
from workbench.token_text import visible

ACCURACIES = [("exact", 1.0), ("90 % right", 0.9), ("60 % right", 0.6), ("30 % right", 0.3)]
FITTING = {"description_width": "initial"}
WRONG = "var(--sf-rejected, #b34700)"  # the page's own, light or dark; `widget_css` defines it for .sf-status


@dataclass(frozen=True, slots=True)
class Wish:
    """One run as chosen."""

    method: Method
    question: int  # position among the questions
    limit: int  # tokens at most
    accuracy: float  # of the route estimates, 0..1
    slots_per_layer: int
    link_ms: float  # of the emulated link, per expert


class LiveControls(ipywidgets.VBox):
    """The controls; `wish` is what they say, `say` and `switch` tell how it goes.

    loads: whether slots and link may be chosen (they load another engine); hidden otherwise.
    """

    def __init__(
        self,
        methods: Mapping[str, Method],
        questions: Sequence[tuple[str, Any]],
        *,
        loads: bool,
        limit: int,
        slots_per_layer: int,
        link_ms: float,
    ) -> None:
        self._methods = methods
        names = [(visible(name, limit=50), place) for place, (name, _) in enumerate(questions)]
        self.method = _choice("method", list(methods))
        self.question = _choice("question", names or [("no question", 0)])
        self.accuracy = _choice("routes", ACCURACIES)
        self.slots = _number(ipywidgets.BoundedIntText, "slots per layer", slots_per_layer, 1, 10_000, width=160)
        self.link = _number(ipywidgets.BoundedFloatText, "emulated link, ms per expert", link_ms, 0, 1000, width=250)
        self.link.step = 0.1
        self.limit = _number(ipywidgets.BoundedIntText, "tokens at most", limit, 1, 100_000, width=160)
        self.start_button = ipywidgets.Button(description="Start", button_style="primary", layout={"width": "80px"})
        self.stop_button = ipywidgets.Button(description="Stop", disabled=True, layout={"width": "80px"})
        self.follow = ipywidgets.Checkbox(value=True, description="follow", indent=False, layout={"width": "90px"})
        self.follow.tooltip = "turn to the newest cycle; walking back lets go"
        self.progress = ipywidgets.IntProgress(value=0, min=0, max=limit, layout={"width": "220px"})
        self.status = ipywidgets.Label("Ready." if questions else "No question was given, so there is nothing to run.")
        self.status.add_class("sf-status")
        self.start_button.disabled = not questions
        if not loads:
            self.slots.layout.display = self.link.layout.display = "none"
        settings = (self.method, self.question, self.accuracy, self.slots, self.link, self.limit)
        actions = (self.start_button, self.stop_button, self.follow, self.progress, self.status)
        row = {"flex_flow": "row wrap", "align_items": "center"}
        super().__init__([ipywidgets.HBox(settings, layout=row), ipywidgets.HBox(actions, layout=row)])

    @property
    def wish(self) -> Wish:
        """The run as chosen now."""
        return Wish(
            method=self._methods[self.method.value],
            question=self.question.value,
            limit=int(self.limit.value),
            accuracy=self.accuracy.value,
            slots_per_layer=int(self.slots.value),
            link_ms=float(self.link.value),
        )

    def switch(self, *, running: bool) -> None:
        """Offer Stop while a run goes on, Start otherwise; a run begins with an empty bar, and is followed."""
        self.start_button.disabled, self.stop_button.disabled = running, not running
        if running:
            self.progress.max, self.progress.value = int(self.limit.value), 0
            self.follow.value = True

    def say(self, text: str, *, wrong: bool = False) -> None:
        """One sentence beside the bar."""
        self.status.value = text
        self.status.style.text_color = WRONG if wrong else None

    def close(self) -> None:
        """Close every control."""
        super().close()
        close_box(self)


def _choice(name: str, options: Iterable[Any]) -> Any:
    return ipywidgets.Dropdown(
        options=options, description=name, style=FITTING, layout={"width": "max-content", "max_width": "420px"}
    )


def _number(kind: Any, name: str, value: float, low: float, high: float, *, width: int) -> Any:
    return kind(value=value, min=low, max=high, description=name, style=FITTING, layout={"width": f"{width}px"})


def named_questions(questions: Any) -> list[tuple[str, Any]]:
    """(name, prompt) of texts, pairs, or a workload's questions."""
    if hasattr(questions, "questions"):
        return [(f"{question.id}: {question.turns[0]}", question.turns[0]) for question in questions.questions]
    if isinstance(questions, str):
        questions = [questions]
    items: Iterable[Any] = questions
    return [item if isinstance(item, tuple) and isinstance(item[0], str) else (str(item), item) for item in items]
