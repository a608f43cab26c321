"""Recorded worlds for tests: the toy language of `tests.toys`, written down position by position."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specfit.routes import bitmap_experts
from specfit.world import Position, World, WorldPrompt
from tests.toys import EXPERTS, LAYERS, VOCABULARY, ToyDrafter, ToyWorld


def toy_recording(
    toy: ToyWorld,
    prompts: Sequence[Sequence[int]] = ((0, 1, 2), (1, 1, 2), (2, 1, 2)),
    *,
    limit: int = 40,
    eos: Sequence[int] = (),
    depth: int = 5,
    top_k: int = 2,
) -> World:
    """What `record_world` would write of a toy target and drafter."""
    recorded = tuple(
        _recorded(toy, number, tuple(prompt), limit=limit, eos=eos, depth=depth, top_k=top_k)
        for number, prompt in enumerate(prompts)
    )
    return World(
        workload="toy",
        prompts=recorded,
        layers=LAYERS,
        experts=EXPERTS,
        layer_experts=(EXPERTS,) * LAYERS,
        eos=frozenset(eos),
        made_with={"target": "toy", "drafter": "toy", "draft": {"top_k": top_k, "depth": depth}, "dtype": "float32"},
        tokens={token: f"t{token}" for token in range(VOCABULARY)},
    )


def _recorded(
    toy: ToyWorld, number: int, prompt: tuple[int, ...], *, limit: int, eos: Sequence[int], depth: int, top_k: int
) -> WorldPrompt:
    output = toy.greedy(prompt, limit, eos)
    drafter = ToyDrafter(toy, top_k=top_k, depth=depth)
    positions = []
    for at in range(len(output) - 1):
        context = [*prompt, *output[: at + 1]]
        drafter.context = context
        *_, pool = drafter.levels(max_depth=depth)
        truth = toy.truth(context, pool)
        positions.append(Position(pool, _ids([truth.routes.root, *truth.routes.nodes]), truth.next_tokens))
    rows = _ids([toy.route(prompt[: i + 1]) for i in range(len(prompt))])
    uses = [rows[:, layer].reshape(-1).tolist() for layer in range(LAYERS)]
    return WorldPrompt(
        request_id=f"toy/{number}/0",
        question_id=number,
        category="toy",
        prompt=prompt,
        output=tuple(output),
        output_text=" ".join(f"t{token}" for token in output),
        limit=limit,
        prefill=tuple(tuple(dict.fromkeys(reversed(used)))[::-1] for used in uses),
        positions=tuple(positions),
    )


def _ids(bitmaps: Sequence[int]) -> np.ndarray:
    """Expert ids of bitmaps, (rows, layers, top_k), ascending as the toy target uses them."""
    return np.array([bitmap_experts(bitmap, layers=LAYERS, experts=EXPERTS) for bitmap in bitmaps], dtype=np.int16)
