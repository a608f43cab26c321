"""A run to watch while it happens: choose, start, stop, and see every cycle in the same views that show a recorded one.

    LiveRun(engine, ["Natalia sold ..."], cost=cost, atlas=atlas)

The cell returns at once: a worker thread decodes, a Stop click sets an Event, and the worker looks at it after every
cycle. Drawing happens between two cycles, which is on no clock of the run, at most ten times a second and never more
than an eightieth of the time; a cycle that was not drawn is in the record all the same. Nothing here imports torch: an
engine is anything with `decode(...)`.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ipywidgets

from specfit.machine import describe_machine
from specfit.methods import AR, EAGLE3, SPECFIT, Method
from specfit.objective import CostModel
from specfit.prompts import token_text
from specfit.records import CycleRecord, RequestRecord, RunRecord
from specfit.run_folder import save_run
from workbench.mime import widget_bundle
from workbench.player import RunSide
from workbench.theme import method_words
from workbench.token_text import visible

SHORTEST_S = 0.1  # between two drawings
SHARE = 80  # a drawing may take one part in so many


class LiveRun(ipywidgets.VBox):
    """Controls, progress and the player's views of a run in progress.

    engine: an engine, or a function (slots_per_layer, link_ms) -> engine, which puts slots and link among the controls.
    questions: texts, (name, prompt) pairs, or a Workload. atlas: routes and truth of these questions, or a function
    (engine, prompt) -> atlas that records them when a run starts. folder: where finished runs are kept.
    A new LiveRun stops the one before it and closes its engine.
    """

    _current: weakref.ref[LiveRun] | None = None

    def __init__(
        self,
        engine: Any,
        questions: Any = (),
        *,
        methods: Sequence[Method] = (SPECFIT, EAGLE3, AR),
        cost: CostModel | None = None,
        atlas: Any = None,
        folder: str | Path | None = None,
        max_new_tokens: int = 120,
        slots_per_layer: int = 24,
        link_ms: float = 0.3,
    ) -> None:
        before = LiveRun._current() if LiveRun._current is not None else None
        if before is not None:
            before.close(keep=engine)
        self._make = None if hasattr(engine, "decode") else engine
        self._engine = engine if self._make is None else None
        self._made_for: tuple[int, float] | None = None
        self._questions = _named(questions)
        self._methods = {method_words(method.name): method for method in methods}
        self._cost, self._atlas = cost, atlas
        self._folder = None if folder is None else Path(folder)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._texts: dict[int, str] = {}
        self.run: RunRecord | None = None  # the run on the screen, finished or not
        self.error: BaseException | None = None  # what ended the last run, if something did
        self.saved: Path | None = None  # the folder of the last finished run
        self.drawings = 0
        self.drawing_s = 0.0  # spent on drawing, all runs together
        self.side = RunSide(None)
        self.side.moved = self._left
        self._build(slots_per_layer, link_ms, max_new_tokens)
        LiveRun._current = weakref.ref(self)

    # -- what a person does -----------------------------------------------------------------------------------------

    def start(self, *_: Any) -> None:
        """Begin a run with the chosen settings; does nothing while one is going on."""
        if self.running:
            return
        self._stop.clear()
        self.error = self.saved = None
        self._switch(running=True)
        self.follow.value = True
        self._say("Starting ...")
        settings = {
            "method": self._methods[self.method.value],
            "question": self.question.value,
            "limit": int(self.limit.value),
            "accuracy": self.accuracy.value,
            "wanted": (int(self.slots.value), float(self.link.value)),
        }
        self._thread = threading.Thread(target=self._work, args=(settings,), name="specfit live run", daemon=True)
        self._thread.start()

    def stop(self, *_: Any) -> None:
        """Ask the run to end after the cycle it is in."""
        self._stop.set()  # and nothing else: a click may be handled on another thread

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the run to end; whether it has."""
        if self._thread is not None:
            self._thread.join(seconds)
        return not self.running

    @property
    def running(self) -> bool:
        """Whether a run is going on."""
        return self._thread is not None and self._thread.is_alive()

    def close(self, *, keep: Any = None) -> None:
        """Stop, close the engine (unless it is `keep`) and all parts of the widget."""
        self.stop()
        self.wait(30)
        if self._engine is not None and self._engine is not keep and hasattr(self._engine, "close"):
            self._engine.close()
        self._engine = None
        self.side.close()
        for part in (*self._controls, *self.children):
            part.close()
        super().close()

    # -- the worker -------------------------------------------------------------------------------------------------

    def _work(self, settings: dict[str, Any]) -> None:
        try:
            self._decode(**settings)
        except Exception as error:  # whatever it is, the person at the widget gets a sentence
            self.error = error
            what = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
            self._say(f"The run ended with an error. {visible(what)}", wrong=True)
        finally:
            self._switch(running=False)

    def _decode(self, method: Method, question: int, limit: int, accuracy: float, wanted: tuple[int, float]) -> None:
        engine = self._ready_engine(wanted)
        name, prompt = self._questions[question]
        if self._stop.is_set():
            return self._say("Stopped before the run began.")
        atlas = self._atlas
        if callable(atlas) and not hasattr(atlas, "truth"):
            self._say("Recording the routes of this question, outside every timer ...")
            atlas = atlas(engine, prompt, max_new_tokens=limit)
        if hasattr(engine, "reset"):
            engine.reset()  # every run begins with an empty expert cache, as a method's request stream does
        routes = atlas if accuracy == 1 or atlas is None else atlas.noisy(accuracy, seed=0)
        decoding = engine.decode(
            prompt,
            method=method,
            cost=self._cost,
            routes=routes if method.uses_routes else None,
            truth=None if atlas is None else atlas.truth,
            max_new_tokens=limit,
        )
        cycles: list[CycleRecord] = []
        told = self._settings(engine, method, limit, accuracy)
        pause, next_at = SHORTEST_S, 0.0
        for cycle in decoding:
            cycles.append(cycle)
            if self._stop.is_set():
                break
            now = time.perf_counter()
            if now >= next_at:
                self._show(engine, decoding, cycles, name, told, limit)
                took = time.perf_counter() - now
                self.drawing_s += took
                pause = max(SHORTEST_S, SHARE * took)
                next_at = now + took + pause
        stopped = self._stop.is_set() and not decoding.stop_reason
        self._show(engine, decoding, cycles, name, told, limit, complete=not stopped)
        rate = _rate(decoding)
        done = f"{len(decoding.output)} tokens in {len(cycles)} cycles{rate}"
        if stopped:
            return self._say(f"Stopped after {done}.")
        self._say(f"Finished ({decoding.stop_reason}): {done}.{self._keep()}")

    def _ready_engine(self, wanted: tuple[int, float]) -> Any:
        if self._make is None:
            if self._engine is None:
                raise ValueError("this live run is closed; run its cell again")
            return self._engine
        if self._made_for != wanted:
            if self._engine is not None:
                self._engine.close()
                self._engine = self._made_for = None
            self._say(f"Loading the engine with {wanted[0]} slots per layer ...")
            self._engine, self._made_for = self._make(*wanted), wanted
        return self._engine

    def _show(
        self,
        engine: Any,
        decoding: Any,
        cycles: Sequence[CycleRecord],
        name: str,
        settings: dict[str, Any],
        limit: int,
        *,
        complete: bool = False,
    ) -> None:
        if not cycles:
            return
        request = RequestRecord(
            request_id=f"live/{name}",
            question_id=name,
            category="live",
            prompt_tokens=tuple(decoding.prompt),
            output_tokens=tuple(decoding.output),
            output_text="",
            stop_reason=decoding.stop_reason,
            request_ms=decoding.request_ms,
            prefill_ms=decoding.prefill_ms,
            prefill=decoding.prefill_counts,
            cycles=tuple(cycles),
        )
        self._learn_texts(engine, request)
        shape = cycles[0].verified
        self.run = RunRecord(
            settings,
            describe_machine() if complete else {},
            (request,),
            shape.layers,
            shape.experts,
            self._texts,
            complete,
        )
        self.progress.value = min(len(decoding.output), limit)
        self._say(f"{len(decoding.output)} of at most {limit} tokens, {len(cycles)} cycles{_rate(decoding)}")
        if self.follow.value or complete:
            self.side.follow(self.run)
            self.drawings += 1

    def _learn_texts(self, engine: Any, request: RequestRecord) -> None:
        tokenizer = getattr(engine, "tokenizer", None)
        if tokenizer is None:
            return
        shown = {*request.prompt_tokens, *request.output_tokens}
        for cycle in request.cycles[-40:]:
            shown.update(cycle.pool.tokens, cycle.truth.next_tokens if cycle.truth is not None else ())
        for token in shown - self._texts.keys():
            self._texts[token] = token_text(tokenizer, token)

    def _settings(self, engine: Any, method: Method, limit: int, accuracy: float) -> dict[str, Any]:
        return {
            "method": method.name,
            "max_nodes": method.max_nodes,
            **getattr(engine, "settings", {}),
            "workload": "live",
            "limits": {"max_new_tokens": limit},
            "routes": {"accuracy": accuracy} if method.uses_routes else None,
            "cost": None if self._cost is None else asdict(self._cost),
        }

    def _keep(self) -> str:
        if self._folder is None or self.run is None:
            return ""
        number = 1
        while (place := self._folder / f"live-{number:03d}-{_slug(self.run.method)}").exists():
            number += 1
        save_run(place, self.run)
        self.saved = place
        return f" Saved in {place.name}."

    # -- the page ---------------------------------------------------------------------------------------------------

    def _build(self, slots: int, link_ms: float, limit: int) -> None:
        wide = {"style": {"description_width": "initial"}, "layout": {"width": "max-content", "max_width": "320px"}}
        self.method = ipywidgets.Dropdown(options=list(self._methods), description="method", **wide)
        names = [(visible(name, limit=50), place) for place, (name, _) in enumerate(self._questions)]
        self.question = ipywidgets.Dropdown(options=names or [("no question", 0)], description="question", **wide)
        self.limit = ipywidgets.BoundedIntText(
            value=limit, min=1, max=100_000, description="tokens", style=wide["style"], layout={"width": "130px"}
        )
        self.accuracy = ipywidgets.Dropdown(
            options=[("exact", 1.0), ("90 % right", 0.9), ("60 % right", 0.6), ("30 % right", 0.3)],
            description="routes",
            **wide,
        )
        self.slots = ipywidgets.BoundedIntText(
            value=slots, min=1, max=10_000, description="slots", style=wide["style"], layout={"width": "110px"}
        )
        self.link = ipywidgets.BoundedFloatText(
            value=link_ms,
            min=0,
            max=1000,
            step=0.1,
            description="link ms",
            style=wide["style"],
            layout={"width": "130px"},
        )
        self.start_button = ipywidgets.Button(description="Start", button_style="primary", layout={"width": "80px"})
        self.stop_button = ipywidgets.Button(description="Stop", disabled=True, layout={"width": "80px"})
        self.follow = ipywidgets.Checkbox(value=True, description="follow", indent=False, layout={"width": "90px"})
        self.progress = ipywidgets.IntProgress(value=0, min=0, max=limit, layout={"width": "220px"})
        self.status = ipywidgets.Label(
            "Ready." if self._questions else "No question was given, so there is nothing to run."
        )
        self.start_button.on_click(self.start)
        self.stop_button.on_click(self.stop)
        self.start_button.disabled = not self._questions
        if self._make is None:
            self.slots.layout.display = self.link.layout.display = "none"
        settings = (self.method, self.question, self.accuracy, self.slots, self.link, self.limit)
        actions = (self.start_button, self.stop_button, self.follow, self.progress, self.status)
        self._controls = (*settings, *actions)
        row = {"flex_flow": "row wrap", "align_items": "center"}
        super().__init__(
            [
                ipywidgets.HBox(settings, layout=row),
                ipywidgets.HBox(actions, layout=row),
                self.side.strip,
                self.side.view,
            ],
            layout={"overflow": "visible"},
        )
        self.side.hide()

    def _switch(self, *, running: bool) -> None:
        self.start_button.disabled, self.stop_button.disabled = running, not running
        if running:
            self.progress.max, self.progress.value = int(self.limit.value), 0

    def _left(self, side: RunSide) -> None:
        """The person walks through the cycles; do not pull them to the newest one."""
        self.follow.value = False

    def _say(self, text: str, *, wrong: bool = False) -> None:
        self.status.value = text
        self.status.style.text_color = "#b34700" if wrong else None

    def __repr__(self) -> str:
        return f"LiveRun({len(self._questions)} questions, {', '.join(self._methods)})"

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        return widget_bundle(super()._repr_mimebundle_(**kwargs), text=repr(self), svg=self.side.view.svg())


def _named(questions: Any) -> list[tuple[str, Any]]:
    """(name, prompt) of texts, pairs, or a workload's questions."""
    if hasattr(questions, "questions"):
        return [(f"{question.id}: {question.turns[0]}", question.turns[0]) for question in questions.questions]
    if isinstance(questions, str):
        questions = [questions]
    items: Iterable[Any] = questions
    return [item if isinstance(item, tuple) and isinstance(item[0], str) else (str(item), item) for item in items]


def _rate(decoding: Any) -> str:
    """Decode tokens per second so far (Equation 10), as ", 12.3 tokens/s"."""
    spent = decoding.request_ms - decoding.prefill_ms
    return f", {1e3 * (len(decoding.output) - 1) / spent:.1f} tokens/s" if spent > 0 else ""


def _slug(text: str) -> str:
    return "".join(char if char.isascii() and char.isalnum() else "-" for char in text)[:40] or "run"
