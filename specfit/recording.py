"""Making worlds and atlases: one greedy pass over a workload's prompts with the pair that decodes them later.

Both are made of the same records; an atlas is what a world says of routes. A recording that goes to a file keeps every
finished question beside it (`specfit.half_made`), so that a stopped one goes on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specfit.half_made import HalfMade
from specfit.prompts import decode_text, render, token_text
from specfit.request_stream import DECODING_ERRORS, turn_messages
from specfit.workloads import Question, Workload
from specfit.world import Position, World, WorldPrompt

if TYPE_CHECKING:
    from specfit.engine.atlas import Atlas
    from specfit.engine.engine import Engine
    from specfit.engine.greedy_walk import GreedyWalk


def record_world(
    engine: Engine,
    workload: Workload,
    *,
    raw: bool = False,
    path: str | Path | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> World:
    """The world of a workload. An engine with all experts resident and no link records fastest; slots change nothing.

    path: save it there, too, and keep every finished question beside it until then: the same call goes on after a kill.
    A prompt that cannot be rendered or is too long is left out, with the reason in `skipped`, and so are the later
    turns of its question. `progress` is told the number of finished questions.
    Raises ValueError for an engine without a drafter, or when no prompt at all could be recorded; RecordingError for a
    half-made recording with other settings at `path`.
    """
    recording = _Recording(engine, workload, raw=raw, progress=progress)
    if path is None:
        return recording.world()
    with HalfMade(Path(path), recording.asked) as kept:
        world = recording.world(kept)
        world.save(path)
    return world


def ensure_atlas(
    path: Path,
    resident: Callable[[], AbstractContextManager[Engine]],
    workload: Workload,
    *,
    raw: bool = False,
    expected: Callable[[], Mapping[str, Any]] | None = None,
    keep_going: bool = False,
    progress: Callable[[int], None] = lambda done: None,
) -> Atlas:
    """The atlas kept at `path`, or a new one recorded over the workload and kept there.

    resident: lends the engine that records, all its experts on the device and no link; its settings also tell whether
    the atlas there still serves. One made with other settings, or for other prompts, is recorded again; one that was
    stopped half-way is gone on with.
    expected: the engine's `route_settings` without loading it; a kept atlas that agrees with them needs no engine.
    keep_going: leave out a question on which decoding fails (methods that read routes will lack it), unless all do.
    """
    from specfit.engine.atlas import Atlas, trajectory_of  # here: a run without routes needs no atlas

    asked = _digest(workload, raw=raw)
    kept = Atlas.load(path) if path.exists() else None
    if kept is not None and expected is not None and kept.made_with == {**expected(), "questions": asked}:
        return kept
    with resident() as engine:
        recording = _Recording(engine, workload, raw=raw, progress=progress, keep_going=keep_going)
        if kept is not None and kept.made_with == recording.made_with:
            return kept
        with HalfMade(path, recording.asked) as half_made:
            kept = Atlas.load(path) if path.exists() else None  # another session may have made it in the meantime
            if kept is not None and kept.made_with == recording.made_with:
                return kept
            prompts, _ = recording.prompts(half_made)
            atlas = Atlas(map(trajectory_of, prompts), experts=engine.experts, made_with=recording.made_with)
            atlas.save(path)
    return atlas


class _Recording:
    """One pass of an engine over a workload."""

    def __init__(
        self,
        engine: Engine,
        workload: Workload,
        *,
        raw: bool,
        progress: Callable[[int], None],
        keep_going: bool = False,
    ) -> None:
        self._engine, self._workload, self._raw = engine, workload, raw
        self._progress, self._keep_going = progress, keep_going
        self._failed: Exception | None = None
        self.made_with = {**engine.route_settings, "questions": _digest(workload, raw=raw)}

    @property
    def asked(self) -> dict[str, Any]:
        """What decides the records, for people: ids and limits beside the digest of all texts."""
        questions = [question.id for question in self._workload.questions]
        limits = asdict(self._workload.limits)
        texts = _digest(self._workload, raw=self._raw)
        return {**self.made_with, "questions": questions, "limits": limits, "raw": self._raw, "texts": texts}

    def world(self, kept: HalfMade | None = None) -> World:
        """All questions as a world."""
        prompts, skipped = self.prompts(kept)
        if not prompts:
            why = next(iter(skipped.values()))
            raise ValueError(f"no prompt of workload {self._workload.name!r} could be recorded: {why}")
        tokenizer = self._engine.tokenizer
        return self._world(prompts, skipped, {token: token_text(tokenizer, token) for token in _occurring(prompts)})

    def prompts(self, kept: HalfMade | None = None) -> tuple[list[WorldPrompt], dict[str, str]]:
        """Every prompt that can be recorded, and why others cannot; those that are kept are not decoded again."""
        prompts: list[WorldPrompt] = []
        skipped: dict[str, str] = {}
        for number, question in enumerate(self._workload.questions):
            world = None if kept is None else kept.load(number)
            if world is None:
                found, reasons, whole = self._question(question)
                if kept is not None and found and whole:
                    kept.keep(number, self._world(found, reasons, {}))
            else:
                found, reasons = list(world.prompts), dict(world.skipped)
            prompts += found
            skipped |= reasons
            self._progress(number + 1)
        if self._failed is not None and not prompts:
            raise self._failed
        return prompts, skipped

    def _question(self, question: Question) -> tuple[list[WorldPrompt], dict[str, str], bool]:
        """Its turns as far as they can be recorded, why one cannot, and False where decoding failed."""
        from specfit.engine.greedy_walk import (  # here: opening worlds needs nothing of the engine
            check_walk,
            walk_greedily,
        )

        engine, found = self._engine, list[WorldPrompt]()
        for turn in range(len(question.turns)):
            request_id = self._workload.request_id(question, turn)
            try:
                said = [prompt.output_text for prompt in found]
                ids = render(engine.tokenizer, turn_messages(question, turn, said, raw=self._raw), raw=self._raw).ids
                room = engine.room(ids, self._workload.limits.new_tokens(len(ids)))
                check_walk(engine, ids, room)
            except ValueError as error:
                return found, {request_id: str(error)}, True
            try:
                walk = walk_greedily(engine, ids, max_new_tokens=room)
            except DECODING_ERRORS as error:
                if not self._keep_going:
                    raise
                self._failed = error.with_traceback(None)  # which would hold on to memory that ran out
                return found, {}, False
            found.append(_prompt(request_id, question, ids, walk, decode_text(engine.tokenizer, walk.output), room))
        return found, {}, True

    def _world(self, prompts: list[WorldPrompt], skipped: dict[str, str], tokens: dict[int, str]) -> World:
        layer_experts = tuple(layer.cache.experts for layer in self._engine.offload.layers)
        return World(
            workload=self._workload.name,
            prompts=tuple(prompts),
            layers=len(layer_experts),
            experts=max(layer_experts),
            layer_experts=layer_experts,
            eos=self._engine.eos,
            made_with=self.made_with,
            tokens=tokens,
            skipped=skipped,
        )


def _prompt(
    request_id: str, question: Question, ids: tuple[int, ...], walk: GreedyWalk, text: str, limit: int
) -> WorldPrompt:
    return WorldPrompt(
        request_id=request_id,
        question_id=question.id,
        category=question.category,
        prompt=ids,
        output=walk.output,
        output_text=text,
        limit=limit,
        prefill=walk.prefill,
        positions=tuple(Position(step.pool, step.indices, step.next_tokens) for step in walk.steps),
        extra={"reference": question.reference, "number": question.number},
    )


def _digest(workload: Workload, *, raw: bool) -> str:
    texts = [(question.id, question.turns) for question in workload.questions]
    return hashlib.sha256(repr((texts, raw, asdict(workload.limits))).encode()).hexdigest()[:16]


def _occurring(prompts: list[WorldPrompt]) -> list[int]:
    """Every token that a view of a replay can show, ascending."""
    shown: set[int] = set()
    for prompt in prompts:
        shown.update(prompt.output)
        for position in prompt.positions:
            shown.update(position.pool.tokens, position.next_tokens)
    return sorted(shown)
