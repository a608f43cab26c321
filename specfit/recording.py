"""Making a world: one greedy pass over a workload's prompts with the engine that is to be replayed later."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

from specfit.prompts import decode_text, render, token_text
from specfit.request_stream import turn_messages
from specfit.workloads import Question, Workload
from specfit.world import Position, World, WorldPrompt

if TYPE_CHECKING:
    from specfit.engine.engine import Engine
    from specfit.engine.greedy_walk import GreedyWalk


def record_world(
    engine: Engine, workload: Workload, *, raw: bool = False, progress: Callable[[int], None] = lambda done: None
) -> World:
    """The world of a workload. An engine with all experts resident and no link records fastest; slots change nothing.

    A prompt that cannot be rendered or is too long is left out, with the reason in `skipped`, and so are the later
    turns of its question. `progress` is told the number of finished questions.
    Raises ValueError for an engine without a drafter, or when no prompt at all could be recorded.
    """
    from specfit.engine.greedy_walk import walk_greedily  # here: opening worlds needs nothing of the engine

    prompts: list[WorldPrompt] = []
    skipped: dict[str, str] = {}
    for done, question in enumerate(workload.questions, start=1):
        answers: list[str] = []
        for turn in range(len(question.turns)):
            request_id = workload.request_id(question, turn)
            try:
                rendered = render(engine.tokenizer, turn_messages(question, turn, answers, raw=raw), raw=raw)
                room = engine.room(rendered.ids, workload.limits.new_tokens(len(rendered.ids)))
                engine.check_prompt(rendered.ids, room)
            except ValueError as error:
                skipped[request_id] = str(error)
                break
            walk = walk_greedily(engine, rendered.ids, max_new_tokens=room)
            answers.append(decode_text(engine.tokenizer, walk.output))
            prompts.append(_prompt(request_id, question, rendered.ids, walk, answers[-1], limit=room))
        progress(done)
    if not prompts:
        raise ValueError(f"no prompt of workload {workload.name!r} could be recorded: {next(iter(skipped.values()))}")
    texts = [(question.id, question.turns) for question in workload.questions]
    asked = hashlib.sha256(repr((texts, raw, asdict(workload.limits))).encode()).hexdigest()[:16]
    layer_experts = tuple(layer.cache.experts for layer in engine.offload.layers)
    return World(
        workload=workload.name,
        prompts=tuple(prompts),
        layers=len(layer_experts),
        experts=max(layer_experts),
        layer_experts=layer_experts,
        eos=engine.eos,
        made_with={**engine.route_settings, "questions": asked},
        tokens={token: token_text(engine.tokenizer, token) for token in _occurring(prompts)},
        skipped=skipped,
    )


def _prompt(
    request_id: str, question: Question, ids: tuple[int, ...], walk: GreedyWalk, text: str, *, limit: int
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


def _occurring(prompts: list[WorldPrompt]) -> list[int]:
    """Every token that a view of a replay can show, ascending."""
    shown: set[int] = set()
    for prompt in prompts:
        shown.update(prompt.output)
        for position in prompt.positions:
            shown.update(position.pool.tokens, position.next_tokens)
    return sorted(shown)
