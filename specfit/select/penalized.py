"""The linear form of the selection: the legal subtree with the largest R(S) - lambda T(S) (Appendix A.1).

lambda is a price of time, in expected tokens per millisecond. At lambda = lambda*, the largest throughput that any
rule reaches over a stream of cycles, this is the throughput-optimal rule S*; at a cycle's own largest ratio it is
Equation 5. Ties go by the rule of Equation 5 (larger reward, smaller union, fewer nodes, smaller ids), so that at
that ratio both rules name the same tree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from specfit.objective import MS_GRID, PROB_GRID, CostModel, CycleState, Selection
from specfit.select.exact import branch_and_bound

Price = float | Fraction  # tokens per millisecond


@dataclass(frozen=True, slots=True)
class PenalizedPolicy:
    """argmax R - price * T as a policy, exact."""

    price: Price
    max_nodes: int = 7
    node_limit: int | None = None

    def __call__(self, state: CycleState, cost: CostModel, seed: tuple[int, ...] = ()) -> Selection:
        return penalized(state, cost, self.price, max_nodes=self.max_nodes, seed=seed, node_limit=self.node_limit)


def penalized(
    state: CycleState,
    cost: CostModel,
    price: Price,
    *,
    max_nodes: int = 7,
    seed: tuple[int, ...] = (),
    node_limit: int | None = None,
) -> Selection:
    """argmax over legal subtrees of R(S) - price * T(S), exact on the grids; a float price counts as it is stored.

    Raises ValueError for a price that is negative, infinite or NaN.
    """
    weights = weights_on_grid(price)
    return branch_and_bound(state, cost, max_nodes, seed=seed, node_limit=node_limit, weights=weights)


def weights_on_grid(price: Price) -> tuple[int, int]:
    """Integers (w_R, w_T) with w_R * R - w_T * T proportional to R - price * T, for R and T in grid steps."""
    if not (price >= 0 and math.isfinite(price)):
        raise ValueError(f"the price of time is {price}; expected a finite number of tokens per ms, 0 or more")
    exact = Fraction(price)
    return exact.denominator * MS_GRID, exact.numerator * PROB_GRID
