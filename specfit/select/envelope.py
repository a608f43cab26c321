"""What a cycle offers at a glance: how many legal subtrees there are, and which of them any price of time can pick.

Drawn as points (T, R), the legal subtrees that maximise R - lambda T for some lambda >= 0 are the corners of the upper
concave envelope: four or five of some three hundred. Equation 5's choice is among them, where a line from the origin
touches. With a cycle's corners at hand, h(lambda), lambda* and the bound of Equation 7 are sums over a few points.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from specfit.objective import MS_GRID, PROB_GRID, CostModel, CycleState, probs_on_grid
from specfit.routes import expert_union
from specfit.select.exact import branch_and_bound, times_on_grid
from specfit.tree import ROOT, DraftPool


@dataclass(frozen=True, slots=True)
class Corner:
    """A legal subtree with its exact reward and time."""

    nodes: tuple[int, ...]
    union: int  # F(S)
    reward_steps: int  # R(S) in steps of 2^-48
    time_steps: int  # T(S) in steps of 10^-12 ms

    @property
    def reward(self) -> Fraction:
        """R(S), expected committed tokens."""
        return Fraction(self.reward_steps, PROB_GRID)

    @property
    def ms(self) -> Fraction:
        """T(S), milliseconds."""
        return Fraction(self.time_steps, MS_GRID)

    @property
    def ratio(self) -> Fraction:
        """R(S) / T(S), tokens per millisecond; ZeroDivisionError for a time of zero."""
        return Fraction(self.reward_steps * MS_GRID, self.time_steps * PROB_GRID)


def count_subtrees(pool: DraftPool, *, max_nodes: int | None = None) -> int:
    """|A_K|, the root alone included, without listing them; None counts subtrees of any size.

    Each node carries a polynomial whose k-th coefficient counts the legal subtrees of k nodes within its branch: 1 for
    leaving it out, plus x times the product over its children.
    """
    limit = len(pool) if max_nodes is None else min(max_nodes, len(pool))
    inside: dict[int, list[int]] = {node: [1] for node in range(ROOT, len(pool))}  # products over children so far
    for node in range(len(pool) - 1, ROOT, -1):
        branch = [1, *inside.pop(node)]
        parent = pool.parents[node]
        inside[parent] = _product(inside[parent], branch, limit)
    return sum(inside[ROOT])


def corner(state: CycleState, nodes: tuple[int, ...], cost: CostModel) -> Corner:
    """The exact reward and time of given nodes."""
    intercepts, beta = times_on_grid(state, cost)
    probs, union = probs_on_grid(state.pool), expert_union(state.routes, nodes)
    reward = PROB_GRID + sum(probs[node] for node in nodes)
    return Corner(tuple(sorted(nodes)), union, reward, intercepts[len(nodes)] + beta * union)


def upper_envelope(state: CycleState, cost: CostModel, *, max_nodes: int = 7) -> tuple[Corner, ...]:
    """Corners of the upper concave envelope of all legal (T, R) points, by rising time and reward.

    Subtrees of equal reward and time are one point, named by the tie rule of Equation 5.
    """

    def best_at(by_reward: int, by_time: int) -> Corner:
        found = branch_and_bound(state, cost, max_nodes, weights=(by_reward, by_time))
        return corner(state, found.nodes, cost)

    intercepts, beta = times_on_grid(state, cost)
    longest = max(intercepts) + beta * state.routes.layers * state.routes.experts
    return trace_envelope(best_at, most_reward=PROB_GRID * (1 + len(state.pool)), most_time=longest)


def trace_envelope(best_at: Callable[[int, int], Corner], *, most_reward: int, most_time: int) -> tuple[Corner, ...]:
    """All corners from a solver of the linear form, by intersecting lines (Eisner and Severance).

    best_at(w_R, w_T) maximises w_R * R - w_T * T in grid steps, preferring larger rewards among equals. Between two
    known corners, the price at which they tie shows either a better corner or that there is none.
    """
    quickest = best_at(1, most_reward + 1)  # least time, then most reward
    richest = best_at(most_time + 1, 1)  # most reward, then least time
    found = [quickest]
    stack = [(quickest, richest)] if richest.reward_steps > quickest.reward_steps else []
    while stack:
        left, right = stack.pop()
        by_reward = right.time_steps - left.time_steps
        by_time = right.reward_steps - left.reward_steps
        middle = best_at(by_reward, by_time)
        above = by_reward * (middle.reward_steps - left.reward_steps) - by_time * (middle.time_steps - left.time_steps)
        assert above >= 0, f"a solver found {middle}, worse than {left} at weights {(by_reward, by_time)}"
        if above:
            stack += [(middle, right), (left, middle)]
        else:
            found.append(right)
    return tuple(found)


def breakpoints(corners: tuple[Corner, ...]) -> tuple[Fraction, ...]:
    """Prices of time, falling, at which the best subtree changes from one corner to the next."""
    return tuple(
        Fraction((b.reward_steps - a.reward_steps) * MS_GRID, (b.time_steps - a.time_steps) * PROB_GRID)
        for a, b in pairwise(corners)
    )


def _product(left: list[int], right: list[int], limit: int) -> list[int]:
    product = [0] * min(limit + 1, len(left) + len(right) - 1)
    for i, a in enumerate(left):
        for j, b in enumerate(right[: len(product) - i]):
            product[i + j] += a * b
    return product
