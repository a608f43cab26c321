"""Equation 5 as an integer program: the size limit and any intercepts, solved by somebody else's solver.

Binaries x_v take nodes, z_k name the size, and u_g in [0, 1] takes a group of (layer, expert) pairs; the program
maximises R - rho T for a price rho, and Dinkelbach's iteration around it reaches the largest ratio in two or three
solves. Rewards and times of the answer are computed again exactly. The solver works in floats, so two subtrees whose
values differ by less than some 10^-9 tokens are alike to it; and it knows no tie rule. Hence: compare ratios, and sets
only where the best is unique.

Works with PuLP 3.3 and 4; needs a solver that PuLP can reach: HiGHS (`pip install highspy`) or CBC.
"""

from __future__ import annotations

import math
import tempfile
import warnings
from fractions import Fraction
from pathlib import Path
from typing import Any

import pulp  # type: ignore[import-untyped]

from specfit.objective import PROB_GRID, CostModel, CycleState, Selection, evaluate, probs_on_grid
from specfit.select.envelope import corner
from specfit.select.exact import size_limit, times_on_grid
from specfit.select.penalized import Price, weights_on_grid
from specfit.theory.mincut import pair_groups
from specfit.theory.solver_processes import greet_in_silence, solvers_end_here
from specfit.tree import ROOT, check_legal

SOLVERS = ("HiGHS", "COIN_CMD", "PULP_CBC_CMD")  # in order of preference
SCALE = 10**6  # solvers stop within absolute tolerances near 10^-6; values are tokens times this


def solve_ilp(
    state: CycleState,
    cost: CostModel,
    max_nodes: int = 7,
    *,
    solver: str | None = None,
    time_limit_s: float = 60.0,
    lp_path: str | Path | None = None,
) -> Selection:
    """The largest R / T over legal subtrees of at most max_nodes nodes, by integer programming.

    solver: one of SOLVERS; None takes the first that is installed.
    lp_path: where to write the last model solved, in LP format.
    Raises RuntimeError if no solver is installed, or if it stopped without a proof; the message names the best found.
    ValueError for another solver's name, or a time limit that is no positive number of seconds.
    """
    name = choose_solver(solver)
    if not (time_limit_s > 0 and math.isfinite(time_limit_s)):
        raise ValueError(f"time_limit_s is {time_limit_s}; expected a positive, finite number of seconds")
    best = corner(state, (), cost)
    while True:
        price = best.ratio if best.time_steps else Fraction(0)
        model = ilp_model(state, cost, price, max_nodes=max_nodes)
        if lp_path is not None:
            model.writeLP(str(lp_path))
        found = corner(state, _solve(model, state, max_nodes, name, time_limit_s), cost)
        if found.reward_steps * best.time_steps <= best.reward_steps * found.time_steps:
            return evaluate(state, best.nodes, cost)
        best = found


def ilp_model(state: CycleState, cost: CostModel, price: Price, *, max_nodes: int = 7) -> Any:
    """The program that maximises R - price * T, as a pulp.LpProblem; `.writeLP(path)` writes it out.

    Variables are named by plain numbers (x_3, z_2, u_17), because PuLP maps other characters to one and the same.
    The constant part (the root's token, b_0 and its experts) is left out: it would hide small differences.
    """
    limit = size_limit(state, cost, max_nodes)
    pool, probs = state.pool, probs_on_grid(state.pool)
    intercepts, beta = times_on_grid(state, cost)
    by_reward, by_time = weights_on_grid(price)
    unit = Fraction(SCALE, by_reward * PROB_GRID)  # weighted grid steps to tokens, scaled

    model = pulp.LpProblem("selection", pulp.LpMaximize)
    take = [model.add_variable(f"x_{node}", 0, 1, "Integer") for node in range(len(pool))]
    sizes = [model.add_variable(f"z_{size}", 0, 1, "Integer") for size in range(limit + 1)]
    groups = pair_groups(state)
    used = [model.add_variable(f"u_{number}", 0, 1, "Continuous") for number in range(len(groups))]

    per_ms = unit * by_time
    gains = [float(unit * by_reward * prob) for prob in probs]
    losses = [float(per_ms * (intercepts[size] - intercepts[0])) for size in range(limit + 1)]
    fees = [float(per_ms * beta * pairs) for _, pairs in groups]
    model += pulp.lpSum(
        [gain * x for gain, x in zip(gains, take, strict=True)]
        + [-loss * z for loss, z in zip(losses, sizes, strict=True)]
        + [-fee * u for fee, u in zip(fees, used, strict=True)]
    )
    model += pulp.lpSum(sizes) == 1, "one_size"
    model += pulp.lpSum(take) == pulp.lpSum(size * z for size, z in enumerate(sizes)), "count"
    for node, variable in enumerate(take):
        if pool.parents[node] != ROOT:
            model += variable <= take[pool.parents[node]], f"parent_{node}"
    for number, (users, _) in enumerate(groups):
        for node in users:
            model += take[node] <= used[number], f"pairs_{number}_{node}"
    assert len({v.name for v in [*take, *sizes, *used]}) == len(take) + len(sizes) + len(used), "PuLP merged names"
    return model


def choose_solver(name: str | None = None) -> str:
    """The named solver, or the first of SOLVERS that PuLP can reach; RuntimeError if there is none.

    ValueError for a name that is none of SOLVERS.
    """
    if name is not None and name not in SOLVERS:
        raise ValueError(f"solver is {name!r}; choose {', '.join(SOLVERS)}, or None for the first that is installed")
    with warnings.catch_warnings():  # PuLP 3 warns that 4 will not bundle CBC; the search below finds what there is
        warnings.simplefilter("ignore", DeprecationWarning)
        available = pulp.listSolvers(onlyAvailable=True)
    wanted = SOLVERS if name is None else (name,)
    for solver in wanted:
        if solver in available:
            return solver
    raise RuntimeError(
        f"PuLP finds no {' or '.join(wanted)} here (it finds {', '.join(available) or 'no solver at all'}); install "
        "one with `pip install highspy`, or use select_exact, which needs none"
    )


def _solve(model: Any, state: CycleState, max_nodes: int, name: str, time_limit_s: float) -> tuple[int, ...]:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        if name == "HiGHS":
            greet_in_silence()
        solver = pulp.getSolver(name, msg=False, timeLimit=time_limit_s, threads=1, gapRel=0.0, gapAbs=0.0)
        if hasattr(solver, "tmpDir"):
            solver.tmpDir = folder
        try:
            with solvers_end_here(time_limit_s):
                answer = model.solve(solver)
        except pulp.PulpSolverError as error:
            raise RuntimeError(
                f"{name} failed on this program ({error}); try another solver or select_exact"
            ) from error
    values = {v.name: v.varValue for v in model.variables()}
    chosen = [node for node in range(len(state.pool)) if (values.get(f"x_{node}") or 0) > 0.5]
    proved, usable = _outcome(model, answer)
    if not proved:
        found = f"the best it found is {chosen}" if usable else "it found none"
        raise RuntimeError(
            f"{name} stopped without a proof (limit {time_limit_s:g} s); {found}; allow more time, or use select_exact"
        )
    return check_legal(state.pool, chosen, max_nodes=max_nodes)


def _outcome(model: Any, answer: Any) -> tuple[bool, bool]:
    """(the solution is proved best, there is a usable one). PuLP 3 says "Optimal" even at the time limit."""
    if hasattr(answer, "has_solution"):  # PuLP 4 returns why the solver stopped
        return answer.status == pulp.LpSolveStatus.Optimal, answer.has_solution
    return model.sol_status == pulp.LpSolutionOptimal, model.sol_status == pulp.LpSolutionIntegerFeasible
