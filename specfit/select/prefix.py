"""The two rules that read no routes: plain autoregression, and EAGLE-3's re-rank of the drafted pool.

Both are policies like any other, (state, cost) -> Selection; the predicted time and the union they report come from
the state's estimate, so with routes unknown (no layers) the union is 0 and the time is that of the intercepts alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from specfit.objective import CostModel, CycleState, Selection, evaluate
from specfit.select.min_union import prefix_tree


def root_only(state: CycleState, cost: CostModel) -> Selection:
    """Verify the pending token alone: autoregressive decoding (AR)."""
    return evaluate(state, (), cost)


@dataclass(frozen=True, slots=True)
class PrefixPolicy:
    """EAGLE-3's rule: the `max_nodes` most probable nodes of the pool (all of a smaller pool), whatever they cost."""

    max_nodes: int = 7

    def __post_init__(self) -> None:
        if self.max_nodes < 0:
            raise ValueError(f"max_nodes is {self.max_nodes}; expected 0 or more draft nodes")

    def __call__(self, state: CycleState, cost: CostModel) -> Selection:
        return evaluate(state, prefix_tree(state, min(self.max_nodes, len(state.pool))), cost)
