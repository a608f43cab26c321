"""A real Dask cluster of two workers on this machine, one of which is killed while it has a cell."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from specfit.experiments.dask import dask_executor
from specfit.experiments.driver import run_experiment
from specfit.experiments.toml_values import ExperimentError
from specfit.run_folder import load_run
from tests.specfit.experiments.toy_experiments import Heard, deterministic, toy_experiment

distributed = pytest.importorskip("distributed", reason="the dask extra (distributed) is not installed")


class Killer(Heard):
    """Kills the first worker that has a cell, as soon as it has one."""

    def __init__(self, client: Any) -> None:
        super().__init__()
        self._client, self._thread = client, threading.Thread(target=self._kill, daemon=True)
        self._pids: dict[str, int] = client.run(os.getpid)
        self.killed: int | None = None

    def begin(self, title: str, total: int) -> Any:
        if title.endswith("-ar"):  # the cell, alone, so that one worker loads torch and not both
            self._thread.start()
        return super().begin(title, total)

    def _kill(self) -> None:
        while self.killed is None:
            busy = [worker for worker, tasks in self._client.processing().items() if tasks]
            if busy:
                self.killed = self._pids[busy[0]]
                os.kill(self.killed, signal.SIGKILL)
            sleep(0.01)


def test_a_lost_workers_cell_runs_again_elsewhere(tiny, tmp_path: Path) -> None:
    experiment = toy_experiment(tiny, tmp_path, more='methods = ["ar"]')
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, resources={"GPU": 1}, dashboard_address=None,
            host="127.0.0.1", silence_logs=50,
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):  # fmt: skip
        watcher = Killer(client)
        with dask_executor(cluster.scheduler_address) as executor:
            outcome = run_experiment(experiment, tmp_path / "out", watcher=watcher, executor=executor)
        assert watcher.killed is not None and watcher.killed not in client.run(os.getpid).values()
    assert not outcome.failures and outcome.done == ("ones-4-slots-ar",)
    run_experiment(experiment, tmp_path / "here", watcher=Heard())
    here, there = (load_run(tmp_path / folder / outcome.done[0]) for folder in ("here", "out"))
    assert there.complete and len(there.requests) == 3 and deterministic(there) == deterministic(here)


def test_no_scheduler_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specfit.experiments.dask.CONNECT_S", 0.2)
    with (
        pytest.raises(ExperimentError, match="no Dask scheduler answers at tcp://127.0.0.1:9"),
        dask_executor("tcp://127.0.0.1:9"),
    ):
        pass
