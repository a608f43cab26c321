from dataclasses import replace

import pytest

from specfit.cycle import accepted_path
from specfit.methods import EAGLE3, SPECFIT
from specfit.objective import CycleState, evaluate
from specfit.select import legal_subtrees
from specfit.tree import is_legal
from tests.toys import TOY_COST, toy_run
from workbench.choices import (
    ar_choice,
    choice,
    deeper,
    eagle3_choice,
    eagle3_nodes,
    with_ancestors,
    without_descendants,
    would_commit,
)
from workbench.run_facts import cycle_order, run_cost

CYCLES = [cycle for _, cycle in toy_run(SPECFIT).cycles()][:6]


@pytest.mark.parametrize("cycle", CYCLES, ids=lambda cycle: f"cycle{cycle.index}")
def test_every_legal_subtree_is_worth_what_the_core_says(cycle):
    state = CycleState(cycle.pool, cycle.estimate)
    for nodes, _, _ in legal_subtrees(state, max_nodes=3):
        made, right = choice("", cycle, nodes, TOY_COST), evaluate(state, nodes, TOY_COST)
        assert (made.reward, made.predicted_ms, made.union) == (right.reward, right.predicted_ms, right.union)
        assert made.ratio == right.ratio


@pytest.mark.parametrize("cycle", CYCLES, ids=lambda cycle: f"cycle{cycle.index}")
def test_without_an_atlas_the_committed_count_is_the_same_or_a_lower_bound(cycle):
    bare = replace(cycle, truth=None)
    after = cycle.truth.next_tokens
    for nodes, _, _ in legal_subtrees(CycleState(cycle.pool, cycle.estimate), max_nodes=4):
        right = 1 + len(accepted_path(cycle.pool, nodes, [after[0], *(after[1 + n] for n in nodes)])[0])
        if nodes != cycle.selection.nodes:
            assert would_commit(cycle, nodes) == (right, True)
        count, exact = would_commit(bare, nodes)
        assert count == right if exact else count <= right


def test_an_illegal_subtree_is_refused_in_a_sentence():
    with pytest.raises(ValueError, match="without its parent"):
        choice("", CYCLES[0], (len(CYCLES[0].pool) - 1,), TOY_COST)


def test_what_the_record_lacks_is_none():
    cycle = toy_run(EAGLE3).requests[0].cycles[0]
    bare = replace(cycle, truth=None, estimate=None)
    left_out = next(n for n in range(len(cycle.pool)) if n not in cycle.selection.nodes)
    made = choice("", bare, with_ancestors(cycle.pool, (), left_out), None)
    assert (made.union, made.predicted_ms, made.ratio, made.misses) == (None, None, None, None)
    assert choice("", bare, cycle.selection.nodes, TOY_COST).union == cycle.counts.demand


def test_clicking_keeps_trees_legal():
    pool = CYCLES[0].pool
    nodes: tuple[int, ...] = ()
    for node in (17, 3, 9, 17, 0, 12):
        nodes = without_descendants(pool, nodes, node) if node in nodes else with_ancestors(pool, nodes, node)
        assert is_legal(pool, nodes)


def test_eagle3_takes_the_most_probable_nodes():
    pool = CYCLES[0].pool
    taken = eagle3_nodes(pool, 5)
    assert min(pool.path_probs[n] for n in taken) >= max(p for n, p in enumerate(pool.path_probs) if n not in taken)


def test_filters_find_what_they_say():
    run = toy_run(SPECFIT)
    assert cycle_order(run, "all", question=None, cost=None) == list(range(39))
    assert cycle_order(run, "all", question=1, cost=None)[0] == len(run.requests[0].cycles)
    slow = cycle_order(run, "ar", question=None, cost=TOY_COST)
    cycles = [cycle for _, cycle in run.cycles()]
    rate = lambda made: made.committed[0] / made.predicted_ms  # noqa: E731
    for number, cycle in enumerate(cycles):
        run_rate, ar_rate = rate(choice("", cycle, cycle.selection.nodes, TOY_COST)), rate(ar_choice(cycle, TOY_COST))
        assert (number in slow) == (ar_rate > run_rate)
    with pytest.raises(ValueError, match="no cost coefficients"):
        cycle_order(run, "gap", question=None, cost=run_cost(run))


def test_ar_pays_for_no_drafted_level_and_eagle3_takes_the_deepest_pool_there_is():
    full = CYCLES[4]
    cost = replace(TOY_COST, level_ms=2.0)
    alone = choice("", full, (), cost)
    assert ar_choice(full, cost).predicted_ms == pytest.approx(alone.predicted_ms - 2.0 * full.pool.levels)
    short = replace(full, pool=full.pool.prefix(2), truth=None, estimate=full.estimate.prefix(2))
    short = replace(
        short,
        selection=evaluate(CycleState(short.pool, short.estimate), (0,), cost),
        verified=replace(full.estimate, nodes=full.estimate.nodes[:1]),
    )
    assert deeper(short, full) is full and deeper(full, short) is None
    assert deeper(replace(short, prefix_length=1), full) is None
    assert eagle3_choice(short, cost, 7).nodes == (0, 1)
    assert eagle3_choice(short, cost, 7, fuller=full) == eagle3_choice(full, cost, 7)
