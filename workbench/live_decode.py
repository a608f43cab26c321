"""A decoding that somebody watches: how it begins, the record it grows into, and how often it may be drawn.

No widget and no thread is in here. An engine is anything with `decode(...)`; nothing imports torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from specfit.machine import describe_machine
from specfit.methods import Method
from specfit.objective import CostModel
from specfit.prompts import decode_text, token_text
from specfit.records import CycleRecord, RequestRecord, RunRecord

SHORTEST_S = 0.1  # between two drawings
SHARE = 60  # a drawing may take one part in so many of the time


def begin(
    engine: Any,
    prompt: Any,
    *,
    method: Method,
    accuracy: float,
    limit: int,
    cost: CostModel | None,
    atlas: Any,
) -> Any:
    """A decoding of `prompt` on an engine whose expert cache is empty, as a method's request stream begins.

    atlas: routes and truth of the prompt, or None. accuracy: share of the routes that the selection reads rightly.
    """
    if hasattr(engine, "reset"):
        engine.reset()
    routes = atlas if accuracy == 1 or atlas is None else atlas.noisy(accuracy, seed=0)
    return engine.decode(
        prompt,
        method=method,
        cost=cost,
        routes=routes if method.uses_routes else None,
        truth=None if atlas is None else atlas.truth,
        max_new_tokens=limit,
    )


class GrowingRun:
    """The record of a decoding that goes on, one question long."""

    def __init__(self, engine: Any, decoding: Any, *, name: str, settings: dict[str, Any]) -> None:
        self.decoding, self.settings = decoding, settings
        self.cycles: list[CycleRecord] = []
        self.ended_by = ""  # "stopped" or "error" where the decoding did not end by itself
        self._tokenizer, self._name = getattr(engine, "tokenizer", None), name
        self._texts: dict[int, str] = {}
        self._learnt = 0  # cycles whose token texts are known

    def record(self) -> RunRecord:
        """The run as far as it is; complete once the decoding ended by itself."""
        decoding = self.decoding
        complete = bool(decoding.stop_reason)
        ended = complete or bool(self.ended_by)
        text = ended and self._tokenizer is not None
        request = RequestRecord(
            request_id=f"live/{self._name}",
            question_id=self._name,
            category="live",
            prompt_tokens=tuple(decoding.prompt),
            output_tokens=tuple(decoding.output),
            output_text=decode_text(self._tokenizer, decoding.output) if text else "",
            stop_reason=decoding.stop_reason or self.ended_by,
            request_ms=decoding.request_ms,
            prefill_ms=decoding.prefill_ms,
            prefill=decoding.prefill_counts,
            cycles=tuple(self.cycles),
        )
        self._learn_texts(request)
        shape = self.cycles[0].verified
        machine = describe_machine() if ended else {}
        return RunRecord(self.settings, machine, (request,), shape.layers, shape.experts, self._texts, complete)

    def progress(self) -> str:
        """How far it is, in words, with decode tokens per second so far (Equation 10)."""
        done = f"{len(self.decoding.output)} tokens in {len(self.cycles)} cycles"
        spent = self.decoding.request_ms - self.decoding.prefill_ms
        return f"{done}, {1e3 * (len(self.decoding.output) - 1) / spent:.1f} tokens/s" if spent > 0 else done

    def _learn_texts(self, request: RequestRecord) -> None:
        if self._tokenizer is None:
            return
        shown = {*request.prompt_tokens, *request.output_tokens}
        for cycle in self.cycles[self._learnt :]:
            shown.update(cycle.pool.tokens, cycle.truth.next_tokens if cycle.truth is not None else ())
        for token in shown - self._texts.keys():
            self._texts[token] = token_text(self._tokenizer, token)
        self._learnt = len(self.cycles)


def live_settings(
    engine: Any, *, method: Method, accuracy: float, limit: int, cost: CostModel | None
) -> dict[str, Any]:
    """What makes the run this run, for its record."""
    return {
        "method": method.name,
        "max_nodes": method.max_nodes,
        "adaptive_depth": method.adaptive_depth,
        **getattr(engine, "settings", {}),
        "workload": "live",
        "limits": {"max_new_tokens": limit},
        "routes": {"accuracy": accuracy} if method.uses_routes else None,
        "cost": None if cost is None else asdict(cost),
    }


class Pace:
    """Draws the newest state at most every tenth of a second, and in no more than a sixtieth of the time.

    What is not drawn is dropped, so a slow page holds up nothing and always shows the latest.
    """

    def __init__(self) -> None:
        self.drawings = 0
        self.spent_s = 0.0  # while a decoding went on
        self._took_s = 0.0  # the last drawing
        self._next_at = 0.0

    def begin(self) -> None:
        """A decoding starts: its first drawing, too, has to be earned."""
        self._next_at = time.perf_counter() + max(SHORTEST_S, SHARE * self._took_s)

    def draw(self, drawing: Callable[[], None]) -> None:
        """Call `drawing` if its time has come."""
        start = time.perf_counter()
        if start < self._next_at:
            return
        drawing()
        self._took_s = time.perf_counter() - start
        self.drawings += 1
        self.spent_s += self._took_s
        self._next_at = start + self._took_s + max(SHORTEST_S, SHARE * self._took_s)

    def end(self, drawing: Callable[[], None]) -> None:
        """Draw the last state, whatever the pace: the decoding is over, so it costs it nothing."""
        drawing()
        self.drawings += 1


def free_folder(parent: Path, method: str) -> Path:
    """The next of live-001-specfit, live-002-ar, ..."""
    number = 1 + len(list(parent.glob("live-*")))
    slug = "".join(char if char.isascii() and char.isalnum() else "-" for char in method)[:40] or "run"
    while (place := parent / f"live-{number:03d}-{slug}").exists():
        number += 1
    return place
