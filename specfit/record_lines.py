"""Requests and cycles as plain JSON values, and back: the text half of a run folder (`specfit.run_folder`).

A request and a cycle are one flat object each, so that `pandas.read_json(..., lines=True)` gives tables without us.
Bitmaps of routes do not belong in text: a cycle names rows of `routes.bin` instead, the root's row first. What JSON
cannot give back (NaN, infinity, sets, objects, keys that are no text) is refused by name before anything is written.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Rational, Real
from typing import Any

import numpy as np

from specfit.objective import Selection
from specfit.records import CycleRecord, ForwardCounts, RequestRecord, StageTimes, Truth
from specfit.routes import Routes
from specfit.tree import DraftPool


class RunError(ValueError):
    """A run folder, or what should go into it, is not as it must be: one sentence for the person in front of it."""


def plain(value: Any, where: str) -> Any:
    """`value` as JSON gives it back: tuples as lists, numpy scalars as Python's.

    Raises RunError for what JSON would drop, change or write as no JSON; `where` says whose value it is.
    """
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real) and not isinstance(value, Rational):
        number = float(value)
        if not math.isfinite(number):
            raise RunError(f"{where} is {number}; a run holds finite numbers, so store null and say why beside it")
        return number
    if isinstance(value, Mapping):
        wrong = [key for key in value if not isinstance(key, str)]
        if wrong:
            raise RunError(f"{where} has the key {wrong[0]!r}; keys are text in a run, so write {str(wrong[0])!r}")
        return {key: plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, f"{where}[{position}]") for position, item in enumerate(value)]
    raise RunError(
        f"{where} is a {type(value).__name__}; a run holds text, numbers, true, false, null, lists and objects of these"
    )


def json_line(value: Mapping[str, Any], where: str) -> bytes:
    """One line of JSON lines. ASCII only: no character of a model's text can then end a line or be torn in two."""
    return json.dumps(plain(value, where), allow_nan=False).encode("ascii") + b"\n"


# -- to lines --------------------------------------------------------------------------------------------------------


def request_line(request: RequestRecord, *, route_rows: int, tokens: Mapping[int, str]) -> bytes:
    """The line that makes a request count.

    route_rows: rows that its cycles added to routes.bin. tokens: texts of the token ids that occur for the first time.
    """
    line = {
        "request_id": request.request_id,
        "question_id": request.question_id,
        "category": request.category,
        "stop_reason": request.stop_reason,
        "request_ms": request.request_ms,
        "prefill_ms": request.prefill_ms,
        "prefill_demand": request.prefill.demand,
        "prefill_hits": request.prefill.hits,
        "prefill_misses": request.prefill.misses,
        "prefill_wait_ms": request.prefill.wait_ms,
        "cycles": len(request.cycles),
        "route_rows": route_rows,
        "prompt_tokens": request.prompt_tokens,
        "output_tokens": request.output_tokens,
        "output_text": request.output_text,
        "extra": request.extra,
        "token_texts": {str(int(token)): text for token, text in tokens.items()},
    }
    return json_line(line, f"request {request.request_id!r}")


def cycle_line(request_id: str, cycle: CycleRecord, row_of: Callable[[int], int]) -> bytes:
    """One cycle; `row_of` gives the row of routes.bin that holds a bitmap."""

    def rows(routes: Routes | None) -> list[int] | None:
        return None if routes is None else [row_of(bitmap) for bitmap in (routes.root, *routes.nodes)]

    truth = cycle.truth
    line = {
        "request_id": request_id,
        "index": cycle.index,
        "prefix_length": cycle.prefix_length,
        "root": cycle.root,
        "selected": cycle.selection.nodes,
        "accepted": cycle.accepted,
        "committed_tokens": cycle.committed_tokens,
        "reward": cycle.selection.reward,
        "predicted_ms": cycle.selection.predicted_ms,
        "union": cycle.selection.union,
        "proved": cycle.selection.proved,
        "demand": cycle.counts.demand,
        "hits": cycle.counts.hits,
        "misses": cycle.counts.misses,
        "wait_ms": cycle.counts.wait_ms,
        "draft_ms": cycle.times.draft_ms,
        "select_ms": cycle.times.select_ms,
        "verify_ms": cycle.times.verify_ms,
        "commit_ms": cycle.times.commit_ms,
        "pool_tokens": cycle.pool.tokens,
        "pool_parents": cycle.pool.parents,
        "pool_path_probs": cycle.pool.path_probs,
        "estimate_rows": rows(cycle.estimate),
        "truth_rows": None if truth is None else rows(truth.routes),
        "truth_next_tokens": None if truth is None else truth.next_tokens,
        "verified_rows": rows(cycle.verified),
        "resident_row": None if cycle.resident is None else row_of(cycle.resident),
    }
    return json_line(line, f"cycle {cycle.index} of request {request_id!r}")


# -- from lines ------------------------------------------------------------------------------------------------------


def request_from_line(line: Mapping[str, Any], cycles: Sequence[CycleRecord]) -> RequestRecord:
    """The inverse of `request_line`, given the cycles that were written before it."""
    return RequestRecord(
        request_id=line["request_id"],
        question_id=line["question_id"],
        category=line["category"],
        prompt_tokens=tuple(line["prompt_tokens"]),
        output_tokens=tuple(line["output_tokens"]),
        output_text=line["output_text"],
        stop_reason=line["stop_reason"],
        request_ms=line["request_ms"],
        prefill_ms=line["prefill_ms"],
        prefill=ForwardCounts(
            line["prefill_demand"], line["prefill_hits"], line["prefill_misses"], line["prefill_wait_ms"]
        ),
        cycles=tuple(cycles),
        extra=line["extra"],
    )


def cycle_from_line(line: Mapping[str, Any], bitmaps: Sequence[int], *, layers: int, experts: int) -> CycleRecord:
    """The inverse of `cycle_line`; `bitmaps` are the rows of routes.bin."""

    def routes(rows: list[int] | None) -> Routes | None:
        if rows is None:
            return None
        if not all(0 <= row < len(bitmaps) for row in rows):
            raise ValueError(f"it names row {max(rows)} of routes.bin, which has {len(bitmaps)}")
        return Routes(bitmaps[rows[0]], tuple(bitmaps[row] for row in rows[1:]), layers, experts)

    known, verified = routes(line["truth_rows"]), routes(line["verified_rows"])
    if verified is None:
        raise ValueError("it has no verified routes")
    return CycleRecord(
        index=line["index"],
        prefix_length=line["prefix_length"],
        root=line["root"],
        pool=DraftPool(tuple(line["pool_tokens"]), tuple(line["pool_parents"]), tuple(line["pool_path_probs"])),
        estimate=routes(line["estimate_rows"]),
        truth=None if known is None else Truth(known, tuple(line["truth_next_tokens"])),
        selection=Selection(
            tuple(line["selected"]), line["reward"], line["predicted_ms"], line["union"], line["proved"]
        ),
        verified=verified,
        accepted=tuple(line["accepted"]),
        committed_tokens=tuple(line["committed_tokens"]),
        counts=ForwardCounts(line["demand"], line["hits"], line["misses"], line["wait_ms"]),
        times=StageTimes(line["draft_ms"], line["select_ms"], line["verify_ms"], line["commit_ms"]),
        resident=None if line.get("resident_row") is None else bitmaps[line["resident_row"]],
    )
