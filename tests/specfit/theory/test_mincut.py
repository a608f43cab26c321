"""Proposition 2, second half: minimum cuts, nested, exact whatever the flow function; and their refusals."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import pairwise

import pytest
from networkx.algorithms import flow

from specfit.objective import CostModel, CycleState
from specfit.routes import Routes
from specfit.select import corner, select_exact, upper_envelope
from specfit.theory import min_cut, min_cut_at, nested_cuts
from specfit.theory.mincut import ClosureNetwork, pair_groups, single_pairs
from specfit.theory.samples import sample_state
from specfit.tree import ROOT, DraftPool
from tests.pools import (
    affine_problem,
    all_legal,
    exact_values,
    random_state,
    ratio,
    small_grown_state,
    small_state,
)

FLOWS = [
    flow.boykov_kolmogorov,
    flow.preflow_push,
    flow.dinitz,
    flow.edmonds_karp,
    flow.shortest_augmenting_path,
]


@pytest.mark.parametrize("seed", range(4))
def test_proposition_2_the_best_cut_has_the_largest_ratio(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(75):
        state, cost = affine_problem(rng, largest=10)
        largest = ratio(state, select_exact(state, cost, len(state.pool)).nodes, cost)
        assert ratio(state, min_cut(state, cost).nodes, cost) == largest
        assert max(c.ratio for c in nested_cuts(state, cost).cuts) == largest


def test_proposition_2_cuts_are_nested_and_give_every_optimum() -> None:
    rng = random.Random(20)
    for _ in range(60):
        state, cost = affine_problem(rng)
        found = nested_cuts(state, cost)
        assert all(set(a.nodes) < set(b.nodes) for a, b in pairwise(found.cuts))
        assert len(found.cuts) <= len(state.pool) + 1
        envelope = upper_envelope(state, cost, max_nodes=len(state.pool))
        assert [(c.reward, c.ms) for c in found.cuts] == [(c.reward, c.ms) for c in envelope]
        assert all(a > b for a, b in pairwise(found.prices))


def test_a_full_sized_pool() -> None:
    state, cost = sample_state(2), CostModel.affine(140, 2, expert_ms=0.21, max_nodes=18)
    assert min_cut(state, cost) == select_exact(state, cost, 18)


def test_grouped_and_ungrouped_networks_agree() -> None:
    rng = random.Random(21)
    for _ in range(40):
        state, cost = affine_problem(rng)
        price = Fraction(rng.randrange(0, 9), 10)
        one, other = (min_cut_at(state, cost, price, grouped=grouped) for grouped in (True, False))
        assert one == other
        best = max(r - price * t for r, t, _ in (exact_values(state, s, cost) for s in all_legal(state.pool, 9)))
        reward, ms, _ = exact_values(state, one.nodes, cost)
        assert reward - price * ms == best


def test_groups_name_minimal_nodes_and_count_every_pair_once() -> None:
    state = small_state([(-1, 4, 0b000011), (0, 4, 0b000110), (-1, 4, 0b001110)], root=0b001000)
    assert sorted(pair_groups(state)) == [((0,), 1), ((0, 2), 1), ((1, 2), 1)]
    assert sorted(single_pairs(state)) == [((0,), 1), ((0, 1, 2), 1), ((1, 2), 1)]
    big = small_grown_state(0)
    assert sum(pairs for _, pairs in pair_groups(big)) == len(single_pairs(big))
    assert len(pair_groups(big)) < len(single_pairs(big))


@pytest.mark.parametrize("function", FLOWS, ids=lambda f: f.__name__)
def test_case_g1_a_partition_is_never_just_believed(function: object) -> None:
    """The shape on which float capacities gave wrong partitions: a chain with experts {1}, {2}, {1, 2} at 0.3 ms."""
    pool = DraftPool((0, 1, 2), (ROOT, 0, 1), (0.63, 0.42, 0.03))
    state = CycleState(pool, Routes(0, (0b010, 0b100, 0b110), 1, 3))
    cost = CostModel((1.0,) * 4, 0.3)
    network = ClosureNetwork(state, cost, flow=function)  # type: ignore[arg-type]
    for price in [Fraction(n, 20) for n in range(61)]:
        found = network.best_at(price.denominator * 10**12, price.numerator * 2**48)
        wanted = max(r - price * t for r, t, _ in (exact_values(state, s, cost) for s in all_legal(pool, 3)))
        assert found.reward - price * found.ms == wanted


@pytest.mark.parametrize("function", FLOWS, ids=lambda f: f.__name__)
def test_every_flow_function_on_the_same_networks(function: object) -> None:
    rng = random.Random(22)
    for _ in range(30):
        state, cost = affine_problem(rng, largest=7)
        network = ClosureNetwork(state, cost, flow=function)  # type: ignore[arg-type]
        weights = rng.randrange(1, 9) * 10**12, rng.randrange(0, 9) * 2**48
        assert network.best_at(*weights) == ClosureNetwork(state, cost).best_at(*weights)


def test_case_g1_a_wrong_partition_is_an_error() -> None:
    def broken(graph: object, source: object, sink: object, **rest: object) -> object:
        residual = flow.boykov_kolmogorov(graph, source, sink, **rest)
        for _, _, arc in residual.edges(data=True):
            arc["flow"] = arc["capacity"] if arc["capacity"] < 2**62 else 0
        return residual

    cost = CostModel.affine(4, 0.1, expert_ms=0.2, max_nodes=18)
    network = ClosureNetwork(small_grown_state(3), cost, flow=broken)
    with pytest.raises(ArithmeticError, match="broken returned nodes"):
        network.best_at(20 * 10**12, 2**48)


@pytest.mark.parametrize("function", FLOWS, ids=lambda f: f.__name__)
def test_case_g2_nothing_to_gain_is_the_root_alone(function: object) -> None:
    state = small_state([(-1, 0, 1), (0, 0, 2), (-1, 0, 4)])
    cost = CostModel.affine(1, 0.5, expert_ms=0.5, max_nodes=3)
    assert ClosureNetwork(state, cost, flow=function).best_at(10**12, 2**48).nodes == ()  # type: ignore[arg-type]
    assert min_cut(state, cost).nodes == ()
    assert min_cut(CycleState(state.pool.prefix(0), state.routes.prefix(0)), cost).nodes == ()


def test_case_g4_certain_nodes_and_huge_costs_stay_finite() -> None:
    state = small_state([(-1, 4, 63), (0, 4, 63)])
    cost = CostModel.affine(1, 1e9, expert_ms=1e9, max_nodes=2)
    assert min_cut(state, cost).nodes == ()
    with pytest.raises(ValueError, match=r"beta \(expert_ms\) is inf"):
        CostModel.affine(1, 1, expert_ms=float("inf"))
    with pytest.raises(ValueError, match="the price of time is inf"):
        min_cut_at(state, cost, float("inf"))


@pytest.mark.parametrize("intercepts", [(1.0, 2.0, 2.5, 3.0), (3.0, 2.0, 1.0, 0.0), (1.0, 1.0, 1.0, 1.1)])
def test_other_intercepts_are_refused_by_name(intercepts: tuple[float, ...]) -> None:
    state = random_state(random.Random(0), nodes=3)
    with pytest.raises(ValueError, match=r"affine, nondecreasing intercepts \(Prop. 2\); got b = \[.*use select_exact"):
        min_cut(state, CostModel(intercepts, 0.1))


def test_too_few_intercepts() -> None:
    with pytest.raises(ValueError, match=r"a tree of 18 draft nodes needs b_18"):
        min_cut(small_grown_state(0), CostModel.affine(1, 1, expert_ms=1, max_nodes=7))


def test_a_fitted_line_may_be_bent_by_rounding() -> None:
    state = small_grown_state(5)
    cost = CostModel.affine(4.0123456789012345, 0.1234567890123456, expert_ms=0.2, max_nodes=18)
    assert min_cut(state, cost).nodes == select_exact(state, cost, 18).nodes


def test_a_price_per_level_counts() -> None:
    rng = random.Random(23)
    for _ in range(30):
        state = random_state(rng, nodes=7)
        cost = CostModel.affine(1, 0.25, expert_ms=0.1, level_ms=0.5, max_nodes=7)
        largest = corner(state, select_exact(state, cost, 7).nodes, cost).ratio
        assert corner(state, min_cut(state, cost).nodes, cost).ratio == largest
