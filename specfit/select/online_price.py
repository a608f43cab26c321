"""lambda* estimated on the way: the throughput-optimal rule (Appendix A.1) without a recorded stream to solve it on.

S* = argmax R - lambda* T needs the largest throughput that any rule reaches. Dinkelbach's iteration finds it as the
throughput of the rule for the last price; here the price of a cycle is the expected throughput of the choices so far,
sum R / sum T. The first cycle has no price and takes Equation 5's choice.
"""

from __future__ import annotations

from fractions import Fraction

from specfit.objective import MS_GRID, PROB_GRID, CostModel, CycleState, Selection
from specfit.select.envelope import corner
from specfit.select.exact import select_exact
from specfit.select.penalized import penalized
from specfit.tree import EMPTY_POOL, DraftPool


class OnlinePricePolicy:
    """A policy with a memory: one object a stream of requests; `fresh()` gives the next stream's.

    With adaptive depth it is asked after every level; only the last answer of a cycle, which is the one verified,
    counts.
    """

    def __init__(self, max_nodes: int = 7) -> None:
        self.max_nodes = max_nodes
        self._rewards = self._times = 0  # of the cycles behind us, in grid steps
        self._pending = (0, 0)  # of the newest choice
        self._pool: DraftPool = EMPTY_POOL

    def __call__(self, state: CycleState, cost: CostModel, seed: tuple[int, ...] = ()) -> Selection:
        if not _grew_from(self._pool, state.pool):  # a new cycle, so the choice before was verified
            self._rewards += self._pending[0]
            self._times += self._pending[1]
        price = self.price
        if price is None:
            chosen = select_exact(state, cost, self.max_nodes, seed=seed)
        else:
            chosen = penalized(state, cost, price, max_nodes=self.max_nodes, seed=seed)
        exact = corner(state, chosen.nodes, cost)
        self._pending, self._pool = (exact.reward_steps, exact.time_steps), state.pool
        return chosen

    @property
    def price(self) -> Fraction | None:
        """The present estimate of lambda*, tokens per millisecond; None before the first cycle's end."""
        if not self._times:
            return None
        return Fraction(self._rewards * MS_GRID, self._times * PROB_GRID)

    def fresh(self) -> OnlinePricePolicy:
        """The same rule without a memory."""
        return OnlinePricePolicy(self.max_nodes)


def _grew_from(old: DraftPool, new: DraftPool) -> bool:
    """Whether `new` is `old` with more levels, as within a cycle; no two cycles draft the same probabilities."""
    count = len(old)
    return 0 < count < len(new) and new.path_probs[:count] == old.path_probs and new.tokens[:count] == old.tokens
