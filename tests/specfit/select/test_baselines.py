"""The baselines that are rules of their own: a chain, OPT-Tree's stop, a cost of size alone, the smallest union."""

from __future__ import annotations

from fractions import Fraction
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specfit.objective import CostModel, CycleState, Selection
from specfit.routes import Routes, expert_union
from specfit.select import (
    ChainPolicy,
    MinUnionPolicy,
    OptTreeStop,
    SizeOnlyPolicy,
    mean_unions,
    min_union_tree,
    prefix_tree,
    select_exact,
)
from specfit.select.opt_tree import expected_accepted
from specfit.tree import EMPTY_POOL, ROOT, DraftPool, is_legal
from tests.pools import PAPER_COST, all_legal, exact_values, levels_of, small_grown_state, small_states

EMPTY = CycleState(EMPTY_POOL, Routes(0, (), 1, 4))
NONE = Selection((), 1.0, 1.0, 0)


# -- chain -----------------------------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(state=small_states, length=st.integers(0, 9))
def test_a_chain_is_a_path_of_best_children(state: CycleState, length: int) -> None:
    nodes = ChainPolicy(length)(state, CostModel((1.0,) * 10, 1.0)).nodes
    assert is_legal(state.pool, nodes) and len(nodes) <= length
    children = state.pool.children()
    for above, node in zip((ROOT, *nodes), nodes, strict=False):
        best = max(state.pool.path_probs[child] for child in children[above])
        assert node in children[above] and state.pool.path_probs[node] == best
    end = nodes[-1] if nodes else ROOT
    assert len(nodes) == length or end not in children


def test_equal_children_go_by_lower_id_and_an_empty_pool_gives_the_root() -> None:
    pool = DraftPool((1, 2, 3, 4), (ROOT, ROOT, 1, 0), (0.5, 0.5, 0.4, 0.3))
    state = CycleState(pool, Routes(0, (0,) * 4, 0, 1))
    assert ChainPolicy(5)(state, PAPER_COST).nodes == (0, 3)
    assert ChainPolicy(5)(EMPTY, PAPER_COST).nodes == ()


# -- OPT-Tree --------------------------------------------------------------------------------------------------------


def test_opt_tree_drafts_on_while_a_level_adds_enough() -> None:
    pool = DraftPool(
        tuple(range(6)), (ROOT, ROOT, 0, 0, 2, 2), (0.9, 0.05, 0.5, 0.1, 0.25, 0.125)
    )  # best 3: 0.95, then 1.5, then 1.65
    by_hand = {1: 0.95, 2: 0.55, 3: 0.15}
    for level, gain in by_hand.items():
        drafted = pool.prefix(2 * level)
        assert not OptTreeStop(3, gain - 1e-9)(drafted, NONE)
        assert OptTreeStop(3, gain + 1e-9)(drafted, NONE)
    assert not OptTreeStop(6, 0.3)(pool, NONE)  # with room for all six the last level adds 0.375


@settings(max_examples=60, deadline=None)
@given(state=small_states, max_nodes=st.integers(0, 8))
def test_the_expected_acceptance_is_that_of_the_best_tree(state: CycleState, max_nodes: int) -> None:
    flat = CostModel((1.0,) * 9, 1.0)
    best = max(exact_values(state, nodes, flat)[0] for nodes in all_legal(state.pool, max_nodes)) - 1
    assert expected_accepted(state.pool.path_probs, max_nodes) == pytest.approx(float(best))


def test_its_stop_reads_neither_the_choice_nor_more_than_the_drafted_levels() -> None:
    states = levels_of(small_grown_state(3))
    for state in states:
        stop = OptTreeStop(7, 0.2)
        assert stop(state.pool, NONE) == stop(state.pool, select_exact(state, PAPER_COST))
    assert OptTreeStop(7, 0)(EMPTY_POOL, NONE)


# -- size alone ------------------------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(
    state=small_states,
    unions=st.lists(st.integers(0, 12).map(float), min_size=1, max_size=8).map(tuple),
    level_ms=st.sampled_from([0.0, 2.0]),
)
def test_size_only_is_the_best_legal_tree_under_its_cost(
    state: CycleState, unions: tuple[float, ...], level_ms: float
) -> None:
    cost = CostModel((4.0, 5.0, 4.5, 7.0, 6.0, 9.0, 8.0, 9.0), 0.5, level_ms)
    chosen = SizeOnlyPolicy(unions)(state, cost).nodes

    def ratio(nodes: tuple[int, ...]) -> Fraction:
        reward, _, _ = exact_values(state, nodes, CostModel((1.0,) * 9, 1.0))
        size = len(nodes)
        ms = Fraction(cost.intercepts_ms[size]) + Fraction(1, 2) * Fraction(unions[size])
        return reward / (ms + Fraction(level_ms) * state.pool.levels)

    best = max(ratio(nodes) for nodes in all_legal(state.pool, len(unions) - 1))
    assert ratio(chosen) == best


def test_mean_unions_are_means_over_pools_that_reach_the_size() -> None:
    states = [small_grown_state(number) for number in range(6)]
    short = CycleState(states[0].pool.prefix(2), states[0].routes.prefix(2))
    found = mean_unions([*states, short], 4)
    assert found[3] == fmean(expert_union(state.routes, prefix_tree(state, 3)) for state in states)
    assert found[0] == fmean(state.routes.root.bit_count() for state in (*states, short))
    with pytest.raises(ValueError, match=r"no recorded pool has 19 nodes, so E\[F \| 19\] is unknown"):
        mean_unions(states, 30)
    with pytest.raises(ValueError, match=r"no recorded pool has 0 nodes"):
        mean_unions([], 3)


def test_with_the_true_union_of_every_size_it_is_equation_5_on_prefixes() -> None:
    """Where all trees of a size need the same experts, size is all there is to know."""
    state = small_grown_state(2)
    one = CycleState(state.pool, Routes(0b1111, (0b1111,) * len(state.pool), 1, 8))
    for beta in (0.0, 0.5, 3.0):
        cost = CostModel.affine(3.0, 0.4, expert_ms=beta)
        assert SizeOnlyPolicy(mean_unions([one]))(one, cost) == select_exact(one, cost)


# -- smallest union --------------------------------------------------------------------------------------------------


def test_min_union_takes_all_of_a_smaller_pool() -> None:
    state = small_grown_state(1)
    assert MinUnionPolicy(4)(state, PAPER_COST).nodes == min_union_tree(state, 4)
    small = CycleState(state.pool.prefix(2), state.routes.prefix(2))
    assert MinUnionPolicy(4)(small, PAPER_COST).nodes == (0, 1)
    assert MinUnionPolicy(4)(EMPTY, PAPER_COST).nodes == ()


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: ChainPolicy(-1), "a chain's length is -1"),
        (lambda: MinUnionPolicy(-1), "size is -1"),
        (lambda: OptTreeStop(-1), "max_nodes is -1"),
        (lambda: OptTreeStop(7, float("nan")), "least_gain is nan"),
        (lambda: SizeOnlyPolicy(()), r"E\[F \| k\] lists an expert count for every size from 0; got \(\)"),
        (lambda: SizeOnlyPolicy((3.0, float("nan"))), "nan"),
        (lambda: mean_unions([], -1), "max_nodes is -1"),
        (lambda: SizeOnlyPolicy((1.0,) * 9)(small_grown_state(0), PAPER_COST), "needs b_8"),
    ],
)
def test_wrong_knobs(make: object, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        make()  # type: ignore[operator]
