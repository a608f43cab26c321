"""The integer program: the same ratio as the search, a readable model, and solvers that are absent or give up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pulp
import pytest

from specfit.objective import CostModel
from specfit.select import algorithm_1, select_exact
from specfit.theory import ilp_model, solve_ilp
from specfit.theory.ilp import choose_solver
from specfit.theory.samples import sample_state
from tests.pools import certify, ratio, small_grown_state, small_state

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("solver", ["HiGHS", "PULP_CBC_CMD"])
def test_a_pool_of_the_papers_shape(solver: str) -> None:
    if solver not in pulp.listSolvers(onlyAvailable=True):
        pytest.skip(f"PuLP {pulp.__version__} finds no {solver} here")
    cost = CostModel((8.0, 8.4, 8.5, 9.4, 9.1, 9.6, 9.5, 10.2), 0.31)
    for seed in range(2):
        state = small_grown_state(seed)
        chosen = solve_ilp(state, cost, solver=solver)
        certify(state, cost, 7, chosen)
        assert ratio(state, chosen.nodes, cost) == ratio(state, algorithm_1(state, cost).nodes, cost)


def test_the_model_can_be_written_and_has_a_variable_for_everything(tmp_path: Path) -> None:
    state = small_state([(-1, 3, 0b11), (0, 2, 0b110), (-1, 1, 0b1)])
    solve_ilp(state, CostModel((2.0, 2.1, 2.2, 2.3), 0.1), lp_path=tmp_path / "choice.lp")
    text = (tmp_path / "choice.lp").read_text()
    assert all(name in text for name in ("x_0", "x_2", "z_3", "u_1", "parent_1:", "count:", "one_size:"))


def test_case_g10_names_are_plain_numbers() -> None:
    model = ilp_model(small_grown_state(0), CostModel.affine(8, 0.2, expert_ms=0.3), 0.2)
    names = [variable.name for variable in model.variables()]
    assert len(names) == len(set(names))
    assert all(name[:2] in ("x_", "z_", "u_") and name[2:].isdigit() for name in names)


def test_case_g6_a_time_limit_is_no_proof() -> None:
    state = sample_state(0, width=10, levels=3, max_pool=60, layers=10)
    cost = CostModel.affine(30, 1, expert_ms=0.2, max_nodes=20)
    with pytest.raises(RuntimeError, match=r"stopped without a proof \(limit 0.01 s\).*(found none|found is)"):
        solve_ilp(state, cost, 20, time_limit_s=0.01)


def test_case_g8_and_g12_gaps_are_zero_and_there_is_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, object] = {}
    real = pulp.getSolver

    def spy(name: str, **options: object) -> object:
        asked.update(options)
        return real(name, **options)

    monkeypatch.setattr(pulp, "getSolver", spy)
    solve_ilp(small_state([(-1, 3, 1)]), CostModel((1.0, 1.1), 0.1), 1, time_limit_s=20)
    assert asked == {"msg": False, "timeLimit": 20, "threads": 1, "gapRel": 0.0, "gapAbs": 0.0}


def test_case_g8_small_gains_beside_a_certain_token() -> None:
    """Probabilities of a thousandth and less: a relative gap over the whole reward would hide them."""
    state = small_state([(-1, 4, 0)] * 6)
    tiny = tuple(1e-3 / (node + 1) for node in range(6))
    pool = type(state.pool)(state.pool.tokens, state.pool.parents, tiny)
    state = type(state)(pool, state.routes)
    cost = CostModel((1.0, 1.0, 1.0002, 1.00051, 1.0009, 1.01, 1.02), 0.0)
    assert solve_ilp(state, cost).nodes == select_exact(state, cost).nodes


def test_highs_is_silent() -> None:
    """Its first object greets on the standard output of the process, where a notebook or a pipe would show it."""
    pytest.importorskip("highspy")
    program = """
from specfit.objective import CostModel
from specfit.theory import sample_state, solve_ilp
print(solve_ilp(sample_state(0, width=2, levels=1), CostModel.affine(8, 1, expert_ms=0.3), solver="HiGHS").nodes)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("(") and done.stdout.count("\n") == 1


@pytest.mark.parametrize("limit", [0, -1.0, float("nan"), float("inf")])
def test_a_time_limit_is_a_positive_number(limit: float) -> None:
    with pytest.raises(ValueError, match="time_limit_s is .*; expected a positive"):
        solve_ilp(small_state([(-1, 3, 1)]), CostModel((1.0, 1.1), 0.1), 1, time_limit_s=limit)


def test_a_missing_solver_says_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulp, "listSolvers", lambda **_: ["GLPK_CMD"])
    with pytest.raises(RuntimeError, match=r"PuLP finds no COIN_CMD here \(it finds GLPK_CMD\).*use select_exact"):
        choose_solver("COIN_CMD")
    with pytest.raises(ValueError, match="solver is 'NO_SUCH'; choose HiGHS, COIN_CMD, PULP_CBC_CMD"):
        choose_solver("NO_SUCH")


def test_no_solver_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulp, "listSolvers", lambda **_: [])
    with pytest.raises(RuntimeError, match=r"no solver at all.*pip install highspy"):
        solve_ilp(small_state([(-1, 3, 1)]), CostModel((1.0, 1.1), 0.1), 1)


def test_too_few_intercepts() -> None:
    with pytest.raises(ValueError, match="needs b_7"):
        solve_ilp(small_grown_state(0), CostModel((1.0, 1.0), 0.1))
