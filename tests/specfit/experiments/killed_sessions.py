"""Sessions of one experiment that are killed, again and again, until one gets to the end.

Run as a program of its own: it loads libraries and engine once and forks a session for every attempt, so that one takes
a fraction of a second. A session dies by SIGKILL at a drawn point: before, half-way through or after a write, or before
or after the disk is asked to keep or to rename a file.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import specfit.experiments.folder as experiment_folder
from specfit import run_folder, safe_files
from specfit.experiments.driver import run_experiment
from specfit.experiments.file import read_experiment
from specfit.experiments.toml_values import ExperimentError
from specfit.experiments.work import Bench
from tests.specfit.experiments.toy_experiments import Heard

FULL, WRONG = 3, 4  # how a session ends that found the disk full, or anything unforeseen


class Fuse:
    """Kills this process at the n-th point that it passes."""

    def __init__(self, points: int) -> None:
        self._left = points
        for name in ("fsync", "replace", "truncate"):
            setattr(os, name, self._around(getattr(os, name)))
        whole = safe_files.write_all

        def write(file: Any, data: bytes) -> None:
            self.burn()
            whole(file, data[: len(data) // 2])
            self.burn()
            whole(file, data[len(data) // 2 :])
            self.burn()

        for module in (safe_files, run_folder, experiment_folder):
            module.write_all = write  # type: ignore[attr-defined]

    def burn(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def _around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            self.burn()
            given = call(*args, **kwargs)
            self.burn()
            return given

        return called


def session(file: str, folder: str, bench: Bench, prepare: Callable[[], object]) -> int:
    """Fork a session of the experiment; returns its exit code, negative for the signal that ended it."""
    child = os.fork()
    if child == 0:
        code = WRONG
        try:
            prepare()
            outcome = run_experiment(read_experiment(file), Path(folder), watcher=Heard(), bench=bench)
            code = 0 if not outcome.failures else WRONG
            if outcome.failures:
                print(outcome.failures, file=sys.stderr)
        except ExperimentError as error:
            code = FULL if "a limit on file sizes is reached" in str(error) else WRONG
            print(error, file=sys.stderr)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def small_disk(limit: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


def main(file: str, base: str, seed: str) -> None:
    """Uninterrupted into base/whole; killed again and again into base/killed; on ever larger disks into base/full."""
    bench = Bench()
    assert not run_experiment(read_experiment(file), Path(base) / "whole", watcher=Heard(), bench=bench).failures
    dice, kills, refusals = random.Random(int(seed)), 0, 0
    while (code := session(file, f"{base}/killed", bench, partial(Fuse, dice.randrange(1, 60)))) == -signal.SIGKILL:
        kills += 1
    assert code == 0, code
    while (code := session(file, f"{base}/full", bench, partial(small_disk, 5000 << refusals))) == FULL:
        refusals += 1
    assert code == 0, code
    print(kills, refusals)


if __name__ == "__main__":
    main(*sys.argv[1:])
