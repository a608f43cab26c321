"""A run to watch while it happens: choose, start, stop, and see every cycle in the same views that show a recorded one.

    LiveRun(engine, ["Natalia sold ..."], cost=cost, atlas=atlas)

The cell returns at once: a worker thread decodes, a Stop click sets an Event, and the worker looks at it after every
cycle. Drawing happens between two cycles, which is on no clock of the run, at most ten times a second and never more
than a sixtieth of the time; a cycle that was not drawn is in the record all the same. Nothing here imports torch: an
engine is anything with `decode(...)`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ipywidgets

from specfit.methods import AR, EAGLE3, SPECFIT, Method
from specfit.objective import CostModel
from specfit.records import RunRecord
from specfit.run_folder import save_run
from workbench.closing import close_box, close_dress
from workbench.live_controls import LiveControls, Wish, named_questions
from workbench.live_current import become_current, retire_current
from workbench.live_decode import GrowingRun, Pace, begin, free_folder, live_settings
from workbench.mime import widget_bundle
from workbench.run_side import RunSide
from workbench.theme import method_words
from workbench.token_text import visible

PATIENCE_S = 30  # to wait for the cycle a run is in when its widget is closed; later the worker tidies up itself


class LiveRun(ipywidgets.VBox):
    """Controls, progress and the player's views of a run in progress.

    engine: an engine, or a function (slots_per_layer, link_ms) -> engine, which puts slots and link among the controls.
    questions: texts, (name, prompt) pairs, or a Workload. atlas: routes and truth of these questions, or a function
    (engine, prompt, max_new_tokens=) -> atlas that records them when a run starts. folder: where runs are kept, those
    that were stopped marked as cut short. A new LiveRun stops the one before it and closes its engine.
    """

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
        retire_current(keep=engine)
        self._make = None if hasattr(engine, "decode") else engine
        self._engine = engine if self._make is None else None
        self._made_for: tuple[int, float] | None = None
        self._questions = named_questions(questions)
        self._cost, self._atlas = cost, atlas
        self._atlases: dict[int, tuple[int, Any]] = {}  # question -> (tokens it reaches, atlas)
        self._folder = None if folder is None else Path(folder)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._keep_engine: Any = None
        self.closed = self._free_at_end = False
        self._pace = Pace()
        self.run: RunRecord | None = None  # the run on the screen, finished or not
        self.error: BaseException | None = None  # what ended the last run, if something did
        self.saved: Path | None = None  # the folder of the last run
        self.side = RunSide(None)
        self.side.moved = self._left
        self.controls = LiveControls(
            {method_words(method.name): method for method in methods},
            self._questions,
            loads=self._make is not None,
            limit=max_new_tokens,
            slots_per_layer=slots_per_layer,
            link_ms=link_ms,
        )
        self.controls.start_button.on_click(self.start)
        self.controls.stop_button.on_click(self.stop)
        super().__init__([self.controls, self.side.strip, self.side.view], layout={"overflow": "visible"})
        self.side.hide()
        become_current(self)

    # -- what a person does -----------------------------------------------------------------------------------------

    def start(self, *_: Any) -> None:
        """Begin a run with the chosen settings; does nothing while one is going on."""
        if self.closed:
            raise ValueError("this live run is closed; run its cell again")
        if self.running:
            return
        self._stop.clear()
        self._free_at_end = False
        self.error = self.saved = None
        self.controls.switch(running=True)
        self.controls.say("Starting ...")
        wish = self.controls.wish
        self._thread = threading.Thread(target=self._work, args=(wish,), name="specfit live run", daemon=True)
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

    @property
    def drawings(self) -> int:
        """How often a run was drawn, all runs together."""
        return self._pace.drawings

    @property
    def drawing_s(self) -> float:
        """Seconds spent on drawing while runs went on, all of them together."""
        return self._pace.spent_s

    def free(self, *, keep: Any = None, patience_s: float = PATIENCE_S) -> None:
        """Stop, and give back the memory of the engine (unless it is `keep`); views stay, Start loads it anew."""
        self._keep_engine = keep
        self.stop()
        if self.wait(patience_s):
            self._free_engine()
        else:
            self._free_at_end = True

    def close(self) -> None:
        """`free`, and close all parts of the widget."""
        if self.closed:
            return
        self.closed = True
        self.free(keep=self._keep_engine)
        super().close()
        self.side.close()
        close_box(self)
        close_dress(self)

    # -- the worker -------------------------------------------------------------------------------------------------

    def _work(self, wish: Wish) -> None:
        try:
            self._decode(wish)
        except Exception as error:  # whatever it is, the person at the widget gets a sentence
            self.error = error
            what = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
            kept = f" What was decoded is saved in {self.saved.name}." if self.saved is not None else ""
            self.controls.say(f"The run ended with an error: {visible(what)}{kept}", wrong=True)
        finally:
            self.controls.switch(running=False)
            if self._free_at_end:
                self._free_engine()

    def _decode(self, wish: Wish) -> None:
        engine = self._ready_engine(wish)
        name, prompt = self._questions[wish.question]
        if self._stop.is_set():
            return self.controls.say("Stopped before the run began.")
        atlas = self._atlas_of(wish, engine, prompt)
        if self._stop.is_set():  # recording an atlas takes as long as decoding
            return self.controls.say("Stopped before the run began.")
        chosen: Any = {"method": wish.method, "accuracy": wish.accuracy, "limit": wish.limit, "cost": self._cost}
        decoding = begin(engine, prompt, atlas=atlas, **chosen)
        growing = GrowingRun(engine, decoding, name=name, settings=live_settings(engine, **chosen))
        self._pace.begin()
        try:
            for cycle in decoding:
                growing.cycles.append(cycle)
                if self._stop.is_set():
                    growing.ended_by = "stopped"
                    break
                self._pace.draw(lambda: self._show(growing))
        except Exception:
            growing.ended_by = "error"
            self._end(growing)
            raise
        self._end(growing)
        if decoding.stop_reason:
            return self.controls.say(f"Finished ({decoding.stop_reason}): {growing.progress()}.{self._saved_words()}")
        self.controls.say(f"Stopped after {growing.progress()}.{self._saved_words()}")

    def _ready_engine(self, wish: Wish) -> Any:
        if self._make is None:
            if self._engine is None:
                raise ValueError("the engine of this live run was freed; run its cell again")
            return self._engine
        wanted = (wish.slots_per_layer, wish.link_ms)
        if self._made_for != wanted:
            self._free_engine()
            self.controls.say(f"Loading the engine with {wanted[0]} slots per layer ...")
            self._engine, self._made_for = self._make(*wanted), wanted
        return self._engine

    def _atlas_of(self, wish: Wish, engine: Any, prompt: Any) -> Any:
        """The atlas that was given, or one recorded now and kept: routes depend on neither method, slots nor link."""
        if self._atlas is None or hasattr(self._atlas, "truth"):
            return self._atlas
        limit, atlas = self._atlases.get(wish.question, (0, None))
        if limit < wish.limit:
            self.controls.say("Recording the routes of this question, outside every timer ...")
            atlas = self._atlas(engine, prompt, max_new_tokens=wish.limit)
            self._atlases[wish.question] = (wish.limit, atlas)
        return atlas

    def _free_engine(self) -> None:
        engine, self._engine, self._made_for = self._engine, None, None
        if engine is not None and engine is not self._keep_engine and hasattr(engine, "close"):
            engine.close()

    def _show(self, growing: GrowingRun, *, last: bool = False) -> None:
        self.run = growing.record()
        self.controls.progress.value = min(len(growing.decoding.output), self.controls.progress.max)
        self.controls.say(f"{growing.progress()} of at most {self.controls.progress.max} tokens")
        with self.side.turning:  # a person who walks back meanwhile is not pulled forward again
            if self.controls.follow.value or last:
                self.side.follow(self.run)

    def _end(self, growing: GrowingRun) -> None:
        """Show the last state whatever the pace, and keep the run."""
        if not growing.cycles:
            return
        self._pace.end(lambda: self._show(growing, last=True))
        if self._folder is not None and self.run is not None:
            place = free_folder(self._folder, self.run.method)
            save_run(place, self.run)
            self.saved = place

    def _saved_words(self) -> str:
        return "" if self.saved is None else f" Saved in {self.saved.name}."

    def _left(self, side: RunSide) -> None:
        """The person walks through the cycles; do not pull them to the newest one."""
        self.controls.follow.value = False

    def __repr__(self) -> str:
        return f"LiveRun({len(self._questions)} questions, {', '.join(self.controls.method.options)})"

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        return widget_bundle(super()._repr_mimebundle_(**kwargs), text=repr(self), svg=self.side.view.svg())
