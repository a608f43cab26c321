"""Streams of requests: the expert cache they carry over, across a stop too, and failures that do not stop the rest."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import specfit
from specfit.engine.atlas import Atlas
from specfit.engine.engine import expected_route_settings
from specfit.engine.expert_cache import ExpertCache
from specfit.kept_cache import FILE, keep_cache, kept_cache
from specfit.methods import AR, EAGLE3, Method
from specfit.recording import ensure_atlas
from specfit.run_folder import load_failures, load_run
from specfit.runs import MethodRun, run_interleaved, run_method
from specfit.workloads import Limits, Question, spec_bench
from tests.specfit.experiments.toy_experiments import deterministic


@pytest.fixture(scope="module")
def workload(tiny):
    return spec_bench(tiny.questions, limits=Limits(max_new_tokens=10), name="toy")


def load(tiny, **more):
    return specfit.load_engine(tiny.target, drafter=tiny.drafter, self_test=False, **more)


def test_a_stop_and_its_resumption_change_no_count(tiny, workload, tmp_path: Path) -> None:
    def stop(at) -> None:
        if at.finished == 2:
            raise KeyboardInterrupt

    with load(tiny, slots_per_layer=3) as engine:
        whole = run_method(engine, workload, tmp_path / "whole", method=EAGLE3, raw=True)
        with pytest.raises(KeyboardInterrupt):
            run_method(engine, workload, tmp_path / "cut", method=EAGLE3, raw=True, progress=stop)
        run_method(engine, workload, tmp_path / "other", method=AR, raw=True)  # leaves other experts in the slots
        again = run_method(engine, workload, tmp_path / "cut", method=EAGLE3, raw=True)
        assert deterministic(again) == deterministic(whole)
        assert [("resumed" in request.extra) for request in again.requests] == [False, False, True, False, False]
        with pytest.raises(KeyboardInterrupt):
            run_method(engine, workload, tmp_path / "cold", method=EAGLE3, raw=True, progress=stop)
        (tmp_path / "cold" / FILE).write_text("{torn")
        cold = run_method(engine, workload, tmp_path / "cold", method=EAGLE3, raw=True)
    assert "empty again" in cold.requests[2].extra["resumed"] and cold.complete


def test_memory_that_runs_out_in_one_question_is_noted_and_the_rest_goes_on(tiny, workload, tmp_path: Path) -> None:
    def hungry(state, cost):
        if len(state.pool) and state.pool.tokens[0] == first:
            np.empty(1 << 62, dtype=np.uint8)
        return specfit.evaluate(state, (), cost)

    with load(tiny, slots_per_layer=3) as engine:
        prompt = engine.tokenizer(workload.questions[0].turns[0])["input_ids"]
        first = next(iter(engine.decode(prompt, method=EAGLE3, max_new_tokens=10))).pool.tokens[0]
        method = Method("hungry", policy=hungry, uses_routes=False)
        with pytest.raises(MemoryError):
            run_method(engine, workload, tmp_path / "strict", method=method, raw=True)
        run = run_method(engine, workload, tmp_path / "run", method=method, raw=True, keep_going=True)
    failures = load_failures(tmp_path / "run")
    assert failures["toy/1/0"].startswith("out of memory: ") and not run.complete
    assert {request.question_id for request in run.requests} | {int(f.split("/")[1]) for f in failures} == {1, 2, 3, 4}
    assert run.requests


def test_logits_that_are_no_numbers_fail_the_request(tiny, workload, tmp_path: Path) -> None:
    with load(tiny) as engine:
        engine.target.model.model.norm.weight.data.fill_(3e38)  # float32 overflows, and inf - inf is no number
        with pytest.raises(ValueError, match="logits are NaN"):
            run_method(engine, workload, tmp_path / "strict", method=AR, raw=True)
        run = run_method(engine, workload, tmp_path / "run", method=AR, raw=True, keep_going=True)
    assert not run.requests and "logits are NaN" in load_failures(tmp_path / "run")["toy/3/0"]


def test_an_atlas_that_leaves_the_text_or_lacks_a_question_stops_no_method_that_reads_none(
    tiny, workload, tmp_path: Path
) -> None:
    with load(tiny) as engine:
        engine.tokenizer.add_tokens(["t64"])  # which the target does not have
        odd = Question(9, "two", ("t64",))
        asked = replace(workload, questions=(*workload.questions[:2], odd))
        lend = partial(nullcontext, engine)
        atlas = ensure_atlas(tmp_path / "a.npz", lend, asked, raw=True)
        assert len(atlas.trajectories) == 3

        first = atlas.trajectories[0]
        tied = replace(first, output=(*first.output[:3], (first.output[3] + 1) % 64, *first.output[4:]))
        left = Atlas([tied, *atlas.trajectories[1:]], experts=atlas.experts, made_with=atlas.made_with)
        run_method(engine, asked, tmp_path / "other", method=EAGLE3, raw=True, keep_going=True)
        parts = [MethodRun(tmp_path / name, method) for name, method in (("other", AR), ("ar", AR))]
        with pytest.raises(ValueError, match="other: .* holds a run of another configuration"):
            run_interleaved(engine, asked, parts, atlas=left, raw=True, keep_going=True)
    run = load_run(tmp_path / "ar")
    assert [request.output_tokens for request in run.requests] == [t.output for t in atlas.trajectories]
    known = [[cycle.truth is not None for cycle in request.cycles] for request in run.requests]
    assert known[0] == [True] * 3 + [False] * (len(known[0]) - 3) and all(map(all, known[1:]))
    assert "from cycle 3 on, are not on the atlas's text" in run.requests[0].extra["notes"][-1]
    assert set(load_failures(tmp_path / "ar")) == {"toy/9/0"}


def test_contents_of_a_cache_come_back_exactly() -> None:
    dice = np.random.default_rng(3)
    for _ in range(50):
        slots = int(dice.integers(1, 7))
        cache, other = ExpertCache(slots=slots, experts=9), ExpertCache(slots=slots, experts=9)
        for used in (cache, other):
            for _ in range(int(dice.integers(0, 4))):
                used.serve(dice.integers(0, 9, size=int(dice.integers(1, 8))).tolist())
        held = cache.contents()
        copied = other.restore(held)
        assert other.contents() == held and other.bitmap == cache.bitmap
        assert set(copied) <= set(held) and other.restore(held) == []
        for _ in range(3):
            uses = dice.integers(0, 9, size=4).tolist()
            assert cache.serve(uses) == other.serve(uses)
    with pytest.raises(ValueError, match="no contents of a cache with 2 slots for 4 experts"):
        ExpertCache(slots=2, experts=4).restore([(0, 0), (1, 0)])


def test_the_last_two_requests_caches_are_kept(tmp_path: Path) -> None:
    for number, finished in enumerate((None, "r0", "r1")):
        keep_cache(tmp_path, f"r{number}", [[(number, 0)], []], finished=finished)
    keep_cache(tmp_path, "r2", [[(2, 0)], []], finished="r1")  # killed before r2 was stored, and so once more
    assert kept_cache(tmp_path, "r0") is None
    assert kept_cache(tmp_path, "r1") == (((1, 0),), ()) and kept_cache(tmp_path, "r2") == (((2, 0),), ())
    (tmp_path / FILE).write_text('{"r2": [[[1, "x"]]]}')
    assert kept_cache(tmp_path, "r2") is None


def test_route_settings_are_known_without_loading(tiny) -> None:
    draft = specfit.DraftConfig(depth=2)
    with load(tiny, draft=draft) as engine:
        assert expected_route_settings(tiny.target, drafter=tiny.drafter, draft=draft) == engine.route_settings
    assert replace(draft, depth=5) == specfit.DraftConfig()
    assert expected_route_settings("embedded", dtype="bfloat16")["dtype"] == "bfloat16"
