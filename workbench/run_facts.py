"""What a person looks for in a run: where its cycles are, and which of them lost against AR or differ from EAGLE-3.

The comparisons are made in the cost model's own time (both sides predicted, so that the noise of a clock does not pick
the cycles) and with the tokens that each choice commits, which an atlas knows exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from specfit.objective import CostModel
from specfit.records import CycleRecord, ForwardCounts, RequestRecord, RunRecord
from specfit.run_folder import RunError, load_run
from workbench.choices import ar_choice, choice, deeper, eagle3_choice

Fuller = Callable[[RequestRecord, CycleRecord], CycleRecord | None]  # the same place in a run that drafted deeper
PAPER_NODES = 7  # K of trees where neither the run nor its cost says one
ORDERS = {
    "all": "all cycles in order",
    "ar": "AR would have been faster",
    "gap": "largest difference to EAGLE-3 first",
}


@dataclass(frozen=True, slots=True)
class Rates:
    """Tokens per second of one cycle by the cost model, None where the record cannot tell."""

    run: float | None
    ar: float | None
    eagle3: float | None


def run_cost(run: RunRecord) -> CostModel | None:
    """The coefficients a run's settings hold, or None."""
    cost = run.settings.get("cost")
    if isinstance(cost, CostModel):
        return cost
    try:
        return CostModel.from_dict(dict(cost)) if cost else None
    except (TypeError, ValueError):
        return None


def most_nodes(run: RunRecord, cost: CostModel | None) -> int:
    """K of what-if trees and of EAGLE-3's: the run's own, as far as the cost has coefficients."""
    most = int(run.settings.get("max_nodes") or PAPER_NODES)
    return most if cost is None else min(most, cost.max_nodes)


def full_levels(run: RunRecord) -> int | None:
    """Levels of a draft that does not stop early, as the run's settings say; None where they do not."""
    draft = run.settings.get("draft")
    depth = draft.get("depth") if isinstance(draft, Mapping) else None
    return depth if isinstance(depth, int) else None


def run_of(source: Any, *, tokens: Any = None) -> RunRecord:
    """A RunRecord from a run folder, a RunRecord, or a list of requests or of cycles.

    Raises RunError (a sentence) for a folder that is no run, and for anything else that holds no records.
    """
    if isinstance(source, RunRecord):
        return source
    if isinstance(source, list | tuple):
        records = list(source)
        if records and all(isinstance(record, RequestRecord) for record in records):
            return _run_of_requests(tuple(records), tokens)
        if records and all(isinstance(record, CycleRecord) for record in records):
            return _run_of_requests((_request_of_cycles(records),), tokens)
        raise RunError("a player takes a run folder, a RunRecord, or a list of requests or cycles; this list has none")
    try:
        return load_run(source)
    except TypeError:
        raise RunError(
            f"a player takes a run folder, a RunRecord, or a list of requests or cycles; got {type(source).__name__}"
        ) from None


def rates(cycle: CycleRecord, cost: CostModel, max_nodes: int, fuller: CycleRecord | None = None) -> Rates:
    """Committed tokens over predicted time for the run's choice, for AR, and for EAGLE-3's choice (`eagle3_choice`)."""
    found: list[float | None] = []
    chosen = choice("this run", cycle, cycle.selection.nodes, cost)
    for made in (chosen, ar_choice(cycle, cost), eagle3_choice(cycle, cost, max_nodes, fuller=fuller)):
        if made.committed is not None and made.committed[1] and made.predicted_ms:
            found.append(1e3 * made.committed[0] / made.predicted_ms)
        else:
            found.append(None)
    return Rates(*found)


def cycle_order(
    run: RunRecord,
    order: str,
    *,
    question: int | None,
    cost: CostModel | None,
    fuller: Fuller = lambda request, cycle: None,
) -> list[int]:
    """Numbers of the run's cycles (counted over all requests) to walk through.

    order: a key of ORDERS. question: a request's position, or None for all. fuller: a record of the same place that
    drafted more levels, for EAGLE-3's choice. Raises RunError where the run cannot say.
    """
    chosen = [
        (number, request, cycle)
        for number, (place, request, cycle) in enumerate(walk(run))
        if question is None or place == question
    ]
    numbers = [number for number, _, _ in chosen]
    if order == "all":
        return numbers
    if cost is None:
        raise RunError("this run has no cost coefficients, so what AR or EAGLE-3 would have taken is not known")
    most = most_nodes(run, cost)
    compared = [rates(cycle, cost, most, deeper(cycle, fuller(request, cycle))) for _, request, cycle in chosen]
    if order == "ar":
        return [n for n, r in zip(numbers, compared, strict=True) if r.run is not None and r.ar and r.ar > r.run]
    gaps = {
        n: abs(r.run - r.eagle3)
        for n, r in zip(numbers, compared, strict=True)
        if r.run is not None and r.eagle3 is not None and r.run != r.eagle3
    }
    return sorted(gaps, key=lambda n: (-gaps[n], n))


def order_note(order: str, *, found: int, cost: CostModel | None) -> str:
    """How the cycles of a filter were chosen, for people; empty for all cycles."""
    if order == "all" or cost is None:
        return ""
    how = (
        f"{found} cycles. Compared are the tokens that each choice commits over the time that the cost model predicts "
        "for it, not measured times; cycles whose record cannot tell are left out."
    )
    return how if order == "ar" else f"{how} EAGLE-3's trees come from the pool named below the table."


def walk(run: RunRecord) -> list[tuple[int, RequestRecord, CycleRecord]]:
    """Every cycle with its request and the request's position."""
    return [(place, request, cycle) for place, request in enumerate(run.requests) for cycle in request.cycles]


def stage_times(run: RunRecord) -> np.ndarray:
    """(cycles, 4) float32 milliseconds: draft, select, verify, commit."""
    rows = [(c.times.draft_ms, c.times.select_ms, c.times.verify_ms, c.times.commit_ms) for _, _, c in walk(run)]
    return np.array(rows, np.float32).reshape(-1, 4)


def expected_rates(run: RunRecord) -> np.ndarray:
    """(cycles,) float32 R/T of every choice, tokens per second; NaN where the run predicted no time."""
    return np.array(
        [1e3 * c.selection.ratio if c.selection.predicted_ms else np.nan for _, _, c in walk(run)], np.float32
    )


def _request_of_cycles(cycles: list[CycleRecord]) -> RequestRecord:
    output = tuple(token for cycle in cycles for token in cycle.committed_tokens)
    time = sum(cycle.times.total_ms for cycle in cycles)
    return RequestRecord(
        request_id="cycles",
        question_id="cycles",
        category="",
        prompt_tokens=(),
        output_tokens=(cycles[0].root, *output),
        output_text="",
        stop_reason="",
        request_ms=time,
        prefill_ms=0.0,
        prefill=ForwardCounts(),
        cycles=tuple(cycles),
    )


def _run_of_requests(requests: tuple[RequestRecord, ...], tokens: Any) -> RunRecord:
    shapes = [(c.verified.layers, c.verified.experts) for request in requests for c in request.cycles] or [(0, 0)]
    return RunRecord(
        settings={"method": "records"},
        machine={},
        requests=requests,
        layers=shapes[0][0],
        experts=shapes[0][1],
        tokens=dict(tokens or {}),
    )
