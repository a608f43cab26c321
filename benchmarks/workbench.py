"""What looking costs: `python -m benchmarks.workbench`, half a minute, no torch.

Prints ratios and sizes: importing the workbench beside ipywidgets, opening a run of a thousand cycles, one update of
the largest cycle view, and what watching a live run takes from the decode.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from specfit.methods import SPECFIT
from specfit.run_folder import save_run
from tests.toys import TOY_COST, toy_run
from tests.workbench.test_live import ToyEngine
from tests.workbench.worlds import COST, cycle_of
from workbench.cycle_view import CycleView
from workbench.live import LiveRun
from workbench.player import CyclePlayer


def main() -> None:
    """Print every figure with what it should stay below."""
    ours, theirs = seconds_to_import("workbench"), seconds_to_import("ipywidgets")
    print(f"import workbench: {ours:.2f} s, {ours / theirs:.1f} x ipywidgets ({theirs:.2f} s); wanted below 2 s")

    with tempfile.TemporaryDirectory() as folder:
        run = toy_run(SPECFIT, requests=26, tokens=130)
        save_run(Path(folder) / "run", run)
        start = time.perf_counter()
        CyclePlayer(Path(folder) / "run")
        took = time.perf_counter() - start
    print(f"open a run of {len(run.cycles())} cycles in the player: {took:.2f} s; wanted below 2 s")

    cycles = [cycle_of(60, layers=94, seed=seed) for seed in (1, 2)]
    view = CycleView(cycles[0], cost=COST)
    size = len(view.bitmaps) + len(view.cells)
    spent = [timed(lambda number=number: view.show(cycles[number % 2])) for number in range(20)]
    print(f"turn to a cycle of 60 nodes, 94 x 128 experts: {1e3 * median(spent):.1f} ms, {size / 1e3:.0f} kB of bytes")

    share = live_share()
    print(f"watching a live run: {share:.1%} of its time spent on drawing; wanted below 2 %")


def seconds_to_import(name: str) -> float:
    """The best of three fresh interpreters, without the interpreter's own start."""
    code = f"import time; t = time.perf_counter(); import {name}; print(time.perf_counter() - t)"
    return min(float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(3))


def timed(action: Any) -> float:
    """Seconds that `action()` takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def live_share() -> float:
    """Time spent on drawing over the wall time of a watched run of some four seconds (between cycles, on no clock)."""
    live = LiveRun(ToyEngine(pause=0.02), [("one", (1, 2, 3))], cost=TOY_COST, max_new_tokens=600)
    live.start()
    start = time.perf_counter()
    live.wait()
    share = live.drawing_s / (time.perf_counter() - start)
    live.close()
    return share


if __name__ == "__main__":
    main()
