"""The paper's statements about throughput, each a test by its name, in rational arithmetic."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specfit.objective import CostModel, CycleState
from specfit.routes import expert_union
from specfit.select import ExactPolicy, PenalizedPolicy, PrefixPolicy, algorithm_1, root_only, select_exact
from specfit.theory import (
    demand_per_token,
    envelopes,
    h,
    lambda_star,
    lemma_1,
    lemma_2,
    proposition_1,
    theta,
)
from specfit.theory.throughput import dinkelbach
from tests.pools import (
    all_legal,
    brute_force,
    exact_values,
    levels_of,
    odd_problem,
    random_state,
    ratio,
    sizes,
    small_costs,
    small_grown_state,
    small_states,
)

COST = CostModel((8.0, 8.4, 8.5, 9.4, 9.1, 9.6, 9.5, 10.2), 0.31)  # not monotone, as fitted ones
prices = st.fractions(0, 4, max_denominator=12)


@settings(max_examples=100, deadline=None)
@given(state=small_states, data=st.data())
def test_section_3_2_the_union_is_monotone_and_submodular(state: CycleState, data: st.DataObject) -> None:
    ids = st.sets(st.integers(0, len(state.pool) - 1)) if len(state.pool) else st.just(set())
    small = data.draw(ids)
    large = small | data.draw(ids)
    for node in range(len(state.pool)):
        gain_small = expert_union(state.routes, small | {node}) - expert_union(state.routes, small)
        gain_large = expert_union(state.routes, large | {node}) - expert_union(state.routes, large)
        assert gain_large >= 0
        if node not in large:
            assert gain_large <= gain_small


@settings(max_examples=60, deadline=None)
@given(state=small_states, cost=small_costs, data=st.data())
def test_equation_6_pruning_rule(state: CycleState, cost: CostModel, data: st.DataObject) -> None:
    legal = all_legal(state.pool, 8)
    r0, t0, _ = exact_values(state, data.draw(st.sampled_from(legal)), cost)
    r, t, _ = exact_values(state, data.draw(st.sampled_from(legal)), cost)
    assert (r / t > r0 / t0) == ((t0 - t) / t0 > (r0 - r) / r0)


@settings(max_examples=100, deadline=None)
@given(state=small_states, cost=small_costs, price=prices, max_nodes=sizes)
def test_lemma_1_prices_move_time_toward_the_ratio(
    state: CycleState, cost: CostModel, price: Fraction, max_nodes: int
) -> None:
    assert lemma_1(state, cost, price, max_nodes=max_nodes) >= 0


@pytest.mark.parametrize("seed", range(4))
def test_proposition_1_gap_is_between_zero_and_the_bound(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(12):
        cost = COST if seed % 2 else CostModel.affine(rng.uniform(2, 9), rng.random(), expert_ms=rng.random())
        states = [random_state(rng, nodes=rng.randrange(0, 8), steps=rng.choice([0, 2, 4])) for _ in range(6)]
        found = proposition_1(states, cost)
        assert min(found.terms) >= 0
        assert 0 <= found.gap <= found.bound()
        assert found.bound_float == pytest.approx(float(found.bound()), rel=1e-9, abs=1e-15)


def test_proposition_1_parts_are_what_they_say() -> None:
    states = [small_grown_state(seed) for seed in range(25)]
    found = proposition_1(states, COST)
    for state, chosen, optimal, rho in zip(states, found.chosen, found.optimal, found.ratios, strict=True):
        assert chosen.nodes == algorithm_1(state, COST).nodes
        assert optimal.nodes == PenalizedPolicy(found.lambda_star)(state, COST).nodes
        assert rho == ratio(state, chosen.nodes, COST)
    assert found.differing > 0
    assert found.theta == theta(states, COST, ExactPolicy())


def test_proposition_1_is_tight_when_all_cycles_share_one_ratio() -> None:
    found = proposition_1([small_grown_state(1)] * 3, COST)
    assert found.gap == found.bound() == 0
    assert found.lambda_star == found.theta == found.ratios[0]


def test_lambda_star_is_the_best_of_all_rules() -> None:
    """Against every combination of subtrees, one for each cycle."""
    rng = random.Random(7)
    for _ in range(6):
        states = [random_state(rng, nodes=3, steps=4) for _ in range(3)]
        points = [[exact_values(s, nodes, COST)[:2] for nodes in all_legal(s.pool, 7)] for s in states]
        best = max((a[0] + b[0] + c[0]) / (a[1] + b[1] + c[1]) for a in points[0] for b in points[1] for c in points[2])
        assert lambda_star(states, COST) == best


def test_lambda_star_is_attained_and_no_policy_passes_it() -> None:
    states = [small_grown_state(seed) for seed in range(30)]
    best = lambda_star(states, COST)
    assert theta(states, COST, PenalizedPolicy(best)) == best
    for policy in (ExactPolicy(), PrefixPolicy(), PrefixPolicy(3), root_only):
        assert theta(states, COST, policy) <= best


def test_equation_9_h_falls_strictly_and_lambda_star_is_its_root() -> None:
    corners = envelopes([small_grown_state(seed) for seed in range(20)], COST)
    best, iterations = dinkelbach(corners)
    values = [h(corners, best * share / 10) for share in range(0, 21, 2)]
    assert all(a > b for a, b in pairwise(values))
    assert h(corners, 0) >= 1
    assert h(corners, best) == 0
    assert iterations <= 5


@settings(max_examples=80, deadline=None)
@given(state=small_states, cost=small_costs, more=st.integers(1, 8))
def test_section_3_4_raising_beta_cannot_raise_demand_per_token(state: CycleState, cost: CostModel, more: int) -> None:
    low = demand_per_token(state, cost, expert_ms=cost.expert_ms)
    assert demand_per_token(state, cost, expert_ms=cost.expert_ms + more / 4) <= low


@pytest.mark.parametrize("seed", range(3))
def test_lemma_2_adaptive_depth(seed: int) -> None:
    for number in range(25):
        state = small_grown_state(1000 * seed + number)
        cost = COST if seed else CostModel.affine(8, 0.2, expert_ms=0.5)
        found = lemma_2(state, cost)
        assert all(a.ratio <= b.ratio for a, b in pairwise(found.levels))
        full = algorithm_1(state, cost)
        assert found.full.selection.nodes == full.nodes
        deeper = any(state.pool.depths[node] > found.stopped.level for node in full.nodes)
        if not deeper:
            assert found.stopped.selection.nodes == full.nodes
        for before, after in pairwise(found.levels):  # the paper's other wording of the stop
            newest = any(state.pool.depths[node] == after.level for node in after.selection.nodes)
            assert newest == (before.selection.nodes != after.selection.nodes)


def test_lemma_2_choices_are_those_of_unseeded_searches() -> None:
    state = small_grown_state(8)
    found = lemma_2(state, COST)
    for choice, level in zip(found.levels[1:], levels_of(state), strict=True):
        assert choice.selection.nodes == brute_force(level, COST, 4) or len(choice.selection.nodes) > 4
        assert choice.selection == select_exact(level, COST)


def test_lemma_2_needs_levels() -> None:
    rng = random.Random(2)
    jumbled = next(
        s for s in (random_state(rng, nodes=6) for _ in range(99)) if [*s.pool.depths] != sorted(s.pool.depths)
    )
    with pytest.raises(ValueError, match="do not go level by level"):
        lemma_2(jumbled, COST)


def test_no_cycles() -> None:
    with pytest.raises(ValueError, match="there are no cycles"):
        lambda_star([], COST)


def test_a_time_of_zero() -> None:
    with pytest.raises(ValueError, match="cycle 1 has a legal subtree that takes 0 ms"):
        lambda_star(
            [small_grown_state(0), replace_routes(small_grown_state(0))], replace(COST, intercepts_ms=(0.0,) * 8)
        )


def replace_routes(state: CycleState) -> CycleState:
    routes = replace(state.routes, root=0, nodes=(0,) * len(state.pool))
    return CycleState(state.pool, routes)


def test_odd_problems_have_a_throughput() -> None:
    rng = random.Random(9)
    for _ in range(60):
        state, cost, max_nodes = odd_problem(rng, largest=6)
        found = proposition_1([state], cost, max_nodes=max_nodes)
        assert found.lambda_star == found.ratios[0] == ratio(state, brute_force(state, cost, max_nodes), cost)
