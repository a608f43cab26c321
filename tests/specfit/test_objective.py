"""Reward, cycle time, their ratio, cost files, and the integer grid (Equations 3-6)."""

from __future__ import annotations

import json
import math
import random
from fractions import Fraction
from pathlib import Path

import pytest

from specfit.objective import (
    MS_GRID,
    PROB_GRID,
    CostModel,
    CycleState,
    Selection,
    cost_on_grid,
    evaluate,
    predicted_ms,
    probs_on_grid,
    reward,
    tie_key,
)
from specfit.routes import Routes
from specfit.tree import EMPTY_POOL, DraftPool
from tests.pools import random_state

POOL = DraftPool((1, 2, 3), (-1, 0, 0), (Fraction(1, 2), Fraction(1, 3), Fraction(1, 6)))
STATE = CycleState(POOL, Routes(0b0011, (0b0101, 0b1001, 0b0011), 1, 4))
COST = CostModel((Fraction(4), Fraction(5), Fraction(9, 2)), Fraction(1, 10), Fraction(1, 4))


def test_equations_3_and_4_exactly() -> None:
    assert reward(POOL, (0, 1)) == Fraction(11, 6)
    assert predicted_ms(STATE, (0, 1), COST) == Fraction(9, 2) + 4 * Fraction(1, 10) + 2 * Fraction(1, 4)
    found = evaluate(STATE, (1, 0), COST)
    assert found == Selection((0, 1), Fraction(11, 6), Fraction(54, 10), 4)
    assert found.ratio == Fraction(11, 6) / Fraction(54, 10)


def test_the_root_alone() -> None:
    found = evaluate(CycleState(EMPTY_POOL, Routes(0b11, (), 1, 4)), (), COST)
    assert (found.reward, found.predicted_ms, found.union) == (1, Fraction(42, 10), 2)  # no level was drafted


def test_a_free_cycle_has_an_infinite_ratio() -> None:
    assert Selection((), 1.0, 0.0, 0).ratio == math.inf


def test_a_tree_larger_than_the_cost_says_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"intercepts b_0..b_2; a tree of 3 draft nodes needs b_3, so calibrate"):
        evaluate(STATE, (0, 1, 2), COST)


def test_routes_for_another_pool_are_refused() -> None:
    with pytest.raises(ValueError, match="routes are given for 3 nodes; the pool has 0"):
        CycleState(EMPTY_POOL, STATE.routes)


def test_affine() -> None:
    cost = CostModel.affine(4.0, 0.5, expert_ms=0.1, max_nodes=3)
    assert cost == CostModel((4.0, 4.5, 5.0, 5.5), 0.1, 0.0)
    assert cost.max_nodes == 3


def test_save_and_load_are_inverse_and_a_calibration_file_loads_too(tmp_path: Path) -> None:
    cost = CostModel((0.1 + 0.2, 1 / 3, 5e-324), math.pi, 1e-17)
    cost.save(tmp_path / "cost.json")
    assert CostModel.load(tmp_path / "cost.json") == cost
    whole = {"cost": json.loads((tmp_path / "cost.json").read_text()), "r2": 0.9}
    (tmp_path / "calibration.json").write_text(json.dumps(whole))
    assert CostModel.load(tmp_path / "calibration.json") == cost
    assert CostModel.from_dict({"intercepts_ms": [1.0], "expert_ms": 0}) == CostModel((1.0,), 0, 0.0)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        ({"intercepts_ms": [1.0]}, r"cost coefficients are .*; got \['intercepts_ms'\]"),
        ({"intercepts_ms": [1.0], "expert_ms": 0.1, "beta": 1}, "got .*'beta'"),
        ([1.0, 2.0], r"cost coefficients are intercepts_ms, expert_ms and level_ms; got \[1.0, 2.0\]"),
        ({"cost": 3}, "cost coefficients are .*; got 3"),
        ({"intercepts_ms": 4.0, "expert_ms": 0.1}, "intercepts_ms lists b_0..b_K; got 4.0"),
        ({"intercepts_ms": "45", "expert_ms": 0.1}, "intercepts_ms lists b_0..b_K; got '45'"),
        ({"intercepts_ms": [1.0, None], "expert_ms": 0.1}, "b_1 is None"),
        ({"intercepts_ms": [1.0], "expert_ms": "0.1"}, r"beta \(expert_ms\) is '0.1'"),
        ({"intercepts_ms": [], "expert_ms": 0.1}, "at least the intercept b_0"),
        ({"intercepts_ms": [1, -2.0], "expert_ms": 0.1}, "b_1 is -2.0; coefficients are finite, nonnegative"),
        ({"intercepts_ms": [1], "expert_ms": math.inf}, r"beta \(expert_ms\) is inf"),
        ({"intercepts_ms": [math.nan], "expert_ms": 0}, "b_0 is nan"),
        ({"intercepts_ms": [1], "expert_ms": 0, "level_ms": -1}, r"gamma \(level_ms\) is -1"),
    ],
)
def test_bad_coefficients_get_one_sentence(data: object, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        CostModel.from_dict(data)  # type: ignore[arg-type]


def test_the_grid_keeps_the_order_of_probabilities() -> None:
    for seed in range(20):
        pool = random_state(random.Random(seed), nodes=12, steps=3 if seed % 2 else 0).pool
        steps = probs_on_grid(pool)
        assert all(0 <= step <= PROB_GRID for step in steps)
        for a in range(12):
            for b in range(12):
                if pool.path_probs[a] <= pool.path_probs[b]:
                    assert steps[a] <= steps[b]
    assert cost_on_grid(COST) == ((4 * MS_GRID, 5 * MS_GRID, 9 * MS_GRID // 2), MS_GRID // 10, MS_GRID // 4)


def test_ties_go_to_reward_then_union_then_size_then_ids() -> None:
    keys = [
        tie_key(9, 9, (0, 1, 2)),
        tie_key(8, 1, (0,)),
        tie_key(8, 2, (0,)),
        tie_key(8, 2, (0, 1)),
        tie_key(8, 2, (0, 2)),
    ]
    assert keys == sorted(keys)
    assert len(set(keys)) == 5
