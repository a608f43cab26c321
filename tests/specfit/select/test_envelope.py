"""The number of legal subtrees, and the corners of their upper envelope."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import pairwise

from hypothesis import given, settings

from specfit.objective import CostModel, CycleState
from specfit.select import algorithm_1, breakpoints, corner, count_subtrees, legal_subtrees, upper_envelope
from specfit.tree import EMPTY_POOL, ROOT, DraftPool
from tests.pools import all_legal, exact_values, odd_problem, sizes, small_costs, small_grown_state, small_states


@settings(max_examples=120, deadline=None)
@given(state=small_states, max_nodes=sizes)
def test_the_count_is_that_of_the_definition_and_of_the_walk(state: CycleState, max_nodes: int) -> None:
    count = count_subtrees(state.pool, max_nodes=max_nodes)
    assert count == len(all_legal(state.pool, max_nodes))
    assert count == sum(1 for _ in legal_subtrees(state, max_nodes=max_nodes))


def test_counts_known_by_hand() -> None:
    chain = DraftPool((0,) * 5, (-1, 0, 1, 2, 3), (1.0,) * 5)
    star = DraftPool((0,) * 5, (ROOT,) * 5, (1.0,) * 5)
    assert count_subtrees(EMPTY_POOL) == 1
    assert count_subtrees(chain) == 6
    assert count_subtrees(star) == 32
    assert count_subtrees(star, max_nodes=2) == 1 + 5 + 10
    assert count_subtrees(star, max_nodes=0) == 1
    wide = DraftPool((0,) * 200, (ROOT,) * 200, (1.0,) * 200)
    assert count_subtrees(wide) == 2**200


def test_the_papers_pool_has_some_three_hundred() -> None:
    counts = [count_subtrees(small_grown_state(seed).pool, max_nodes=7) for seed in range(50)]
    assert min(counts) >= 247
    assert max(counts) <= 316


@settings(max_examples=100, deadline=None)
@given(state=small_states, cost=small_costs, max_nodes=sizes)
def test_the_envelope_holds_the_best_for_every_price(state: CycleState, cost: CostModel, max_nodes: int) -> None:
    corners = upper_envelope(state, cost, max_nodes=max_nodes)
    points = [exact_values(state, nodes, cost)[:2] for nodes in all_legal(state.pool, max_nodes)]
    changes = breakpoints(corners)
    assert list(changes) == sorted(set(changes), reverse=True)  # strictly concave: no corner is superfluous
    between = [(a + b) / 2 for a, b in pairwise(changes)]
    for price in [Fraction(0), Fraction(1, 3), Fraction(7), *changes, *between]:
        best = max(reward - price * ms for reward, ms in points)
        assert max(c.reward - price * c.ms for c in corners) == best
    for one in corners:
        assert (one.reward, one.ms) == exact_values(state, one.nodes, cost)[:2]


def test_equation_5_touches_the_envelope() -> None:
    rng = random.Random(6)
    for _ in range(150):
        state, cost, max_nodes = odd_problem(rng, largest=8)
        chosen = algorithm_1(state, cost, max_nodes=max_nodes)
        assert chosen.nodes in [c.nodes for c in upper_envelope(state, cost, max_nodes=max_nodes)]


def test_a_corner_states_exact_values() -> None:
    state, cost = small_grown_state(2), CostModel.affine(5, 0.3, expert_ms=0.4, level_ms=0.7)
    one = corner(state, (0, 2), cost)
    assert (one.reward, one.ms, one.union) == exact_values(state, (0, 2), cost)
    assert one.ratio == one.reward / one.ms
