"""A cost of size alone: how many nodes pay when every tree of k nodes is taken to need the average experts.

This is Sequoia's view of the target (Chen et al., 2024), whose dynamic program weighs a tree's expected acceptance
against a measured time t(k) per size, carried over to cycle-by-cycle choice: t(k) = b_k + beta * E[F | k], with
E[F | k] measured once on recorded cycles. Of all trees of k nodes the k most probable then have the largest ratio, so a
choice is one comparison a size. What it cannot see is which nodes share experts: the difference to Equation 5 is what
the union of the very cycle is worth.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from specfit.objective import CostModel, CycleState, Selection, check_size, evaluate
from specfit.routes import expert_union
from specfit.select.min_union import prefix_tree


@dataclass(frozen=True, slots=True)
class SizeOnlyPolicy:
    """argmax over k of R(k most probable nodes) / (b_k + beta E[F | k]); it reads no routes."""

    unions: tuple[float, ...]  # (K + 1,) E[F | k], from `mean_unions`

    def __post_init__(self) -> None:
        if not self.unions or not all(union >= 0 and math.isfinite(union) for union in self.unions):
            raise ValueError(f"E[F | k] lists an expert count for every size from 0; got {self.unions}")

    def __call__(self, state: CycleState, cost: CostModel) -> Selection:
        limit = min(len(self.unions) - 1, len(state.pool))
        check_size(cost, limit)
        ranked = sorted(state.pool.path_probs, reverse=True)
        rewards = list(accumulate(ranked[:limit], initial=1.0))
        levels_ms = cost.level_ms * state.pool.levels
        times = [cost.intercepts_ms[k] + cost.expert_ms * self.unions[k] + levels_ms for k in range(limit + 1)]
        size = 0
        for k in range(1, limit + 1):
            if rewards[k] * times[size] > rewards[size] * times[k]:
                size = k
        return evaluate(state, prefix_tree(state, size), cost)


def mean_unions(states: Iterable[CycleState], max_nodes: int = 7) -> tuple[float, ...]:
    """E[F | k] for k = 0..max_nodes over recorded cycles: the mean union of each one's k most probable nodes.

    A pool of fewer than k nodes says nothing about k.
    Raises ValueError for a negative limit, or a size that no pool reaches.
    """
    if max_nodes < 0:
        raise ValueError(f"max_nodes is {max_nodes}; expected 0 or more draft nodes")
    sums, counts = [0] * (max_nodes + 1), [0] * (max_nodes + 1)
    for state in states:
        for k in range(min(max_nodes, len(state.pool)) + 1):
            sums[k] += expert_union(state.routes, prefix_tree(state, k))
            counts[k] += 1
    if not all(counts):
        raise ValueError(f"no recorded pool has {counts.index(0)} nodes, so E[F | {counts.index(0)}] is unknown")
    return tuple(total / count for total, count in zip(sums, counts, strict=True))
