"""Rules side by side on a recorded world, the coefficients fitted by replay, and the two commands around them."""

from __future__ import annotations

from pathlib import Path

import pytest

import specfit
from specfit.ablations import Rule, ablations, compare, comparison_table, fit_cost, offline_price
from specfit.bootstrap import paired_speedup
from specfit.cli import main
from specfit.methods import EAGLE3, SPECFIT
from specfit.metrics import measure
from specfit.modelled import ModelledClock
from specfit.objective import CostModel, CycleState, Selection, evaluate
from specfit.replay import replay
from specfit.world import World, embedded_world
from tests.recorded import toy_recording
from tests.toys import TOY_COST, ToyWorld

CLOCK = ModelledClock(forward_ms=5.0, level_ms=0.5, expert_ms=0.25, miss_ms=2.0)
WORLD, TUNING = toy_recording(ToyWorld(1)), toy_recording(ToyWorld(1), ((4, 1, 2), (5, 1, 2), (6,)), limit=60)


def likely(state: CycleState, cost: CostModel) -> Selection:
    """A rule of one's own: all that is at least an even bet."""
    return evaluate(state, [node for node, p in enumerate(state.pool.path_probs) if p >= 0.5][:7], cost)


def test_every_rule_gives_the_same_text_and_its_own_row() -> None:
    rows = compare(WORLD, ablations(TUNING, TOY_COST) | {"mine": likely}, TOY_COST, 4, CLOCK)
    outputs = {tuple(request.output_tokens for request in row.run.requests) for row in rows}
    assert outputs == {tuple(prompt.output for prompt in WORLD.prompts)}
    by_name = {row.name: row for row in rows}
    assert len(by_name) == len(rows) == 15
    assert (by_name["EAGLE-3, 7 nodes"].ratio.ratio, by_name["EAGLE-3, 7 nodes"].ratio.sure) == (1.0, False)
    assert by_name["SpecFit, oracle routes"].run.requests == replay(WORLD, SPECFIT, TOY_COST, 4, CLOCK).requests
    noisy = replay(WORLD, SPECFIT, TOY_COST, 4, CLOCK, accuracy=0.6)
    assert by_name["SpecFit, 60 % routes"].run.requests == noisy.requests
    assert by_name["chain of 2"].metrics.draft_nodes <= 2
    assert by_name["OPT-Tree's stop"].metrics.drafted_levels < by_name["EAGLE-3, 7 nodes"].metrics.drafted_levels
    assert by_name["minimum union of 4"].metrics.demand <= by_name["most probable 4"].metrics.demand
    base = replay(WORLD, EAGLE3, TOY_COST, 4, CLOCK)
    assert all(row.ratio == paired_speedup(row.run, base) for row in rows)
    assert by_name["mine"].metrics == measure(by_name["mine"].run)


def test_smaller_trees_are_compared_with_eagle_3_of_their_size() -> None:
    cost = CostModel.affine(4.0, 0.2, expert_ms=0.3, max_nodes=3)
    rows = {row.name: row for row in compare(WORLD, ablations(TUNING, cost, max_nodes=3), cost, 4, CLOCK)}
    assert rows["EAGLE-3, 3 nodes"].ratio.ratio == 1.0 and "minimum union of 3" in rows
    assert {"chain of 2", "most probable 2"} < set(rows) and not {"chain of 4", "most probable 4"} & set(rows)


def test_the_table_has_a_line_a_rule_and_says_what_it_compares() -> None:
    rows = compare(WORLD, {"EAGLE-3": EAGLE3, "mine": Rule(specfit.Method("x", likely))}, TOY_COST, 4, CLOCK)
    lines = comparison_table(rows).splitlines()
    assert len(lines) == 3 and len({len(line) for line in lines}) == 1 and len(lines[0]) <= 100
    assert "over EAGLE-3, 95 % interval" in lines[0]
    assert lines[2].startswith("mine ") and str(rows[1].ratio) in lines[2]
    assert f"{rows[1].metrics.decode_tps:.1f}" in lines[2]
    with pytest.raises(ValueError, match="there are no rules to compare"):
        compare(WORLD, {}, TOY_COST, 4, CLOCK)


def test_the_fitted_cost_is_the_clocks_where_every_expert_costs_the_same() -> None:
    flat = ModelledClock(forward_ms=5.0, level_ms=0.5, expert_ms=0.25, miss_ms=0.0)  # a miss is free, so T is exact
    fit = fit_cost(TUNING, 4, flat, cycles=90)
    assert fit.r2 == pytest.approx(1.0)
    assert fit.cost.intercepts_ms == pytest.approx((5.0,) * 8)
    assert (fit.cost.expert_ms, fit.cost.level_ms) == pytest.approx((0.25, 0.5))
    dear = fit_cost(TUNING, 2, CLOCK, cycles=90)
    cleared = fit_cost(TUNING, 2, CLOCK, cycles=90, cleared=True)
    assert 0.25 < dear.cost.expert_ms < cleared.cost.expert_ms == pytest.approx(2.25)
    with pytest.raises(ValueError, match="cannot fit four coefficients|no probes"):
        fit_cost(toy_recording(ToyWorld(1), ((0, 1, 2),), limit=3), 4, flat)


def test_the_offline_price_is_what_the_tuning_cycles_can_reach() -> None:
    price = offline_price(TUNING, TOY_COST)
    run = replay(TUNING, SPECFIT, TOY_COST)
    chosen = [cycle.selection for _, cycle in run.cycles()]
    theta = sum(c.reward for c in chosen) / sum(c.predicted_ms for c in chosen)
    assert theta <= price < 1.1 * theta


def test_on_the_shipped_worlds_specfit_beats_eagle_3_and_the_interval_says_so() -> None:
    clock = ModelledClock(forward_ms=9.0, level_ms=1.0, expert_ms=0.06, miss_ms=0.3)
    cost = fit_cost(embedded_world("calibration"), 8, clock).cost
    rows = compare(embedded_world("news").first(12), {"SpecFit": SPECFIT}, cost, 8, clock)
    assert rows[0].ratio.low > 1.0 and rows[0].ratio.prompts == 12


# -- commands --------------------------------------------------------------------------------------------------------


def test_record_then_replay(tiny, tmp_path: Path, capsys) -> None:
    pair = ["--target", str(tiny.target), "--drafter", str(tiny.drafter), "--raw", "--max-new-tokens", "16"]
    out = tmp_path / "worlds" / "tiny.npz"
    command = ["record", *pair, "--workload", str(tiny.questions), "--category", "one", "--out", str(out)]
    assert main(command) == 0
    assert capsys.readouterr().out == f"3 prompts, 45 positions\n{out}\n"
    assert len(World.load(out).prompts) == 3
    assert main(command) == 2
    assert "is there already; give another --out" in capsys.readouterr().err
    assert main(["replay", str(out), "--tuning", str(out), "--slots", "4"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("spec-bench-one, 3 prompts, 4 slots; times are modelled, not measured\n")
    assert len([line for line in printed.splitlines() if not line.startswith("note on")]) == 2 + 1 + 14
    cost = tmp_path / "cost.json"
    CostModel.affine(9.0, 0.1, expert_ms=0.1).save(cost)
    assert main(["replay", str(out), "--tuning", str(out), "--cleared", "--cost", str(cost)]) == 0
    assert "cache cleared before every forward" in capsys.readouterr().out
    assert main(["replay", str(out), "--tuning", str(out), "--cost", str(cost), "--max-nodes", "3"]) == 0
    assert next(line for line in capsys.readouterr().out.splitlines() if "EAGLE-3, 3 nodes" in line).count("1.00") >= 1
    nan = tmp_path / "nan.json"
    nan.write_text(cost.read_text().replace("0.1", "NaN"))
    for arguments, sentence in (
        (["replay", str(tmp_path / "nothing.npz")], "nothing.npz is no world"),
        (["replay", str(out)], "--tuning does not fit the world: it was recorded with target 'embedded'"),
        (["replay", str(out), "--tuning", str(out), "--slots", "9"], "between 1 and the world's 8 experts; got 9"),
        (["replay", str(out), "--tuning", str(out), "--cost", str(nan)], "nan; coefficients are finite"),
    ):
        assert main(arguments) == 2
        assert sentence in capsys.readouterr().err.splitlines()[-1]
    with pytest.raises(SystemExit, match="2"):
        main(["replay", str(out), "--tuning", str(out), "--miss-ms", "nan"])
    assert "'nan' is no number of milliseconds, 0 or more" in capsys.readouterr().err
