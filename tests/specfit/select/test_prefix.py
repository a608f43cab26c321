"""AR, EAGLE-3's re-rank, and the two probe trees."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings

from specfit.objective import CostModel, CycleState
from specfit.routes import Routes
from specfit.select import PrefixPolicy, min_union_tree, prefix_tree, root_only
from specfit.tree import EMPTY_POOL, ROOT, DraftPool, is_legal
from tests.pools import PAPER_COST, all_legal, certify, exact_values, random_state, small_grown_state, small_states


def test_eagle_3_takes_the_most_probable_nodes() -> None:
    state = small_grown_state(4)
    chosen = PrefixPolicy(7)(state, PAPER_COST)
    left_out = [p for node, p in enumerate(state.pool.path_probs) if node not in chosen.nodes]
    assert len(chosen.nodes) == 7
    assert min(state.pool.path_probs[node] for node in chosen.nodes) >= max(left_out)


@settings(max_examples=100, deadline=None)
@given(state=small_states)
def test_a_prefix_is_always_legal(state: CycleState) -> None:
    for size in range(len(state.pool) + 1):
        chosen = prefix_tree(state, size)
        assert len(chosen) == size
        assert is_legal(state.pool, chosen)
        flat = CostModel((1.0,) * 9, 1.0)
        best = max(exact_values(state, nodes, flat)[0] for nodes in all_legal(state.pool, size))
        assert exact_values(state, chosen, flat)[0] == best


def test_equal_probabilities_go_by_lower_id() -> None:
    pool = DraftPool((1, 2, 3, 4), (ROOT, ROOT, 0, 1), (0.5, 0.5, 0.5, 0.5))
    state = CycleState(pool, Routes(0, (0,) * 4, 0, 1))
    assert [prefix_tree(state, size) for size in range(5)] == [(), (0,), (0, 1), (0, 1, 2), (0, 1, 2, 3)]


def test_rules_that_read_no_routes_work_without_them() -> None:
    pool = small_grown_state(4).pool
    blind = CycleState(pool, Routes(0, (0,) * len(pool), 0, 128))
    assert PrefixPolicy(7)(blind, PAPER_COST).nodes == PrefixPolicy(7)(small_grown_state(4), PAPER_COST).nodes
    assert PrefixPolicy(7)(blind, PAPER_COST).union == 0
    assert PrefixPolicy(7)(blind, PAPER_COST).predicted_ms == PAPER_COST.intercepts_ms[7]
    assert root_only(blind, PAPER_COST).predicted_ms == PAPER_COST.intercepts_ms[0]


def test_a_small_pool_is_verified_whole() -> None:
    state = random_state(random.Random(0), nodes=3)
    assert PrefixPolicy(7)(state, PAPER_COST).nodes == (0, 1, 2)
    assert PrefixPolicy(0)(state, PAPER_COST) == root_only(state, PAPER_COST)
    empty = CycleState(EMPTY_POOL, Routes(0, (), 1, 4))
    assert PrefixPolicy(7)(empty, PAPER_COST).nodes == ()


def test_root_alone_certifies_when_drafts_cost_too_much() -> None:
    state, dear = small_grown_state(0), CostModel.affine(1, 100, expert_ms=9)
    certify(state, dear, 7, root_only(state, dear))


@settings(max_examples=100, deadline=None)
@given(state=small_states)
def test_the_min_union_tree_is_the_smallest_of_its_size(state: CycleState) -> None:
    cost = CostModel((1.0,) * 9, 1.0)

    def key(nodes: tuple[int, ...]) -> tuple[object, ...]:
        reward, _, union = exact_values(state, nodes, cost)
        return (union, -reward, nodes)

    for size in range(len(state.pool) + 1):
        same = [nodes for nodes in all_legal(state.pool, size) if len(nodes) == size]
        assert min_union_tree(state, size) == min(same, key=key)


@pytest.mark.parametrize("tree", [prefix_tree, min_union_tree])
@pytest.mark.parametrize("size", [-1, 19])
def test_a_probe_tree_of_a_size_the_pool_has_not(tree: object, size: int) -> None:
    with pytest.raises(ValueError, match=rf"a probe tree of {size} nodes was asked from a pool of 18"):
        tree(small_grown_state(0), size)  # type: ignore[operator]


def test_a_negative_limit() -> None:
    with pytest.raises(ValueError, match="max_nodes is -2"):
        PrefixPolicy(-2)
