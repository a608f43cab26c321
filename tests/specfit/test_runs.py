"""Runs over a tiny real model: lossless, resumable, and refused when something does not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import specfit
from specfit.methods import AR, EAGLE3, SPECFIT
from specfit.metrics import measure
from specfit.modelled import ModelledClock, retime
from specfit.recording import ensure_atlas
from specfit.run_folder import RunError, load_failures, load_run
from specfit.runs import RouteChoice, find_runs, run_method
from specfit.workloads import Limits, spec_bench

COST = specfit.CostModel.affine(5.0, 0.1, expert_ms=0.3)


@pytest.fixture(scope="module")
def workload(tiny):
    return spec_bench(tiny.questions, limits=Limits(max_new_tokens=14), name="toy")


@pytest.fixture(scope="module")
def atlas(tiny, workload, tmp_path_factory):
    path = tmp_path_factory.mktemp("atlas") / "atlas.npz"
    return ensure_atlas(path, lambda: load(tiny), workload, raw=True)


def load(tiny, **more):
    return specfit.load_engine(tiny.target, drafter=tiny.drafter, self_test=False, **more)


def test_all_methods_write_the_same_text_and_what_they_did(tiny, workload, atlas, tmp_path: Path) -> None:
    texts = {}
    with load(tiny, slots_per_layer=3) as engine:
        for method in (AR, EAGLE3, SPECFIT):
            run = run_method(engine, workload, tmp_path / method.name, method=method, cost=COST, atlas=atlas, raw=True)
            texts[method.name] = [request.output_tokens for request in run.requests]
            assert run == load_run(tmp_path / method.name)
            assert run.complete and len(run.requests) == 5  # question 2 has two turns
            for request in run.requests:
                assert sum(cycle.committed for cycle in request.cycles) == len(request.output_tokens) - 1
                for cycle in request.cycles:
                    assert cycle.counts.demand == cycle.counts.hits + cycle.counts.misses
                    routes = cycle.truth.routes
                    assert cycle.verified.nodes == tuple(routes.nodes[node] for node in cycle.selection.nodes)
    assert texts["ar"] == texts["eagle3"] == texts["specfit"]


def test_a_run_cut_short_goes_on_where_it_stopped(tiny, workload, atlas, tmp_path: Path) -> None:
    def stop(at) -> None:
        if at.finished == 2:
            raise KeyboardInterrupt

    with load(tiny, slots_per_layer=3) as engine:
        with pytest.raises(KeyboardInterrupt):
            run_method(engine, workload, tmp_path, method=EAGLE3, atlas=atlas, raw=True, progress=stop)
        before = load_run(tmp_path)
        assert not before.complete and len(before.requests) == 2
        done = run_method(engine, workload, tmp_path, method=EAGLE3, atlas=atlas, raw=True)
    assert done.complete and done.requests[:2] == before.requests
    assert [request.request_id for request in done.requests] == [
        "toy/1/0", "toy/2/0", "toy/2/1", "toy/3/0", "toy/4/0"
    ]  # fmt: skip
    assert "resumed" in done.requests[2].extra and "resumed" not in done.requests[1].extra


def test_another_configuration_is_refused_by_the_keys_that_differ(tiny, workload, tmp_path: Path) -> None:
    with load(tiny, slots_per_layer=3) as engine:
        run_method(engine, workload, tmp_path, method=AR, raw=True)
    with load(tiny, slots_per_layer=4) as engine, pytest.raises(RunError, match="slots_per_layer"):
        run_method(engine, workload, tmp_path, method=AR, raw=True)


def test_a_question_that_does_not_fit_is_noted_and_the_rest_goes_on(tiny, workload, tmp_path: Path) -> None:
    long = replace(workload.questions[0], turns=(" ".join(["t1"] * 300),))
    mixed = replace(workload, questions=(long, *workload.questions[2:]))
    with load(tiny) as engine:
        run = run_method(engine, mixed, tmp_path, method=AR, raw=True)
    assert [request.question_id for request in run.requests] == [3, 4] and not run.complete
    assert "context" in load_failures(tmp_path)["toy/1/0"]


def test_noisy_routes_change_what_is_verified_and_not_the_text(tiny, workload, atlas, tmp_path: Path) -> None:
    with load(tiny) as engine:
        runs = [
            run_method(
                engine,
                workload,
                tmp_path / str(accuracy),
                method=SPECFIT,
                cost=COST,
                atlas=atlas,
                routes=RouteChoice(accuracy=accuracy, seed=1),
                raw=True,
            )
            for accuracy in (1.0, 0.3)
        ]
    assert [r.output_tokens for r in runs[0].requests] == [r.output_tokens for r in runs[1].requests]
    assert [c.estimate for _, c in runs[0].cycles()] != [c.estimate for _, c in runs[1].cycles()]
    assert runs[1].settings["routes"] == {"source": "atlas", "accuracy": 0.3, "seed": 1}


def test_an_atlas_is_kept_and_recorded_again_when_it_is_stale(tiny, workload, tmp_path: Path) -> None:
    path = tmp_path / "atlas.npz"
    small = replace(workload, questions=workload.questions[:1], limits=Limits(max_new_tokens=4))
    first = ensure_atlas(path, lambda: load(tiny), small, raw=True)
    stamp = path.stat().st_mtime_ns
    again = ensure_atlas(path, lambda: load(tiny), small, raw=True)
    assert path.stat().st_mtime_ns == stamp and again.made_with == first.made_with
    ensure_atlas(path, lambda: load(tiny, draft=specfit.DraftConfig(depth=2)), small, raw=True)
    assert path.stat().st_mtime_ns != stamp
    with load(tiny) as engine, pytest.raises(ValueError, match="stale"):
        run_method(engine, small, tmp_path / "run", method=SPECFIT, cost=COST, atlas=specfit.Atlas.load(path), raw=True)


def test_methods_that_read_routes_need_an_atlas(tiny, workload, tmp_path: Path) -> None:
    with load(tiny) as engine, pytest.raises(ValueError, match="record an atlas"):
        run_method(engine, workload, tmp_path, method=SPECFIT, cost=COST, raw=True)


def test_a_modelled_clock_prices_counts_alone(tiny, workload, atlas, tmp_path: Path) -> None:
    clock = ModelledClock(forward_ms=10.0, level_ms=1.0, expert_ms=0.5, miss_ms=2.0)
    with load(tiny, slots_per_layer=2) as engine:
        run = retime(run_method(engine, workload, tmp_path, method=EAGLE3, atlas=atlas, raw=True), clock)
    assert run.settings["link"]["kind"] == "modelled"
    _, cycle = run.cycles()[0]
    expected = 10 + 1.0 * cycle.drafted_levels + 0.5 * cycle.counts.demand + 2.0 * cycle.counts.misses
    assert cycle.times.total_ms == pytest.approx(expected)
    assert measure(run).decode_tps > 0


def test_find_runs_looks_one_folder_down_and_names_what_is_no_run(tiny, workload, tmp_path: Path) -> None:
    with load(tiny) as engine:
        run_method(engine, workload, tmp_path / "all" / "ar", method=AR, raw=True)
    assert find_runs([tmp_path / "all"]) == find_runs([tmp_path / "all" / "ar"]) == [tmp_path / "all" / "ar"]
    with pytest.raises(ValueError, match="no run folder"):
        find_runs([tmp_path])
    with pytest.raises(ValueError, match="does not exist"):
        find_runs([tmp_path / "nothing"])
