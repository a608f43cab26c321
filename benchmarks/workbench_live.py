"""What watching costs a real run: `python -m benchmarks.workbench_live`, about two minutes on two cores.

The embedded engine behind an emulated link decodes the same question watched and unwatched, in turns, in one kernel of
Jupyter's, so that every message is built, serialised and sent as in a notebook. Printed are the medians of the ratios
within pairs: of the process's CPU time (all threads; the steadiest on a busy machine), of the time on the run's own
clocks, and of wall time from Start to the end; and the share of wall time spent on drawing while the run went on.
"""

from __future__ import annotations

import sys
import time
from statistics import median, quantiles
from typing import Any

PAIRS = 12
SLOTS, LINK_MS, TOKENS = 24, 0.3, 64


def main() -> int:
    """Run `measure` in a kernel and print what it prints; 1 if it failed."""
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3", extra_arguments=["--log-level=ERROR"])
    try:
        reply = client.execute_interactive("from benchmarks.workbench_live import measure; measure()", timeout=1200)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    return 0 if reply["content"]["status"] == "ok" else 1


def measure() -> None:
    """Pairs of decodings, watched first in every other pair."""
    import specfit
    from specfit.engine.engine import use_threads
    from workbench import LiveRun

    use_threads(1)
    workload = specfit.embedded_workload("problems", count=1)
    prompt = workload.questions[0].turns[0]
    cost = specfit.CostModel.affine(9.0, 0.0, expert_ms=0.1, level_ms=1.0)
    with specfit.load_engine("embedded", slots_per_layer=SLOTS, link=LINK_MS, self_test=False) as engine:
        atlas = specfit.record_atlas(engine, [engine.encode(prompt)], max_new_tokens=TOKENS)
        live = LiveRun(engine, workload, cost=cost, atlas=atlas, max_new_tokens=TOKENS)
        for method in (specfit.AR, specfit.SPECFIT):
            live.controls.method.value = {"ar": "AR", "specfit": "SpecFit"}[method.name]
            ratios: dict[str, list[float]] = {"CPU time": [], "own clocks": [], "wall": []}
            drawings, drawing_s, watched_s = live.drawings, live.drawing_s, 0.0
            for pair in range(PAIRS + 1):
                both = {}
                for watched in (True, False) if pair % 2 else (False, True):
                    both[watched] = _watched(live) if watched else _alone(engine, prompt, method, cost, atlas)
                if pair == 0:  # the first pair warms up
                    drawings, drawing_s = live.drawings, live.drawing_s
                    continue
                watched_s += both[True][2]
                for at, name in enumerate(ratios):
                    ratios[name].append(both[True][at] / both[False][at])
            print(f"{method.name}: {PAIRS} pairs of {TOKENS} tokens, {live.drawings - drawings} drawings", flush=True)
            for name, values in ratios.items():
                low, _, high = quantiles(values, n=4)
                print(f"  watched over unwatched, {name}: {median(values):.3f} (quartiles {low:.3f} to {high:.3f})")
            print(
                f"  drawing: {(live.drawing_s - drawing_s) / watched_s:.2%} of wall time; wanted below 2 %", flush=True
            )
        live.close()


def _watched(live: Any) -> tuple[float, float, float]:
    """(CPU seconds, milliseconds on the run's clocks, seconds from Start to the end) of a run in the widget."""
    start, busy = time.perf_counter(), time.process_time()
    live.start()
    live.wait()
    took, busy = time.perf_counter() - start, time.process_time() - busy
    return busy, live.run.requests[0].request_ms, took


def _alone(engine: Any, prompt: Any, method: Any, cost: Any, atlas: Any) -> tuple[float, float, float]:
    """The same without anybody watching, in the same thread as the notebook's cells."""
    start, busy = time.perf_counter(), time.process_time()
    engine.reset()
    decoding = engine.decode(
        prompt,
        method=method,
        cost=cost,
        routes=atlas if method.uses_routes else None,
        truth=atlas.truth,
        max_new_tokens=TOKENS,
    )
    list(decoding)
    return time.process_time() - busy, decoding.request_ms, time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
