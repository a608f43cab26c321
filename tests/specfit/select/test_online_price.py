"""lambda* learned on the way: counts each cycle once, and comes to the throughput-optimal rule."""

from __future__ import annotations

from fractions import Fraction

from specfit.objective import CostModel
from specfit.select import OnlinePricePolicy, penalized, select_exact
from specfit.select.envelope import corner
from specfit.theory.throughput import lambda_star
from tests.pools import levels_of, small_grown_state

COST = CostModel.affine(12.0, 0.3, expert_ms=0.4)
STATES = [small_grown_state(number) for number in range(120)]


def test_the_first_choice_is_equation_5_and_the_next_ones_are_priced() -> None:
    policy = OnlinePricePolicy()
    assert policy.price is None
    first = policy(STATES[0], COST)
    assert first == select_exact(STATES[0], COST)
    second = policy(STATES[1], COST)
    exact = corner(STATES[0], first.nodes, COST)
    assert policy.price == exact.ratio
    assert second == penalized(STATES[1], COST, exact.ratio)


def test_only_the_last_answer_of_a_cycle_counts() -> None:
    level_by_level, at_once = OnlinePricePolicy(), OnlinePricePolicy()
    for state in STATES[:10]:
        for drafted in levels_of(state):
            nodes = level_by_level(drafted, COST).nodes
        assert nodes == at_once(state, COST).nodes
        assert level_by_level.price == at_once.price


def test_it_comes_to_lambda_star() -> None:
    policy = OnlinePricePolicy()
    chosen = [policy(state, COST) for state in STATES]
    best = lambda_star(STATES, COST)
    assert abs(policy.price / best - 1) < Fraction(5, 100)
    late = [corner(state, one.nodes, COST) for state, one in zip(STATES[60:], chosen[60:], strict=True)]
    reached = sum(c.reward for c in late) / sum(c.ms for c in late)
    other_best = lambda_star(STATES[60:], COST)
    assert float(reached) >= 0.99 * float(other_best)


def test_a_fresh_one_remembers_nothing() -> None:
    policy = OnlinePricePolicy(5)
    for state in STATES[:3]:
        policy(state, COST)
    again = policy.fresh()
    assert again.price is None and again.max_nodes == 5
    assert policy.price is not None
