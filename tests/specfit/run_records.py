"""Run records made by dice, for tests of what stores, measures and prints them; they need not make sense together."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specfit.objective import Selection
from specfit.records import CycleRecord, ForwardCounts, RequestRecord, RunRecord, StageTimes, Truth
from specfit.routes import Routes
from specfit.run_folder import RunWriter
from specfit.tree import ROOT, DraftPool

LAYERS, EXPERTS = 3, 7  # 21 bits: no whole number of bytes
SETTINGS = {"method": "specfit", "slots_per_layer": 4, "cleared": False, "link": {"kind": "emulated", "gb_s": 1.5}}
MACHINE = {"processor": "toy", "started": "2026-11-29T17:00:00+00:00"}
ODD_TEXT = "a\u2028b\u2029c\u0085d\x0be\x1cf\r\ng\x00h \U0001f600 \u202e"  # all of it is text a model can write


def dice_routes(dice: random.Random, nodes: int) -> Routes:
    bitmaps = [dice.getrandbits(LAYERS * EXPERTS) for _ in range(nodes + 1)]
    return Routes(bitmaps[0], tuple(bitmaps[1:]), LAYERS, EXPERTS)


def dice_cycle(dice: random.Random, index: int) -> CycleRecord:
    size = dice.randrange(8)
    parents = tuple(dice.randrange(ROOT, node) for node in range(size))
    probs: list[float] = []
    for parent in parents:
        probs.append(dice.random() * (1 if parent == ROOT else probs[parent]))
    pool = DraftPool(tuple(dice.randrange(99) for _ in range(size)), parents, tuple(probs))
    path = pool.path(size - 1) if size else ()
    truth = Truth(dice_routes(dice, size), tuple(dice.randrange(99) for _ in range(size + 1)))
    estimate = dice.choice([None, truth.routes, dice_routes(dice, size)])
    seen = truth.routes
    return CycleRecord(
        index=index,
        prefix_length=10 + index,
        root=dice.randrange(99),
        pool=pool,
        estimate=estimate,
        truth=dice.choice([None, truth]),
        selection=Selection(path, 1 + dice.random(), 10 * dice.random(), dice.randrange(21), dice.random() < 0.9),
        verified=Routes(seen.root, tuple(seen.nodes[node] for node in path), LAYERS, EXPERTS),
        accepted=path[:1],
        committed_tokens=tuple(dice.randrange(99) for _ in range(1 + len(path[:1]))),
        counts=ForwardCounts(9, 5, 4, dice.random()),
        times=StageTimes(dice.random(), dice.random(), dice.random(), dice.random()),
    )


def dice_request(number: int, *, seed: int = 0) -> RequestRecord:
    """The same arguments give the same record, in any process."""
    dice = random.Random(f"{seed}/{number}")
    cycles = tuple(dice_cycle(dice, index) for index in range(dice.randrange(5)))
    output = (dice.randrange(99), *(token for cycle in cycles for token in cycle.committed_tokens))
    return RequestRecord(
        request_id=f"toy/{number}/0",
        question_id=number if dice.random() < 0.5 else f"q\u2028{number}",
        category=dice.choice(["math", ""]),
        prompt_tokens=tuple(dice.randrange(99) for _ in range(dice.randrange(1, 9))),
        output_tokens=output,
        output_text=ODD_TEXT * dice.randrange(3),
        stop_reason=dice.choice(["eos", "limit"]),
        request_ms=100 * dice.random() + 100,
        prefill_ms=100 * dice.random(),
        prefill=ForwardCounts(6, 2, 4, 0.1),
        cycles=cycles,
        extra={"reference": None, "turns": ["a", "b"], "nested": {"share": 0.1, "ok": True}},
    )


def dice_run(requests: int = 3, *, seed: int = 0, complete: bool = True, **settings: Any) -> RunRecord:
    return RunRecord(
        settings=SETTINGS | settings,
        machine=MACHINE,
        requests=tuple(dice_request(number, seed=seed) for number in range(requests)),
        layers=LAYERS,
        experts=EXPERTS,
        tokens={number: f"t{number}\u2028" for number in range(99)} if requests else {},
        complete=complete,
    )


def open_writer(folder: Path | str, settings: Mapping[str, Any] = SETTINGS, **given: Any) -> RunWriter:
    shape: dict[str, Any] = {"machine": MACHINE, "layers": LAYERS, "experts": EXPERTS} | given
    return RunWriter.open(folder, settings=settings, **shape)


def append_until_killed(folder: str, chunk: int | None, requests: int = 10_000) -> None:
    """Resume and append request after request; `chunk` bytes a write, so that a kill can tear a line."""
    if chunk is not None:
        module = sys.modules[RunWriter.__module__]
        whole = module.write_all

        def in_chunks(file: Any, data: bytes) -> None:
            for start in range(0, len(data), chunk):
                whole(file, data[start : start + chunk])

        module.write_all = in_chunks  # type: ignore[attr-defined]
    with open_writer(folder) as writer:
        done = set(writer.finished)
        for number in range(requests):
            request = dice_request(number)
            if request.request_id not in done:
                writer.append(request)
