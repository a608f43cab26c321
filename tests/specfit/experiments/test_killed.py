"""kill -9 between any two writes, and a full disk: nothing finished is lost, and nothing is counted twice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from specfit.run_folder import load_run
from specfit.run_reading import load_sessions
from tests.specfit.experiments.toy_experiments import deterministic, toy_file

CELLS = ("ones-4-slots-ar", "ones-4-slots-specfit")
ROOT = Path(__file__).parents[3]


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL and resource limits")
def test_killed_sessions_and_full_disks_lose_and_repeat_nothing(tiny, tmp_path: Path) -> None:
    file = toy_file(tiny, tmp_path, more='methods = ["ar", "specfit"]')
    program = Path(__file__).with_name("killed_sessions.py")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, str(program), str(file), str(tmp_path), "3"],
        env=environment, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-2000:]
    kills, refusals = map(int, ended.stdout.split())
    assert kills >= 5 and refusals >= 2
    for cell in CELLS:
        whole = load_run(tmp_path / "whole" / cell)
        assert whole.complete and len(whole.requests) == 3
        for other in ("killed", "full"):
            again = load_run(tmp_path / other / cell)
            assert again.complete
            assert deterministic(again) == deterministic(whole)  # counts of the carried-over cache included
    assert sum(len(load_sessions(tmp_path / "killed" / cell)) for cell in CELLS) > len(CELLS)
