"""Cycle states like a drafter's, made from a seed: to try a rule, a picture or a clock without a model.

Pools grow as EAGLE's do and routes overlap as real ones were seen to. They resemble, they are no measurement.
"""

from __future__ import annotations

import random

from specfit.objective import CycleState
from specfit.routes import Routes
from specfit.tree import ROOT, DraftPool


def sample_state(
    seed: int,
    *,
    width: int = 2,
    levels: int = 5,
    max_pool: int | None = None,
    layers: int = 48,
    experts: int = 128,
    top_k: int = 8,
) -> CycleState:
    """A state with a grown pool, cut to max_pool nodes; the defaults are the paper's size, 18 nodes and 48 x 128."""
    rng = random.Random(seed)
    pool = grown_pool(rng, width=width, levels=levels, confidence=0.3 + 0.6 * rng.random())
    pool = pool.prefix(len(pool) if max_pool is None else max_pool)
    return CycleState(pool, shared_routes(rng, pool, layers=layers, experts=experts, top_k=top_k))


def grown_pool(rng: random.Random, *, width: int = 2, levels: int = 5, confidence: float = 0.8) -> DraftPool:
    """A pool as EAGLE's drafter grows it: `width` children each for the `width` best nodes of the newest level.

    width 2 and 5 levels give the paper's 18 nodes; confidence is the mean probability of a first child.
    """
    parents: list[int] = []
    probs: list[float] = []
    newest = [ROOT]
    for _ in range(levels):
        grown = []
        for parent in newest:
            above, left = (1.0 if parent == ROOT else probs[parent]), 1.0
            for _child in range(width):
                share = left * rng.betavariate(4 * confidence, 4 * (1 - confidence))
                left -= share
                grown.append(len(parents))
                parents.append(parent)
                probs.append(above * share)
        newest = sorted(grown, key=lambda node: -probs[node])[:width]
    return DraftPool(tuple(rng.randrange(1000) for _ in parents), tuple(parents), tuple(probs))


def shared_routes(
    rng: random.Random, pool: DraftPool, *, layers: int = 48, experts: int = 128, top_k: int = 8
) -> Routes:
    """Routes that overlap as real ones do: two thirds from the document's experts, some from the parent's, some any."""
    if not 0 <= top_k <= experts:
        raise ValueError(f"top_k is {top_k} of {experts} experts; expected at most all")
    everything = range(experts)
    document = [rng.sample(everything, min(top_k + 4, experts)) for _ in range(layers)]

    def route(above: list[list[int]] | None) -> list[list[int]]:
        picked = []
        for layer in range(layers):
            ids: list[int] = []
            while len(ids) < top_k:
                draw = rng.random()
                near = document[layer] if draw < 0.66 else above[layer] if above and draw < 0.8 else everything
                pick = rng.choice(near)
                if pick not in ids:
                    ids.append(pick)
            picked.append(ids)
        return picked

    root = route(None)
    nodes: list[list[list[int]]] = []
    for parent in pool.parents:
        nodes.append(route(root if parent == ROOT else nodes[parent]))
    return Routes.from_indices(root, nodes, experts=experts)
