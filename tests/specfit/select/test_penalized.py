"""R - lambda T: exact, its ties as in Equation 5, and one with it at the largest ratio."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specfit.objective import CostModel, CycleState
from specfit.select import PenalizedPolicy, algorithm_1, penalized, upper_envelope
from specfit.theory.throughput import best_corner, optimal_at
from tests.pools import (
    PAPER_COST,
    all_legal,
    exact_values,
    odd_problem,
    ratio,
    small_costs,
    small_grown_state,
    small_states,
)


def best_by_hand(state: CycleState, cost: CostModel, price: Fraction, max_nodes: int) -> tuple[int, ...]:
    def key(nodes: tuple[int, ...]) -> tuple[object, ...]:
        reward, ms, union = exact_values(state, nodes, cost)
        return (price * ms - reward, -reward, union, len(nodes), nodes)

    return min(all_legal(state.pool, max_nodes), key=key)


@settings(max_examples=120, deadline=None)
@given(state=small_states, cost=small_costs, price=st.fractions(0, 3, max_denominator=8), max_nodes=st.integers(0, 8))
def test_penalized_is_the_best_of_all_subsets(
    state: CycleState, cost: CostModel, price: Fraction, max_nodes: int
) -> None:
    assert penalized(state, cost, price, max_nodes=max_nodes).nodes == best_by_hand(state, cost, price, max_nodes)


def test_at_the_largest_ratio_it_is_equation_5() -> None:
    rng = random.Random(4)
    for _ in range(200):
        state, cost, max_nodes = odd_problem(rng, largest=7)
        chosen = algorithm_1(state, cost, max_nodes=max_nodes)
        price = ratio(state, chosen.nodes, cost)
        assert penalized(state, cost, price, max_nodes=max_nodes) == chosen


def test_the_envelope_answers_for_every_price() -> None:
    rng = random.Random(5)
    for number in range(40):
        state, cost = small_grown_state(number), CostModel.affine(5, 0.3, expert_ms=0.4)
        corners = upper_envelope(state, cost)
        price = Fraction(rng.randrange(1, 400), 1000)
        assert optimal_at(corners, price).nodes == PenalizedPolicy(price)(state, cost).nodes
        assert best_corner(corners).nodes == algorithm_1(state, cost).nodes


def test_a_float_price_counts_as_stored() -> None:
    state = small_grown_state(1)
    assert penalized(state, PAPER_COST, 0.01) == penalized(state, PAPER_COST, Fraction(0.01))


@pytest.mark.parametrize("price", [-0.1, float("nan"), float("inf")])
def test_a_price_that_is_no_price(price: float) -> None:
    with pytest.raises(ValueError, match="the price of time is"):
        penalized(small_grown_state(1), PAPER_COST, price)
