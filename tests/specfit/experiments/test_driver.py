"""Experiments over the tiny pair, in this process: what runs, what is refused, what fails and what goes on."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from specfit.cli import main
from specfit.experiments.driver import run_experiment
from specfit.experiments.folder import ExperimentFolder, job_failures
from specfit.experiments.toml_values import ExperimentError
from specfit.run_folder import load_run
from specfit.run_reading import load_sessions
from tests.specfit.experiments.toy_experiments import Heard, deterministic, toy_experiment, toy_file

ROUTES = 'routes = ["atlas", "noisy:0.5"]'
CELLS = ("ones-4-slots-ar", "ones-4-slots-eagle3", "ones-4-slots-specfit", "ones-4-slots-specfit-noisy-0_5")


@pytest.fixture(scope="module")
def done(tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished experiment of four cells."""
    base = tmp_path_factory.mktemp("done")
    heard = Heard()
    outcome = run_experiment(toy_experiment(tiny, base, more=ROUTES), base / "out", watcher=heard)
    assert outcome.done == CELLS and not outcome.failures and not heard.said
    assert heard.begun == ["atlas-ones.npz", *CELLS]
    assert heard.done[CELLS[0]] == 3 and heard.left[-1] == 0
    return base / "out"


def test_every_method_gives_the_same_text_and_the_cells_say_what_they_are(done: Path) -> None:
    runs = [load_run(done / cell) for cell in CELLS]
    assert len({tuple(request.output_tokens for request in run.requests) for run in runs}) == 1
    assert all(run.complete and run.settings["seed"] == 0 and run.settings["order"] == "method" for run in runs)
    assert [run.settings["routes"] and run.settings["routes"]["accuracy"] for run in runs] == [None, None, 1.0, 0.5]


def test_a_finished_experiment_runs_nothing_and_a_grown_one_what_is_new(tiny, done: Path, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in done.rglob("requests.jsonl")}
    heard = Heard()
    assert run_experiment(toy_experiment(tiny, tmp_path, more=ROUTES), done, watcher=heard).done == CELLS
    assert not heard.begun
    more = 'routes = ["atlas", "noisy:0.5", "noisy:0.8"]'
    grown = toy_experiment(tiny, tmp_path, more=more)
    outcome = run_experiment(grown, done, watcher=heard, only="*0_8")
    assert outcome.done == ("ones-4-slots-specfit-noisy-0_8",) == tuple(heard.begun)
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in before.items())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"more": "max_nodes = 3"}, "max_nodes: there 7, here 3"),
        ({"replaced": ("max_new_tokens = 8", "max_new_tokens = 9")}, "ones.limits.max_new_tokens: there 8, here 9"),
        ({"replaced": ("slots = [4]", "slots = [3]")}, "slots: 4 only there"),
        ({"replaced": ('category = "one"', 'category = "two"')}, "workloads.ones.questions: there [1, 2], here [3, 4]"),
        ({"replaced": ("8\nraw = true", "8\nraw = false")}, "workloads.ones.raw: there true, here false"),
    ],
)
def test_a_changed_file_over_an_old_folder_names_what_changed(
    tiny, done: Path, tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ExperimentError) as refused:
        run_experiment(toy_experiment(tiny, tmp_path, **changes), done, watcher=Heard())
    assert sentence in str(refused.value)


def test_a_folder_of_something_else_and_a_folder_in_use(tiny, done: Path, tmp_path: Path) -> None:
    experiment = toy_experiment(tiny, tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    with pytest.raises(ExperimentError, match=r"no experiment but holds 'thesis\.tex'"):
        run_experiment(experiment, tmp_path / "mine", watcher=Heard())
    with (
        ExperimentFolder(tmp_path / "out", experiment),
        pytest.raises(ExperimentError, match="is being worked on by process"),
    ):
        run_experiment(experiment, tmp_path / "out", watcher=Heard())


def test_what_fails_is_recorded_with_its_reason_and_the_rest_goes_on(tiny, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in tiny.questions.read_text().splitlines()]
    rows += [{"question_id": 9, "category": "one", "turns": [" ".join(["t1"] * 300)]}]
    (tmp_path / "long.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    long = '[[workload]]\nname = "long"\nfile = "long.jsonl"\ncategory = "one"\nmax_new_tokens = 4\nraw = true\n'
    experiment = toy_experiment(tiny, tmp_path, more='methods = ["ar", "eagle3"]', workloads=long,
                                replaced=("slots = [4]", "slots = [4, 99]"))  # fmt: skip
    heard = Heard()
    outcome = run_experiment(experiment, tmp_path / "out", watcher=heard)
    assert outcome.done == ("ones-4-slots-ar", "ones-4-slots-eagle3")
    assert set(outcome.failures) == {cell.name for cell in outcome.cells} - set(outcome.done)
    assert "between 1 and the target's 8 experts" in outcome.failures["ones-99-slots-ar"]
    assert outcome.failures["long-4-slots-ar"].startswith("long/9/0: the prompt has 300 tokens")
    assert len(load_run(tmp_path / "out" / "long-4-slots-ar").requests) == 3  # all but the one that is too long
    assert "got 99" in job_failures(tmp_path / "out")["long-99-slots-eagle3"]
    assert sum(text.startswith("FAILED") for text in heard.said) == 4


def test_interleaved_methods_count_as_if_each_had_run_alone(tiny, done: Path, tmp_path: Path) -> None:
    experiment = toy_experiment(tiny, tmp_path, more=f'{ROUTES}\norder = "interleaved"')
    outcome = run_experiment(experiment, tmp_path / "out", watcher=Heard())
    assert outcome.done == CELLS
    for cell in CELLS:
        alone, interleaved = load_run(done / cell), load_run(tmp_path / "out" / cell)
        assert deterministic(interleaved) == deterministic(alone)
        assert interleaved.settings["order"] == "interleaved"
    with pytest.raises(ExperimentError, match="methods: there"):  # a method more changes when the others run
        run_experiment(
            toy_experiment(tiny, tmp_path, more=f'{ROUTES}\norder = "interleaved"\nmethods = ["ar", "specfit"]'),
            tmp_path / "out",
            watcher=Heard(),
        )


def test_an_executor_gives_the_same_cells_and_its_failures_are_recorded(tiny, done: Path, tmp_path: Path) -> None:
    experiment = toy_experiment(tiny, tmp_path, more=ROUTES)
    with ThreadPoolExecutor(1) as executor:
        outcome = run_experiment(experiment, tmp_path / "out", watcher=Heard(), executor=executor)
        assert outcome.done == CELLS
        for cell in CELLS:
            assert deterministic(load_run(tmp_path / "out" / cell)) == deterministic(load_run(done / cell))
        assert not (tmp_path / "out" / ".incoming").exists()
        far = toy_experiment(tiny, tmp_path, more='methods = ["ar"]', replaced=("slots = [4]", "slots = [99]"))
        failed = run_experiment(far, tmp_path / "far", watcher=Heard(), executor=executor)
    assert "got 99" in failed.failures["ones-99-slots-ar"]


class Stop(Heard):
    """Ctrl-C after the first request of a cell."""

    def begin(self, title: str, total: int) -> Any:
        def told(done: int) -> None:
            if done == 1:
                raise KeyboardInterrupt

        return told


def test_what_was_begun_here_goes_on_elsewhere_and_survives_a_kill_while_it_comes_back(tiny, tmp_path: Path) -> None:
    out, cell = tmp_path / "out", "ones-4-slots-ar"
    with pytest.raises(KeyboardInterrupt):
        run_experiment(toy_experiment(tiny, tmp_path, more='methods = ["ar"]'), out, watcher=Stop())
    (begun,) = load_run(out / cell).requests
    grown = toy_experiment(tiny, tmp_path, more='methods = ["ar", "specfit"]')  # now there are coefficients
    heard = Heard()
    with ThreadPoolExecutor(1) as executor:
        outcome = run_experiment(grown, out, watcher=heard, executor=executor)
    assert outcome.done == (cell, "ones-4-slots-specfit") and not outcome.failures
    run = load_run(out / cell)
    assert run.requests[0] == begun and len(load_sessions(out / cell)) == 2  # not decoded again
    assert run.settings["cost"] is None and load_run(out / outcome.done[1]).settings["cost"] is not None
    assert heard.begun == ["atlas-ones.npz", "2 jobs on the workers"] and heard.done[heard.begun[1]] == 6

    (out / ".outgoing").mkdir()
    (out / cell).rename(out / ".outgoing" / cell)
    with ExperimentFolder(out, grown):
        assert deterministic(load_run(out / cell)) == deterministic(run)
    assert not (out / ".outgoing").exists()


def test_cells_that_read_no_routes_do_without_a_fit_that_fails(tiny, tmp_path: Path) -> None:
    more = 'methods = ["ar", "specfit"]\norder = "interleaved"'
    experiment = toy_experiment(tiny, tmp_path, more=more, fitted='protocol = "paper"\nraw = true\nmax_new_tokens = 2')
    outcome = run_experiment(experiment, tmp_path / "out", watcher=Heard())
    assert outcome.done == ("ones-4-slots-ar",)
    assert set(outcome.failures) == {"calibration-4-slots.json", "ones-4-slots-specfit"}
    assert "calibration-4-slots.json is missing: " in outcome.failures["ones-4-slots-specfit"]


def test_a_clock_that_jumps_moves_no_duration(tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jumps = iter(range(10**9))
    monkeypatch.setattr(time, "time", lambda: 1e9 - 3600.0 * next(jumps))
    heard = Heard()
    run_experiment(toy_experiment(tiny, tmp_path, more='methods = ["ar"]'), tmp_path / "out", watcher=heard)
    run = load_run(tmp_path / "out" / "ones-4-slots-ar")
    assert run.complete and all(0 < request.prefill_ms < request.request_ms < 6e4 for request in run.requests)
    assert heard.left == [0]


def test_the_command_plans_runs_and_reports(tiny, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    file, out = str(toy_file(tiny, tmp_path, more='methods = ["ar", "eagle3"]')), str(tmp_path / "out")
    assert main(["experiment", file, "--out", out, "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "ones-4-slots-ar" in printed and "3 requests, to do, unknown" in printed and "of HOST memory" in printed
    assert "2 cells, 2 to do; how long that takes is unknown" in printed and not (tmp_path / "out").exists()
    assert main(["experiment", file, "--out", out, "--only", "*-ar"]) == 0
    assert main(["experiment", file, "--out", out, "--dry-run"]) == 0
    assert "2 cells, 1 to do; decoding them takes about" in capsys.readouterr().out
    assert main(["experiment", file, "--out", out]) == 0 and "2 of 2 cells are done" in capsys.readouterr().out
    assert main(["report", out]) == 0
    assert "Experiment toy" in (tmp_path / "out" / "report.html").read_text()
    assert main(["export-answers", out, "--out", str(tmp_path / "answers")]) == 0
    assert sorted(path.name for path in (tmp_path / "answers").iterdir()) == [
        "ones-4-slots-ar.jsonl", "ones-4-slots-eagle3.jsonl"
    ]  # fmt: skip
    assert main(["experiment", file, "--out", out, "--only", "x"]) == 2
    assert "no cell fits" in capsys.readouterr().err
