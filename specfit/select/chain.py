"""A chain of drafts: the most probable child again and again, as drafting without a tree would have it.

The plainest baseline: the first wrong draft ends it. It reads neither routes nor costs.
"""

from __future__ import annotations

from dataclasses import dataclass

from specfit.objective import CostModel, CycleState, Selection, evaluate
from specfit.tree import ROOT


@dataclass(frozen=True, slots=True)
class ChainPolicy:
    """The greedy chain of `length` nodes from the root, or as long as the pool has one."""

    length: int

    def __post_init__(self) -> None:
        if self.length < 0:
            raise ValueError(f"a chain's length is {self.length}; expected 0 or more draft nodes")

    def __call__(self, state: CycleState, cost: CostModel) -> Selection:
        return evaluate(state, chain_tree(state, self.length), cost)


def chain_tree(state: CycleState, length: int) -> tuple[int, ...]:
    """Node ids of the greedy chain, at most `length` of them; equal probabilities by lower id."""
    children, probs = state.pool.children(), state.pool.path_probs
    chain: list[int] = []
    at = ROOT
    while len(chain) < length and at in children:
        at = max(children[at], key=lambda node: (probs[node], -node))
        chain.append(at)
    return tuple(chain)
