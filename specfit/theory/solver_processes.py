"""Solvers that run as programs of their own must not outlive what asked them.

In a terminal Ctrl-C reaches the solver too; in a notebook it interrupts the kernel alone, and a CBC that hangs goes on
in the background. So whatever ends the wait, an interrupt or a limit well past, ends the solver.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
