"""Manners of other people's solvers: none outlives what asked it, and none writes where nobody asked it to.

In a terminal Ctrl-C reaches a solver that is a program of its own too; in a notebook it interrupts the kernel alone,
and a CBC that hangs goes on in the background. So whatever ends the wait, an interrupt or a limit well past, ends the
solver.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

PROGRAMS = ("cbc", "highs")
GRACE_S = 10.0  # a solver that keeps its own time limit has long stopped by then


@contextmanager
def solvers_end_here(time_limit_s: float) -> Iterator[None]:
    """Kill solver programs started inside if the block is left by an exception, or takes GRACE_S over the limit."""
    before = solver_programs()

    def kill() -> None:
        for pid in solver_programs() - before:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    watchdog = threading.Timer(time_limit_s + GRACE_S, kill)
    watchdog.daemon = True
    watchdog.start()
    try:
        yield
    except BaseException:
        kill()
        raise
    finally:
        watchdog.cancel()


def solver_programs() -> set[int]:
    """Process ids of this process's children that are solvers; none where there is no /proc to tell."""
    found = set()
    for children in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # a thread that has ended since
            for pid in map(int, children.read_text().split()):
                with suppress(OSError):
                    if Path(f"/proc/{pid}/comm").read_text().strip() in PROGRAMS:
                        found.add(pid)
    return found


@cache
def greet_in_silence() -> None:
    """Make HiGHS's first object: with it comes a greeting on the standard output, whatever the options say.

    In a notebook it would stand in a cell's output, in a pipe among the results.
    """
    import highspy

    if sys.stdout is None:
        return
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        highspy.Highs()
        ctypes.CDLL(None).fflush(None)  # the greeting waits in C's own buffer
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
