"""The compared methods as values, and methods of one's own (Table 1)."""

from __future__ import annotations

from functools import partial

import pytest

from specfit.methods import AR, EAGLE3, SPECFIT, Method, as_method, with_max_nodes
from specfit.objective import CostModel, CycleState, Selection, evaluate
from specfit.select import ExactPolicy, PrefixPolicy, select_exact
from tests.pools import levels_of, small_grown_state

COST = CostModel.affine(4.0, 0.1, expert_ms=0.05)


def test_table_1() -> None:
    state = small_grown_state(3)
    assert AR.select(state, COST).nodes == ()
    assert EAGLE3.select(state, COST).nodes == PrefixPolicy(max_nodes=7)(state, COST).nodes
    assert SPECFIT.select(state, COST) == select_exact(state, COST, 7)
    assert (AR.max_nodes, EAGLE3.max_nodes, SPECFIT.max_nodes) == (0, 7, 7)
    assert [method.uses_routes for method in (AR, EAGLE3, SPECFIT)] == [False, False, True]
    assert [method.adaptive_depth for method in (AR, EAGLE3, SPECFIT)] == [False, False, True]


def test_a_seed_goes_to_policies_that_take_one() -> None:
    seen = []

    def plain(state: CycleState, cost: CostModel) -> Selection:
        return evaluate(state, (), cost)

    def seeded(state: CycleState, cost: CostModel, seed: tuple[int, ...] = ()) -> Selection:
        seen.append(seed)
        return evaluate(state, seed, cost)

    first, last = levels_of(small_grown_state(1))[::4]
    Method("plain", policy=plain).select(first, COST, seed=(0,))
    Method("seeded", policy=seeded).select(last, COST, seed=(0,))
    assert seen == [(0,)]
    assert SPECFIT.seeded
    assert not EAGLE3.seeded
    assert Method("partial", policy=partial(select_exact, max_nodes=3)).seeded


def test_seeds_never_change_the_choice() -> None:
    for number in range(10):
        first, *_, last = levels_of(small_grown_state(number))
        seed = SPECFIT.select(first, COST).nodes
        assert SPECFIT.select(last, COST, seed=seed) == SPECFIT.select(last, COST)


def test_another_k() -> None:
    assert with_max_nodes(AR, 3) is AR
    assert with_max_nodes(EAGLE3, 3).policy == PrefixPolicy(max_nodes=3)
    three = with_max_nodes(SPECFIT, 3)
    assert three.policy == ExactPolicy(max_nodes=3)
    assert three.adaptive_depth and three.uses_routes and three.max_nodes == 3
    with pytest.raises(ValueError, match="'mine' is not AR, EAGLE3 or SPECFIT; build its Method"):
        with_max_nodes(Method("mine", policy=ExactPolicy()), 3)


def test_bad_methods_get_one_sentence() -> None:
    with pytest.raises(ValueError, match=r"method 'x' needs a callable policy \(state, cost\)"):
        Method("x", policy="specfit")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="method 'x' has max_nodes = -1"):
        Method("x", policy=ExactPolicy(), max_nodes=-1)


def test_a_stop_rule_of_its_own_ends_drafting_where_it_says() -> None:
    first, *_, whole = levels_of(small_grown_state(3))
    two = Method("two", PrefixPolicy(7), adaptive_depth=True, stop=lambda pool, selection: pool.levels == 2)
    assert not two.stops(first.pool, two.select(first, COST))
    assert two.stops(levels_of(small_grown_state(3))[1].pool, two.select(first, COST))
    usual = Method("usual", PrefixPolicy(7), adaptive_depth=True)
    assert not usual.stops(first.pool, usual.select(first, COST))  # takes all there is, the newest level too
    assert usual.stops(whole.pool, AR.select(whole, COST))
    with pytest.raises(ValueError, match="'odd' has a stop rule, which only adaptive_depth=True asks"):
        Method("odd", PrefixPolicy(7), stop=lambda pool, selection: True)


def test_a_rule_of_ones_own_and_names_serve_as_methods() -> None:
    def careful(state: CycleState, cost: CostModel) -> Selection:
        return evaluate(state, (), cost)

    assert as_method(SPECFIT) is SPECFIT and as_method("specfit") is SPECFIT
    mine = as_method(careful, COST)
    assert (mine.name, mine.policy, mine.max_nodes, mine.adaptive_depth) == ("careful", careful, COST.max_nodes, False)
    assert as_method(ExactPolicy()).name == "ExactPolicy"
    for unknown in ("specfitt", 7, None):
        with pytest.raises(ValueError, match=rf"method {unknown!r} is unknown; choose ar, eagle3, specfit, or give"):
            as_method(unknown)  # type: ignore[arg-type]
