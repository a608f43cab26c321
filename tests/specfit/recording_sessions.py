"""Sessions of one recording that are killed, again and again, until one gets to the end.

A program of its own, as tests/specfit/experiments/killed_sessions.py: a session is a fork that dies by SIGKILL at a
drawn point. Prints how many were killed, and how many prompts were decoded by all of them together.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from contextlib import nullcontext
from pathlib import Path

import specfit
from specfit.recording import ensure_atlas, record_world
from specfit.workloads import Limits, spec_bench
from tests.specfit.experiments.killed_sessions import Fuse


def main(target: str, drafter: str, questions: str, folder: str) -> None:
    workload = spec_bench(questions, limits=Limits(max_new_tokens=6), name="toy")
    out, dice, kills = Path(folder), random.Random(5), 0
    with specfit.load_engine(target, drafter=drafter, self_test=False) as engine:
        prefill = engine.target.prefill

        def noted(ids: tuple[int, ...]) -> object:
            with open(out / "decoded", "a") as file:
                file.write("x")
            return prefill(ids)

        for kind in ("world.npz", "atlas.npz"):
            while not (out / kind).exists():
                child = os.fork()
                if child == 0:
                    engine.target.prefill = noted  # type: ignore[method-assign]
                    Fuse(dice.randrange(1, 25))
                    if kind == "world.npz":
                        record_world(engine, workload, raw=True, path=out / kind)
                    else:
                        ensure_atlas(out / kind, lambda: nullcontext(engine), workload, raw=True)
                    os._exit(0)
                code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                assert code in (0, -signal.SIGKILL), code
                kills += code < 0
    print(kills, len((out / "decoded").read_text()))


if __name__ == "__main__":
    main(*sys.argv[1:])
