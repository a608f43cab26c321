"""How the recorded runs beside these notebooks were made: `python notebooks/record_runs.py`, some minutes on two cores.

The embedded model decodes a few questions with every method and several cache sizes. Trees, routes, hits and misses are
what really happened; times are *modelled* for one described machine (below), so that they are the same on every
computer and the chapters can show them without a clock's noise.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import specfit
from specfit.modelled import ModelledClock, retime
from specfit.run_folder import save_run

RUNS = Path(__file__).parent / "runs"
CLOCK = ModelledClock(forward_ms=9.0, level_ms=1.0, expert_ms=0.06, miss_ms=0.3)
CACHES = {"8": 8, "16": 16, "24": 24, "40": 40, "cleared": 24}  # folder name -> slots of 64 experts a layer
MISS_SHARE = {"8": 0.51, "16": 0.23, "24": 0.13, "40": 0.04, "cleared": 1.0}  # of executed experts, for beta


def main() -> None:
    """Record the atlases, then every run; folders that exist are made anew."""
    workloads = [
        specfit.embedded_workload("problems", count=3, max_new_tokens=64),
        specfit.embedded_workload("news", count=2, max_new_tokens=64),
    ]
    for workload in workloads:
        with specfit.load_engine("embedded", self_test=False) as engine:
            prompts = [engine.encode(question.turns[0]) for question in workload.questions]
            atlas = specfit.record_atlas(engine, prompts, max_new_tokens=64)
        for name, slots in CACHES.items():
            if workload.name == "news" and name not in ("24", "cleared"):
                continue
            cleared = name == "cleared"
            with specfit.load_engine("embedded", slots_per_layer=slots, cleared=cleared, self_test=False) as engine:
                for method in (specfit.AR, specfit.EAGLE3, specfit.SPECFIT):
                    record(engine, workload, method, atlas, name)


def record(
    engine: specfit.Engine, workload: specfit.Workload, method: specfit.Method, atlas: specfit.Atlas, cache: str
) -> None:
    """One run with modelled times, into its folder."""
    cost = CLOCK.cost(miss_share=MISS_SHARE[cache])
    folder = RUNS / f"{workload.name}-{cache}-{method.name}"
    with tempfile.TemporaryDirectory() as scratch:
        run = specfit.run_method(engine, workload, scratch, method=method, cost=cost, atlas=atlas)
    shutil.rmtree(folder, ignore_errors=True)
    kept = retime(run, CLOCK)
    save_run(folder, replace(kept, machine={"note": "times are modelled, so the machine does not matter"}))
    (folder / "lock").unlink()  # says who wrote it, which nobody needs to keep
    print(folder.name, len(kept.cycles()), "cycles")


if __name__ == "__main__":
    main()
