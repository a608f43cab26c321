"""A solver program ends with the call that started it, however that ends (case G12)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pulp
import pytest

from specfit.theory import ilp, solve_ilp, solver_processes
from specfit.theory.samples import sample_state
from tests.pools import PAPER_COST

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="children are found in /proc")


@pytest.fixture
def endless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pulp.LpSolver:
    """PuLP's command-line solver over a program called cbc that never ends."""
    program = tmp_path / "cbc"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    solver = pulp.COIN_CMD(path=str(program), msg=False)
    monkeypatch.setattr(ilp, "choose_solver", lambda name: "COIN_CMD")
    monkeypatch.setattr(ilp.pulp, "getSolver", lambda *args, **kwargs: solver)
    monkeypatch.setattr(subprocess, "Popen", _sleeping(subprocess.Popen))
    return solver


def _sleeping(popen: type) -> object:
    return lambda args, **options: popen([args[0], "600"], **options)


def _running() -> set[int]:
    return {
        pid for pid in solver_processes.solver_programs() if "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]
    }


def test_an_interrupt_ends_the_solver(endless: pulp.LpSolver) -> None:
    def interrupt() -> None:
        deadline = time.monotonic() + 30
        while not _running() and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        solve_ilp(sample_state(1), PAPER_COST)
    _wait_until_none_runs()


def test_a_solver_that_ignores_its_limit_is_ended(endless: pulp.LpSolver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solver_processes, "GRACE_S", 0.2)
    with pytest.raises(RuntimeError, match="COIN_CMD failed on this program"):
        solve_ilp(sample_state(1), PAPER_COST, time_limit_s=0.2)
    _wait_until_none_runs()


def _wait_until_none_runs() -> None:
    deadline = time.monotonic() + 10
    while _running() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _running()
