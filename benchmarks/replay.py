"""How long does it take to replay the shipped worlds, and is a replay what the live engine does?

    python benchmarks/replay.py             # 60 prompts with every method, some seconds
    python benchmarks/replay.py --live 3    # and 3 prompts of each workload with the embedded engine; some minutes

Seconds are this process's own CPU time, so that other jobs on the machine matter less. With --live the same prompts are
decoded by the engine at several cache sizes, every cycle is compared (trees, depth, tokens, demand, hits, misses and
what was resident), and the last column says how many times faster the replay was.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

import specfit
from specfit.records import CycleRecord, RunRecord

METHODS = (specfit.AR, specfit.EAGLE3, specfit.SPECFIT)
CLOCK = specfit.ModelledClock(forward_ms=9.0, level_ms=1.0, expert_ms=0.06, miss_ms=0.3)
COST = CLOCK.cost(miss_share=0.3)
CACHES = ((8, False), (24, False), (24, True))  # slots of 64, cleared


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slots", type=int, default=24)
    parser.add_argument("--live", type=int, default=0, metavar="N", help="compare N prompts with the live engine")
    options = parser.parse_args()
    worlds, seconds = timed(lambda: [specfit.embedded_world(name) for name in ("problems", "news")])
    prompts = sum(len(world.prompts) for world in worlds)
    print(f"{'opening the worlds':<28}{seconds:6.2f} s   {sum(world.positions for world in worlds)} positions")
    for title, method, more in (
        ("the first replay", specfit.EAGLE3, {}),  # works out bitmaps and levels, which the world then keeps
        *((method.name, method, {}) for method in METHODS),
        ("specfit, 60 % routes", specfit.SPECFIT, {"accuracy": 0.6}),
    ):
        runs, seconds = timed(
            lambda method=method, more=more: [
                specfit.replay(world, method, COST, options.slots, CLOCK, **more) for world in worlds
            ]
        )
        cycles = sum(len(run.cycles()) for run in runs)
        print(f"{title:<28}{seconds:6.2f} s   {prompts} prompts, {cycles} cycles, {1e3 * seconds / cycles:.2f} ms each")
    rules, seconds = timed(lambda: specfit.ablations(specfit.embedded_world("calibration"), COST))
    print(f"{'preparing the ablations':<28}{seconds:6.2f} s")
    rows, seconds = timed(lambda: [specfit.compare(world, rules, COST, options.slots, CLOCK) for world in worlds])
    print(f"{'the ablation table, twice':<28}{seconds:6.2f} s   {len(rows[0])} rules, with intervals")
    if options.live:
        for world in worlds:
            compare_live(world.first(options.live))


def compare_live(world: specfit.World) -> None:
    """The engine and the replay, cycle by cycle."""
    workload = specfit.embedded_workload(world.workload, count=len(world.prompts))
    atlas = specfit.Atlas.of_world(world)
    for slots, cleared in CACHES:
        with (
            tempfile.TemporaryDirectory() as folder,
            specfit.load_engine("embedded", slots_per_layer=slots, cleared=cleared, self_test=False) as engine,
        ):
            decode = partial(specfit.run_method, engine, workload, cost=COST, atlas=atlas)
            for method in METHODS:
                path = Path(folder) / method.name
                live, slow = timed(partial(decode, path, method=method))
                again, fast = timed(partial(specfit.replay, world, method, COST, slots, CLOCK, cleared=cleared))
                differing = count_differing(live, again)
                cache = "cleared" if cleared else f"{slots} slots"
                print(
                    f"{world.workload:<10}{cache:<10}{method.name:<10}{len(live.cycles()):>5} cycles, "
                    f"{differing} differ; replay {slow / fast:.0f}x faster"
                )


def count_differing(live: RunRecord, replayed: RunRecord) -> int:
    """Cycles that differ in anything but wall time and the rounding of path probabilities."""
    both = zip(live.cycles(), replayed.cycles(), strict=True)
    return sum(facts(was) != facts(now) for (_, was), (_, now) in both)


def facts(cycle: CycleRecord) -> tuple[Any, ...]:
    pool, chosen = cycle.pool, cycle.selection
    counts = replace(cycle.counts, wait_ms=0.0)
    return (
        *(cycle.prefix_length, cycle.root, pool.tokens, pool.parents, chosen.nodes, chosen.union, cycle.verified),
        *(cycle.accepted, cycle.committed_tokens, counts, cycle.resident, cycle.truth),
    )


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """What the work gives, and the seconds of CPU that it took."""
    start = process_time()
    result = work()
    return result, process_time() - start


if __name__ == "__main__":
    main()
