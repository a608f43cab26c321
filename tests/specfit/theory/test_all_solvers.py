"""Every way to the choice of Equation 5, on the same pools; every answer certified from scratch.

Ratios are compared as Fractions. The searches must also agree in the nodes, tie rule included; the cut and the
integer program know no tie rule and are held to the nodes only where one subtree alone has the largest ratio.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest

from specfit.objective import CostModel, CycleState, Selection, evaluate
from specfit.select import ExactPolicy, algorithm_1, penalized, select_exact, upper_envelope
from specfit.theory import min_cut, solve_ilp
from specfit.theory.throughput import best_corner
from tests.pools import affine_problem, all_legal, brute_force, certify, odd_problem, ratio

Solver = Callable[[CycleState, CostModel, int], Selection]


def by_brute_force(state: CycleState, cost: CostModel, max_nodes: int) -> Selection:
    return evaluate(state, brute_force(state, cost, max_nodes), cost)


def by_envelope(state: CycleState, cost: CostModel, max_nodes: int) -> Selection:
    return evaluate(state, best_corner(upper_envelope(state, cost, max_nodes=max_nodes)).nodes, cost)


def by_prices(state: CycleState, cost: CostModel, max_nodes: int) -> Selection:
    """Dinkelbach's iteration over R - lambda T."""
    best = evaluate(state, (), cost)
    while True:
        better = penalized(state, cost, ratio(state, best.nodes, cost), max_nodes=max_nodes)
        if better == best:
            return best
        best = better


def by_algorithm_1(state: CycleState, cost: CostModel, max_nodes: int) -> Selection:
    return algorithm_1(state, cost, max_nodes=max_nodes)


def by_seeded_policy(state: CycleState, cost: CostModel, max_nodes: int) -> Selection:
    probable = sorted(range(len(state.pool)), key=lambda node: (-state.pool.path_probs[node], node))
    return ExactPolicy(max_nodes)(state, cost, seed=tuple(probable[: max_nodes // 2]))


def by_cut(state: CycleState, cost: CostModel, max_nodes: int, *, grouped: bool = True) -> Selection:
    return min_cut(state, cost, grouped=grouped)


SEARCHES: dict[str, Solver] = {
    "brute_force": by_brute_force,
    "algorithm_1": by_algorithm_1,
    "select_exact": select_exact,
    "seeded_policy": by_seeded_policy,
    "envelope": by_envelope,
    "prices": by_prices,
}
CUTS: dict[str, Solver] = {"min_cut": by_cut, "min_cut_ungrouped": partial(by_cut, grouped=False)}


def check(solve: Solver, state: CycleState, cost: CostModel, max_nodes: int, *, tie_rule: bool) -> None:
    chosen = solve(state, cost, max_nodes)
    certify(state, cost, max_nodes, chosen)
    wanted = brute_force(state, cost, max_nodes)
    largest = ratio(state, wanted, cost)
    assert ratio(state, chosen.nodes, cost) == largest
    unique = [nodes for nodes in all_legal(state.pool, max_nodes) if ratio(state, nodes, cost) == largest] == [wanted]
    if tie_rule or unique:
        assert chosen.nodes == wanted


@pytest.mark.parametrize("name", SEARCHES)
def test_any_cost_and_size_limit(name: str) -> None:
    rng = random.Random(10)
    for _ in range(80):
        state, cost, max_nodes = odd_problem(rng, largest=7)
        check(SEARCHES[name], state, cost, max_nodes, tie_rule=True)


@pytest.mark.parametrize("name", [*SEARCHES, *CUTS])
def test_affine_costs_without_a_size_limit(name: str) -> None:
    rng = random.Random(11)
    for _ in range(60):
        state, cost = affine_problem(rng, largest=7)
        check((SEARCHES | CUTS)[name], state, cost, len(state.pool), tie_rule=name in SEARCHES)


def test_the_integer_program() -> None:
    rng = random.Random(12)
    for _ in range(6):
        state, cost, max_nodes = odd_problem(rng, largest=7)
        check(solve_ilp, state, cost, max_nodes, tie_rule=False)
