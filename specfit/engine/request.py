"""An engine's target and drafter as one request sees them.

Both serve one request at a time, and the next prefill takes them over. Going on with an earlier request would then
give another text without a word, so it is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from specfit.records import Verdict
from specfit.routes import Routes
from specfit.tree import DraftPool

if TYPE_CHECKING:
    from specfit.engine.drafter import Eagle3Drafter
    from specfit.engine.engine import Engine
    from specfit.engine.target import OffloadedTarget


class EngineRequest:
    """What a decoding holds of an engine: its target and its drafter; nothing of either once the engine is closed."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._request: object = None

    def prefill(self, prompt: Sequence[int]) -> Verdict:
        self._engine.check_open()
        if self._engine.drafter is not None:
            self._engine.drafter.begin()
        verdict = self._engine.target.prefill(prompt)
        self._request = self._engine.target.request
        return verdict

    def verify(self, root: int, pool: DraftPool, nodes: Sequence[int]) -> Verdict:
        return self._target.verify(root, pool, nodes)

    def commit(self, rows: Sequence[int]) -> Any:
        return self._target.commit(rows)

    def synchronize(self) -> None:
        self._target.synchronize()

    def true_routes(self) -> Routes:
        return self._target.true_routes()

    def resident_before(self) -> int:
        return self._target.resident_before()

    def extend(self, tokens: Sequence[int], features: Any) -> None:
        self._drafter.extend(tokens, features)

    def catch_up(self) -> None:
        self._drafter.catch_up()

    def levels(self, *, max_depth: int) -> Iterator[DraftPool]:
        return self._drafter.levels(max_depth=max_depth)

    @property
    def _target(self) -> OffloadedTarget:
        self._engine.check_open()
        if self._engine.target.request is not self._request:
            raise ValueError(
                "another request has begun on this engine since; start this one again, one after the other"
            )
        return self._engine.target

    @property
    def _drafter(self) -> Eagle3Drafter:
        assert self._target is not None and self._engine.drafter is not None
        return self._engine.drafter
