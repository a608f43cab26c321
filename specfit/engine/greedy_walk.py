"""One prompt decoded greedily, a token a step, with the target asked over the full pool at every position.

What atlases and worlds are made of: neither policy, cost nor cache can change it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from specfit.engine.layer_kinds import check_one_rope
from specfit.tree import DraftPool

if TYPE_CHECKING:
    from specfit.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class Step:
    """One position: row 0 is the root, row 1 + v is node v."""

    pool: DraftPool  # n nodes
    indices: NDArray[np.int16]  # (1 + n, layers, top_k) expert ids, in router order
    next_tokens: tuple[int, ...]  # (1 + n,) the target's own


@dataclass(frozen=True, slots=True)
class GreedyWalk:
    """A prompt's greedy text; step i has output[i] as its root."""

    output: tuple[int, ...]
    prefill: tuple[tuple[int, ...], ...]  # for each layer the distinct experts of the prompt, last used last
    steps: tuple[Step, ...]


def walk_greedily(
    engine: Engine,
    prompt: Sequence[int],
    *,
    max_new_tokens: int,
    watch: Callable[[int, Step], None] = lambda root, step: None,
) -> GreedyWalk:
    """Decode one prompt and ask about every position, off the clock; an engine with all experts resident is fastest.

    watch: is told every root and step while the drafter still holds the states of its pool.
    Raises ValueError for a prompt that `check_walk` refuses, or an engine without a drafter.
    """
    target, drafter = engine.target, engine.drafter
    if drafter is None:
        raise ValueError("an atlas holds routes of drafted pools; load the engine with a drafter")
    check_walk(engine, prompt, max_new_tokens)
    with engine.offload.link.off_the_clock():
        drafter.begin()
        output = [target.prefill(prompt).next_tokens[0]]
        prefill = tuple(tuple(dict.fromkeys(reversed(layer.uses)))[::-1] for layer in engine.offload.layers)
        drafter.extend([*prompt[1:], output[0]], target.commit(()))
        steps = []
        while len(output) < max_new_tokens and output[-1] not in engine.eos:
            pool = drafter.full_pool()
            verdict = target.verify(output[-1], pool, range(len(pool)))
            indices = np.asarray(engine.offload.indices(1 + len(pool)), dtype=np.int16)
            steps.append(Step(pool, indices, verdict.next_tokens))
            watch(output[-1], steps[-1])
            output.append(verdict.next_tokens[0])
            drafter.extend(output[-1:], target.commit((0,)))
    return GreedyWalk(tuple(output), prefill, tuple(steps))


def check_walk(engine: Engine, prompt: Sequence[int], max_new_tokens: int) -> None:
    """ValueError for a prompt that does not fit, or whose full pools would pass where rotary frequencies change."""
    engine.check_prompt(prompt, max_new_tokens)
    ahead = engine.drafter.config.depth if engine.drafter is not None else 0  # what is drafted past the last root
    check_one_rope(engine.target.config, prompt=len(prompt), new=max_new_tokens + ahead)
