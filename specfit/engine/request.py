"""An engine's target and drafter as one request sees them.

Both serve one request at a time, and the next prefill takes them over. Going on with an earlier request would then
give another text without a word, so it is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specfit.engine.layer_kinds import length_switch
from specfit.records import Verdict
from specfit.routes import Routes
from specfit.tree import DraftPool

if TYPE_CHECKING:
    from specfit.engine.drafter import Eagle3Drafter
    from specfit.engine.engine import Engine
    from specfit.engine.target import OffloadedTarget
    from specfit.engine.token_choice import TokenChoice


class EngineRequest:
    """What a decoding holds of an engine: its target and its drafter; nothing of either once the engine is closed."""

    def __init__(
        self,
        engine: Engine,
        *,
        choice: TokenChoice | None = None,
        drafts: bool = True,
        reuse: bool = False,
        room: int = 0,
    ) -> None:
        """choice: says the next token of every verified row; None for the target's greatest logit.

        drafts: the drafter runs too. reuse: keep what the KV caches hold of the prompt from the request before.
        room: positions that may follow the prompt at most.
        """
        self._engine, self._choice, self._drafts, self._reuse, self._room = engine, choice, drafts, reuse, room
        self._request: object = None
        self._skip = 0  # of the tokens that the drafter is given first, those whose rows it has kept

    def prefill(self, prompt: Sequence[int]) -> Verdict:
        self._engine.check_open()
        target, drafter = self._engine.target, self._engine.drafter
        kept = self._kept(prompt) if self._reuse else 0
        if drafter is not None:
            if kept and drafter.request is target.request:
                drafter.keep(min(kept, drafter.rows))
            else:
                drafter.begin()
        try:
            verdict = target.prefill(prompt, kept=kept, room=self._room)
        finally:  # after Ctrl-C both still hold what was kept, and belong together
            if drafter is not None:
                drafter.request = target.request
        self._request = target.request
        self._skip = kept
        if self._choice is not None:
            verdict = replace(verdict, next_tokens=self._choice(target.last_logits, [len(prompt)]))
        return verdict

    def verify(self, root: int, pool: DraftPool, nodes: Sequence[int]) -> Verdict:
        target = self._target
        if self._choice is None:
            return target.verify(root, pool, nodes)
        first = target.committed + 1  # where the token after the root would stand
        logits = target.tree_logits(root, pool, nodes)
        tokens = self._choice(logits, [first, *(first + pool.depths[node] for node in nodes)])
        return Verdict(tokens, target.offload.counts())

    def commit(self, rows: Sequence[int]) -> Any:
        return self._target.commit(rows)

    def synchronize(self) -> None:
        self._target.synchronize()

    def true_routes(self) -> Routes:
        return self._target.true_routes()

    def resident_before(self) -> int:
        return self._target.resident_before()

    def extend(self, tokens: Sequence[int], features: Any) -> None:
        self._drafter.extend(tokens[self._skip :], features)
        self._skip = 0

    def catch_up(self) -> None:
        self._drafter.catch_up()

    def levels(self, *, max_depth: int) -> Iterator[DraftPool]:
        return self._drafter.levels(max_depth=max_depth)

    def _kept(self, prompt: Sequence[int]) -> int:
        """Leading tokens of `prompt` that need not run again.

        The last one in common does run: the drafter pairs its features with the first new token, and the target
        predicts from at least one row. The drafter may lag behind, as where the request before did without it.
        """
        target, drafter = self._engine.target, self._engine.drafter
        kept = max(0, target.common_prefix(prompt) - 1)
        switch = length_switch(target.config)
        if switch is not None and max(len(prompt), len(target.held)) > switch:
            return 0  # past it keys are made with other rotary frequencies, so of those held not all are alike
        if kept and self._drafts and drafter is not None:
            if drafter.request is not target.request:
                return 0
            drafter.catch_up()
            kept = min(kept, drafter.rows)
        return kept

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
