"""Algorithm 1 and the branch and bound: one answer, the paper's, on every pool."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings

from specfit.objective import CostModel, CycleState, evaluate
from specfit.routes import Routes, expert_union
from specfit.select import ExactPolicy, algorithm_1, legal_subtrees, root_only, select_exact
from specfit.theory.samples import sample_state
from specfit.tree import EMPTY_POOL, ROOT, DraftPool
from tests.pools import (
    PAPER_COST,
    all_legal,
    brute_force,
    certify,
    levels_of,
    odd_problem,
    random_state,
    sizes,
    small_costs,
    small_grown_state,
    small_state,
    small_states,
)


def test_algorithm_1_visits_every_legal_subtree_exactly_once() -> None:
    rng = random.Random(1)
    for _ in range(60):
        state, _, max_nodes = odd_problem(rng, largest=8)
        visited = [nodes for nodes, _, _ in legal_subtrees(state, max_nodes=max_nodes)]
        assert len(visited) == len(set(visited))
        assert sorted(visited) == sorted(all_legal(state.pool, max_nodes))


def test_algorithm_1_carries_reward_and_union_along() -> None:
    state = small_grown_state(3)
    for nodes, reward, bitmap in legal_subtrees(state, max_nodes=3):
        assert reward == 2**48 + sum(round(state.pool.path_probs[node] * 2**48) for node in nodes)
        assert bitmap.bit_count() == expert_union(state.routes, nodes)


def test_algorithm_1_is_the_best_of_all_subsets() -> None:
    rng = random.Random(2)
    for _ in range(250):
        state, cost, max_nodes = odd_problem(rng, largest=7)
        assert algorithm_1(state, cost, max_nodes=max_nodes).nodes == brute_force(state, cost, max_nodes)


@pytest.mark.parametrize("seed", range(8))
def test_branch_and_bound_equals_algorithm_1(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(400):
        state, cost, max_nodes = odd_problem(rng)
        assert select_exact(state, cost, max_nodes) == algorithm_1(state, cost, max_nodes=max_nodes)


@pytest.mark.parametrize("cost", [PAPER_COST, CostModel.affine(4, 0.1, expert_ms=0.15), CostModel((9.0,) * 8, 0.0)])
def test_branch_and_bound_equals_algorithm_1_on_pools_of_the_papers_shape(cost: CostModel) -> None:
    for seed in range(120):
        state = small_grown_state(seed)
        assert select_exact(state, cost) == algorithm_1(state, cost)


def test_full_sized_routes() -> None:
    for seed in range(4):
        state = sample_state(seed)
        certify(state, PAPER_COST, 7, select_exact(state, PAPER_COST))
        assert select_exact(state, PAPER_COST) == algorithm_1(state, PAPER_COST)


@settings(max_examples=150, deadline=None)
@given(state=small_states, cost=small_costs, max_nodes=sizes)
def test_tie_rich_pools(state: CycleState, cost: CostModel, max_nodes: int) -> None:
    chosen = select_exact(state, cost, max_nodes)
    assert chosen == algorithm_1(state, cost, max_nodes=max_nodes)
    assert chosen.nodes == brute_force(state, cost, max_nodes)


def test_counterexamples_print_as_python() -> None:
    # print_blob is on under CI=true and would add a line of its own after the call
    @settings(max_examples=200, database=None, deadline=None, print_blob=False, phases=(Phase.generate, Phase.shrink))
    @given(state=small_states)
    def wrong(state: CycleState) -> None:
        assert len(state.pool) < 2

    with pytest.raises(AssertionError) as caught:
        wrong()
    printed = "".join(caught.value.__notes__)
    assert "small_state(" in printed
    call = printed[printed.index("small_state(") : printed.rindex(")")].rstrip().rstrip(",")
    assert len(eval(call, {"small_state": small_state}).pool) == 2  # shrunk, and runs as it is printed


# -- seeds, limits ----------------------------------------------------------------------------------------------------


def test_a_seed_never_changes_the_answer() -> None:
    rng = random.Random(3)
    for _ in range(300):
        state, cost, max_nodes = odd_problem(rng)
        seed = rng.choice(list(legal_subtrees(state, max_nodes=max_nodes)))[0]
        assert select_exact(state, cost, max_nodes, seed=seed) == algorithm_1(state, cost, max_nodes=max_nodes)


def test_levels_seeded_with_the_level_before() -> None:
    for number in range(60):
        seed: tuple[int, ...] = ()
        for level in levels_of(small_grown_state(number)):
            chosen = ExactPolicy()(level, CostModel.affine(8, 0.2, expert_ms=0.3), seed=seed)
            assert chosen == algorithm_1(level, CostModel.affine(8, 0.2, expert_ms=0.3))
            seed = chosen.nodes


@pytest.mark.parametrize(
    ("seed", "message"),
    [((1,), "without its parent 0"), ((9,), "not in the pool"), ((0, 0), "twice"), ((0, 1, 2), "limit is K = 2")],
)
def test_an_illegal_seed_is_refused(seed: tuple[int, ...], message: str) -> None:
    state = small_state([(-1, 4, 1), (0, 4, 2), (1, 4, 4)])
    with pytest.raises(ValueError, match=message):
        select_exact(state, CostModel.affine(1, 0, expert_ms=0), 2, seed=seed)


def test_node_limit_says_what_it_did_not_prove() -> None:
    state = sample_state(1, width=10, levels=3, max_pool=60, layers=4)
    cost = CostModel.affine(20, 0.1, expert_ms=0.05, max_nodes=16)
    full = select_exact(state, cost, 16)
    assert full.proved
    for limit in (0, 1, 5):
        cut = select_exact(state, cost, 16, node_limit=limit)
        assert cut.nodes == evaluate(state, cut.nodes, cost).nodes
        assert cut.ratio <= full.ratio
        assert not cut.proved
    assert select_exact(state, cost, 16, node_limit=10**6) == full
    assert ExactPolicy(16, node_limit=0)(state, cost).proved is False


# -- odd but legal ----------------------------------------------------------------------------------------------------


def test_an_empty_pool_selects_the_root() -> None:
    state = CycleState(EMPTY_POOL, Routes(5, (), 1, 4))
    for chosen in (algorithm_1(state, PAPER_COST), select_exact(state, PAPER_COST), root_only(state, PAPER_COST)):
        assert chosen.nodes == ()
        assert chosen.union == 2


def test_nothing_pays() -> None:
    """Good drafts that still lose: every draft token brings two new experts and gains 0.44 tokens (case I1)."""
    nodes = 4
    pool = DraftPool((1, 2, 3, 4), (ROOT, 0, 1, 2), tuple(0.44 ** (depth + 1) for depth in range(nodes)))
    routes = Routes(0b11, tuple(0b11 << (2 * node + 2) for node in range(nodes)), 1, 10)
    state = CycleState(pool, routes)
    cost = CostModel((0.5,) * 8, 1.0)
    assert select_exact(state, cost).nodes == ()
    assert select_exact(state, cost) == algorithm_1(state, cost) == root_only(state, cost)
    ratios = [float(evaluate(state, range(size), cost).ratio) for size in range(nodes + 1)]
    assert ratios == sorted(ratios, reverse=True)


def test_certain_and_impossible_nodes() -> None:
    certain = small_state([(-1, 4, 0), (0, 4, 0), (1, 4, 0)])
    impossible = small_state([(-1, 0, 0), (0, 0, 0)])
    free = CostModel((1.0,) * 8, 0.5)
    assert select_exact(certain, free).nodes == (0, 1, 2)
    assert select_exact(impossible, free).nodes == ()  # a tie in ratio and reward; fewer nodes win


@pytest.mark.parametrize("layers", [0, 1])
def test_routes_without_experts(layers: int) -> None:
    pool = DraftPool((1, 2), (ROOT, ROOT), (0.5, 0.25))
    state = CycleState(pool, Routes(0, (0, 0), layers, 4))
    chosen = select_exact(state, CostModel((1.0, 1.0, 2.0), 1.0), 2)
    assert chosen == algorithm_1(state, CostModel((1.0, 1.0, 2.0), 1.0), max_nodes=2)
    assert chosen.nodes == (0,)
    assert chosen.union == 0


def test_intercepts_may_fall() -> None:
    state = small_grown_state(0)
    cost = CostModel((50.0, 49.0, 80.0, 47.0, 46.0, 90.0, 1.0, 44.0), 0.01)
    assert len(select_exact(state, cost).nodes) == 6
    assert select_exact(state, cost) == algorithm_1(state, cost)


def test_a_cost_of_zero_takes_the_richest() -> None:
    state = small_state([(-1, 4, 1), (-1, 2, 2)])
    zero = CostModel((0.0,) * 8, 0.0)
    assert select_exact(state, zero) == algorithm_1(state, zero)
    assert select_exact(state, zero).nodes == (0, 1)


def test_a_price_per_level_is_added_to_every_time() -> None:
    state = small_grown_state(5)
    cost = CostModel.affine(2, 0.1, expert_ms=0.2, level_ms=1.5)
    folded = replace(cost, intercepts_ms=tuple(b + 1.5 * 5 for b in cost.intercepts_ms), level_ms=0.0)
    assert select_exact(state, cost).nodes == select_exact(state, folded).nodes
    assert select_exact(state, cost) == algorithm_1(state, cost)
    assert select_exact(state, cost).predicted_ms == pytest.approx(select_exact(state, folded).predicted_ms)


def test_ties_go_by_reward_then_union_then_size_then_ids() -> None:
    flat = CostModel((1.0, 1.5, 2.0), 0.0)
    assert select_exact(small_state([(-1, 2, 0)]), flat, 1).nodes == (0,)  # 1/1 = 1.5/1.5: more reward
    even = CostModel((3.0, 3.0, 3.0), 0.0)
    assert select_exact(small_state([(-1, 2, 7), (-1, 2, 1)]), even, 1).nodes == (1,)  # smaller union
    assert select_exact(small_state([(-1, 2, 0), (-1, 0, 0)]), even, 2).nodes == (0,)  # fewer nodes
    assert select_exact(small_state([(-1, 2, 1), (-1, 2, 2)]), even, 1).nodes == (0,)  # smaller ids


def test_fewer_nodes_than_k_need_fewer_intercepts() -> None:
    state = random_state(random.Random(0), nodes=2)
    assert select_exact(state, CostModel((1.0, 1.0, 1.0), 0.1), 7) == algorithm_1(state, CostModel((1.0,) * 3, 0.1))


def test_a_long_chain_does_not_run_out_of_stack() -> None:
    nodes = 1100
    pool = DraftPool((0,) * nodes, tuple(range(-1, nodes - 1)), (1.0,) * nodes)
    state = CycleState(pool, Routes(1, (1,) * nodes, 1, 1))
    assert len(select_exact(state, CostModel((1.0,) * (nodes + 1), 0.1), nodes).nodes) == nodes


# -- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", [algorithm_1, select_exact])
def test_too_few_intercepts(solver: object) -> None:
    with pytest.raises(ValueError, match=r"b_0\.\.b_2; a tree of 7 draft nodes needs b_7"):
        solver(small_grown_state(0), CostModel((1.0, 1.0, 1.0), 0.1))  # type: ignore[operator]


@pytest.mark.parametrize("solver", [algorithm_1, select_exact])
@pytest.mark.parametrize("limit", [-1, 2.5, "7", None])
def test_a_limit_is_a_whole_number_from_0_on(solver: object, limit: object) -> None:
    with pytest.raises(ValueError, match=f"max_nodes is {limit!r}; expected a whole number of draft nodes"):
        solver(small_grown_state(0), PAPER_COST, max_nodes=limit)  # type: ignore[operator]


def test_a_node_limit_below_0() -> None:
    with pytest.raises(ValueError, match="node_limit is -1; expected 0 or more subtrees"):
        select_exact(small_grown_state(0), PAPER_COST, node_limit=-1)


def _pool(parents: tuple[int, ...], probs: tuple[float, ...]) -> DraftPool:
    return DraftPool(tuple(range(len(parents))), parents, probs)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: _pool((1, 0), (0.5, 0.5)), "node 0 has parent 1"),
        (lambda: _pool((0,), (0.5,)), "node 0 has parent 0"),
        (lambda: _pool((-1, 0), (0.5, 0.6)), "node 1 has path probability 0.6, above"),
        (lambda: _pool((-1,), (1.5,)), "node 0 has path probability 1.5"),
        (lambda: _pool((-1,), (float("nan"),)), "node 0 has path probability nan"),
        (lambda: Routes(0, (1 << 9,), 1, 4), "routes of node 0"),
        (lambda: Routes.from_indices([[0]], [[[1]], [[7]]], experts=4), r"node 1 routes to experts \[7\] in layer 0"),
        (lambda: CycleState(_pool((-1,), (0.5,)), Routes(0, (), 1, 4)), "routes are given for 0 nodes; the pool has 1"),
        (lambda: CostModel((1.0, float("nan")), 0.1), "b_1 is nan"),
        (lambda: CostModel((1.0, -2.0), 0.1), "b_1 is -2.0"),
        (lambda: CostModel((1.0,), -0.1), r"beta \(expert_ms\) is -0.1"),
    ],
)
def test_bad_input_is_one_sentence_that_names_the_place(build: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()  # type: ignore[operator]
