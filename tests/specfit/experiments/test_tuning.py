"""Methods that are tuned on a recorded world, and the one that learns on the way, as an experiment file names them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

import specfit
from specfit.ablations import offline_price
from specfit.experiments.by_name import method_named
from specfit.experiments.driver import run_experiment
from specfit.experiments.report import write_report
from specfit.experiments.toml_values import ExperimentError
from specfit.replay import replay
from specfit.run_folder import load_run, save_run
from specfit.runs import MethodRun, with_memory
from specfit.workloads import Limits, spec_bench
from specfit.world import World
from tests.recorded import toy_recording
from tests.specfit.experiments.toy_experiments import Heard, deterministic, toy_cost, toy_experiment
from tests.toys import TOY_COST, ToyWorld

METHODS = ("ar", "size-only", "lambda-offline", "lambda-online")


@pytest.fixture(scope="module")
def world(tiny, tmp_path_factory) -> Path:
    """Questions 3 and 4, on which nothing is reported."""
    path = tmp_path_factory.mktemp("world") / "tuning.npz"
    asked = spec_bench(tiny.questions, category="two", limits=Limits(max_new_tokens=8))
    with specfit.load_engine(tiny.target, drafter=tiny.drafter, self_test=False) as engine:
        specfit.record_world(engine, asked, raw=True, path=path)
    return path


def asked(tiny, folder: Path, world: Path, methods: tuple[str, ...], **changes: Any):
    return toy_experiment(tiny, folder, more=f'methods = {list(methods)}\ntuning = "{world}"', **changes)


def test_a_memory_is_made_anew_from_the_finished_requests(tmp_path: Path) -> None:
    world, method = toy_recording(ToyWorld(1)), method_named("lambda-online", 7)
    run = replay(world, method, TOY_COST)
    save_run(tmp_path / "run", run)
    choices = [cycle.selection for _, cycle in run.cycles()][:-1]  # the last one counts when the next cycle begins
    price = sum(choice.reward for choice in choices) / sum(choice.predicted_ms for choice in choices)
    resumed = with_memory(MethodRun(tmp_path / "run", method), TOY_COST)
    assert float(resumed.policy.price) == pytest.approx(price, rel=1e-6)
    assert with_memory(MethodRun(tmp_path / "new", method), TOY_COST).policy.price is None
    assert method.policy.price is None  # the caller's own stays as it is


class StopAfterTwo(Heard):
    """Ctrl-C after the second request of the last cell."""

    def begin(self, title: str, total: int) -> Any:
        def told(done: int) -> None:
            if title.endswith("lambda-online") and done == 2:
                raise KeyboardInterrupt

        return told


def test_tuned_methods_run_with_what_they_learnt_and_a_memory_survives_a_stop(tiny, world, tmp_path: Path) -> None:
    out, other = tmp_path / "out", tmp_path / "other"
    outcome = run_experiment(asked(tiny, tmp_path, world, METHODS), out, watcher=Heard())
    assert len(outcome.done) == 4 and not outcome.failures
    assert (out / "tuning.npz").read_bytes() == world.read_bytes()
    runs = {method: load_run(out / f"ones-4-slots-{method}") for method in METHODS}
    texts = [[request.output_tokens for request in run.requests] for run in runs.values()]
    assert all(text == texts[0] for text in texts)
    unions = runs["size-only"].settings["tuned"]["unions"]
    assert len(unions) == 8 and unions == sorted(unions) and runs["size-only"].settings["routes"] is None
    cost = specfit.Calibration.load(toy_cost(tiny)).cost
    price = runs["lambda-offline"].settings["tuned"]["price_per_ms"]
    assert price == pytest.approx(offline_price(World.load(world), cost), rel=1e-9)

    told = " ".join(write_report(out)[0].split())
    assert (
        "lambda-offline, 4 slots: tuned beforehand on other prompts, to a price of time, in tokens per ms, of" in told
    )
    assert f" of {price:.4g}" in told

    with pytest.raises(KeyboardInterrupt):
        run_experiment(asked(tiny, tmp_path, world, METHODS), other, watcher=StopAfterTwo())
    assert len(load_run(other / "ones-4-slots-lambda-online").requests) == 2
    assert len(run_experiment(asked(tiny, tmp_path, world, METHODS), other, watcher=Heard()).done) == 4
    assert deterministic(load_run(other / "ones-4-slots-lambda-online")) == deterministic(runs["lambda-online"])


def test_a_world_of_another_drafter_tunes_nothing(tiny, world, tmp_path: Path) -> None:
    ask = partial(asked, tiny, tmp_path, world, ("size-only",))
    moved = ask(replaced=(str(tiny.drafter), str(tmp_path / "moved" / tiny.drafter.name)))  # by any path
    assert moved.tuning == str(world)
    with pytest.raises(ExperimentError, match="does not fit: it was recorded with drafter .*, and what it shall serve"):
        ask(replaced=(str(tiny.drafter), str(tmp_path / "another")))


def test_a_tuned_method_may_be_added_and_without_coefficients_it_alone_is_missing(tiny, world, tmp_path: Path) -> None:
    out = tmp_path / "out"
    fitted = {"fitted": 'protocol = "paper"\nraw = true\nmax_new_tokens = 2'}  # too short for the nine states
    run_experiment(toy_experiment(tiny, tmp_path, more='methods = ["ar"]', **fitted), out, watcher=Heard())
    outcome = run_experiment(asked(tiny, tmp_path, world, ("ar", "size-only"), **fitted), out, watcher=Heard())
    assert outcome.done == ("ones-4-slots-ar",)
    assert "calibration-4-slots.json is missing" in outcome.failures["ones-4-slots-size-only"]
