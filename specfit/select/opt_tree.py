"""OPT-Tree's stop (TACL 2025): draft until one level more adds too little to the expected acceptance.

After level l the best tree of n nodes has an expected number of accepted drafts E_l, the sum of the n largest path
probabilities so far. Drafting ends with the first level for which E_l - E_{l-1} is at most a threshold; the tree is
then the n most probable nodes, so beside this rule the method takes `PrefixPolicy(n)`. Neither reads routes or costs:
what the target pays for the tree plays no part.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

from specfit.objective import Selection
from specfit.tree import DraftPool


@dataclass(frozen=True, slots=True)
class OptTreeStop:
    """A method's stop rule: whether the newest level adds at most `least_gain` expected accepted drafts."""

    max_nodes: int = 7  # n
    least_gain: float = 0.2  # delta; 0 drafts on for as long as a level adds anything

    def __post_init__(self) -> None:
        if self.max_nodes < 0:
            raise ValueError(f"max_nodes is {self.max_nodes}; expected 0 or more draft nodes")
        if not (self.least_gain >= 0 and math.isfinite(self.least_gain)):
            raise ValueError(f"least_gain is {self.least_gain}; expected a number of accepted drafts, 0 or more")

    def __call__(self, pool: DraftPool, selection: Selection) -> bool:
        levels = pool.levels
        before = sum(depth < levels for depth in pool.depths)
        gain = expected_accepted(pool.path_probs, self.max_nodes) - expected_accepted(
            pool.path_probs[:before], self.max_nodes
        )
        return gain <= self.least_gain


def expected_accepted(path_probs: tuple[float, ...], max_nodes: int) -> float:
    """E of the best tree of at most `max_nodes` nodes: the sum of the largest path probabilities."""
    return math.fsum(heapq.nlargest(max_nodes, path_probs))
