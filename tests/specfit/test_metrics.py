"""Metrics: the paper's formulas on runs small enough to check by hand, and nothing undefined passed off as a number."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from typing import Any

import pytest

from specfit.methods import AR, EAGLE3, SPECFIT
from specfit.metrics import RunMetrics, decompose, depth_acceptance, measure, speedup
from specfit.objective import Selection
from specfit.records import CycleRecord, ForwardCounts, RequestRecord, RunRecord, StageTimes
from specfit.routes import Routes
from specfit.tree import EMPTY_POOL, ROOT, DraftPool
from tests.specfit.run_records import dice_run
from tests.toys import toy_run


def cycle(
    committed: tuple[int, ...], *, pool: DraftPool = EMPTY_POOL, accepted: tuple[int, ...] = (), **given: Any
) -> CycleRecord:
    """A cycle that verified its whole pool."""
    nodes = tuple(range(len(pool)))
    routes = Routes(1, (1,) * len(pool), 1, 4)
    fields: dict[str, Any] = {
        "counts": ForwardCounts(10, 6, 4),
        "times": StageTimes(1.0, 0.5, 6.0, 0.5),
        "selection": Selection(nodes, 1.0, 7.5, 1),
    } | given
    return CycleRecord(
        0, 5, 9, pool, None, None, verified=routes, accepted=accepted, committed_tokens=committed, **fields
    )


def request(
    name: str, cycles: list[CycleRecord], *, decode_ms: float, prefill_ms: float = 100.0, misses: int = 10
) -> RequestRecord:
    output = (0, *(token for one in cycles for token in one.committed_tokens))
    prefill = ForwardCounts(12, 12 - misses, misses)
    times = (prefill_ms + decode_ms, prefill_ms)
    return RequestRecord(name, name, "toy", (1, 2), output, "", "limit", *times, prefill, tuple(cycles))


def run(*requests: RequestRecord, method: str = "specfit") -> RunRecord:
    return RunRecord({"method": method}, {}, requests, 1, 4)


CHAIN = DraftPool((1, 2, 3, 4), (ROOT, 0, 1, 2), (0.9, 0.8, 0.7, 0.6))


def test_equation_10_is_a_ratio_of_sums() -> None:
    first = request("a", [cycle((1,)), cycle((1, 2))], decode_ms=20)
    second = request("b", [cycle((1, 2, 3))], decode_ms=100)
    found = measure(run(first, second))
    assert found.decode_tps == pytest.approx((3 + 3) / 0.120)
    assert found.request_tps == pytest.approx((4 + 4) / 0.320)
    assert found.cycles == 3 and found.output_tokens == 8
    assert found.committed == pytest.approx(6 / 3)
    assert found.cycle_ms == pytest.approx(120 / 3)
    assert found.h2d_per_token == pytest.approx((3 * 4 + 2 * 10) / 8)
    assert found.hit_rate == pytest.approx(0.6)
    assert (found.draft_ms, found.select_ms, found.verify_ms, found.commit_ms) == (1.0, 0.5, 6.0, 0.5)
    assert found.decode_tps == pytest.approx(1e3 * (found.committed or 0) / (found.cycle_ms or 1))


def test_selected_accepted_and_committed_are_three_numbers() -> None:
    found = measure(run(request("a", [cycle((1, 9), pool=CHAIN, accepted=(0,)), cycle((7,))], decode_ms=10)))
    assert (found.draft_nodes, found.accepted, found.committed, found.accepted_share) == (2.0, 0.5, 1.5, 0.25)


def test_predicted_and_measured_cycle_times_leave_the_selector_out_and_warn_from_ten_percent_on() -> None:
    good = measure(run(request("a", [cycle((1,))], decode_ms=8)))
    assert (good.predicted_ms, good.measured_ms, good.drift, good.warning) == (7.5, 7.5, 0.0, None)
    for predicted, warns in [(8.2, False), (8.3, True), (6.8, False), (6.7, True)]:
        selection = Selection((), 1.0, predicted, 1)
        found = measure(run(request("a", [cycle((1,), selection=selection)], decode_ms=8)))
        assert bool(found.warning) is warns
        assert not warns or "calibrate again" in str(found.warning)


def test_without_coefficients_nothing_is_predicted() -> None:
    bare = cycle((1,), selection=Selection((), 1.0, 0.0, 1))
    found = measure(run(request("a", [bare], decode_ms=8)))
    assert found.predicted_ms is None and found.warning is None
    assert found.reasons["predicted_ms"] == "the run had no cost coefficients"
    said = replace(run(request("a", [cycle((1,))], decode_ms=8)), settings={"method": "ar", "cost": None})
    assert measure(said).predicted_ms is None


# -- acceptance by depth (a token after a rejection is never counted) ------------------------------------------------


def test_what_follows_the_first_wrong_token_is_not_counted() -> None:
    assert depth_acceptance([cycle((1, 9), pool=CHAIN, accepted=(0,))]) == (1.0, 0.0)


def test_acceptance_is_conditional_on_reaching_the_depth() -> None:
    cycles = [
        cycle((1, 2, 3, 4, 8), pool=CHAIN, accepted=(0, 1, 2, 3)),
        cycle((1, 2, 9), pool=CHAIN, accepted=(0, 1)),
        cycle((5,), pool=CHAIN),
        cycle((6,)),  # drafted nothing: reaches no depth
    ]
    assert depth_acceptance(cycles) == (2 / 3, 1.0, 0.5, 1.0)


def test_a_depth_where_no_node_was_verified_is_not_reached() -> None:
    kept = cycle((1, 2), pool=CHAIN, accepted=(0,), selection=Selection((0,), 1.0, 1.0, 1))
    assert depth_acceptance([kept]) == (1.0,)


@pytest.mark.parametrize("accepted", [(0, 1), (0,)])
def test_a_block_cut_by_the_limit_says_nothing_about_the_cut(accepted: tuple[int, ...]) -> None:
    assert depth_acceptance([cycle((1, 2), pool=CHAIN, accepted=accepted)]) == (1.0, 1.0)


def test_any_sibling_may_be_the_right_one() -> None:
    tree = DraftPool((1, 2, 3), (ROOT, ROOT, 1), (0.5, 0.4, 0.3))
    assert depth_acceptance([cycle((2, 3, 0), pool=tree, accepted=(1, 2))]) == (1.0, 1.0)


@pytest.mark.parametrize("method", [AR, EAGLE3, SPECFIT])
def test_depth_acceptance_agrees_with_the_accepted_paths_of_a_run(method: Any) -> None:
    record = toy_run(method, requests=4, tokens=60)
    found = measure(record)
    accepted = sum(len(one.accepted) for _, one in record.cycles())
    pools = [(one, set(one.selection.nodes)) for _, one in record.cycles()]
    for depth, share in enumerate(found.depth_acceptance, start=1):
        above = [(one, kept) for one, kept in pools if len(one.accepted) >= depth - 1]
        tried = [
            one
            for one, kept in above
            if any(one.pool.parents[v] == (ROOT, *one.accepted)[depth - 1] for v in kept) and one.committed >= depth
        ]
        right = [one for one in tried if len(one.accepted) >= depth]
        accepted -= len(right)
        assert share == len(right) / len(tried)
    assert accepted == 0
    assert (found.depth_acceptance == ()) is (method is AR)
    assert found.committed == pytest.approx(
        sum(len(one.output_tokens) - 1 for one in record.requests) / len(record.cycles())
    )


# -- nothing undefined is a number -----------------------------------------------------------------------------------

ONE_TOKEN = request("a", [], decode_ms=0.0)
NO_TOKEN = replace(ONE_TOKEN, output_tokens=())


@pytest.mark.parametrize("requests", [(), (ONE_TOKEN,), (NO_TOKEN,), (replace(ONE_TOKEN, request_ms=0, prefill_ms=0),)])
def test_undefined_values_are_none_with_a_reason(requests: tuple[RequestRecord, ...]) -> None:
    found = measure(run(*requests))
    values = asdict(found)
    json.dumps(values, allow_nan=False)
    empty = {name for name, value in values.items() if value is None}
    assert empty == set(found.reasons)
    assert {"decode_tps", "cycle_ms", "hit_rate", "accepted_share"} <= empty
    assert all(reason for reason in found.reasons.values())
    assert found.drift is None and found.warning is None


def test_a_selector_that_never_drafts_has_no_accepted_share() -> None:
    found = measure(run(request("a", [cycle((1,))] * 3, decode_ms=9)))
    assert found.accepted_share is None and "no draft node" in found.reasons["accepted_share"]
    assert found.draft_nodes == 0 and found.depth_acceptance == ()


def test_every_value_of_a_dice_run_is_finite() -> None:
    for seed in range(20):
        found: RunMetrics = measure(dice_run(3, seed=seed))
        for value in asdict(found).values():
            assert not isinstance(value, float) or math.isfinite(value)


# -- comparisons -----------------------------------------------------------------------------------------------------


def test_ratio_of_sums_and_mean_of_ratios_are_told_apart() -> None:
    slow = run(request("a", [cycle((1,))], decode_ms=2e3), request("b", [cycle((1,))], decode_ms=100e3), method="ar")
    fast = run(request("a", [cycle((1,))], decode_ms=1e3), request("b", [cycle((1,))], decode_ms=60e3))
    found = speedup(fast, slow)
    assert round(found.ratio_of_sums or 0, 2) == 1.67
    assert round(found.mean_of_ratios or 0, 2) == 1.83
    assert not found.slower and found.notes == ()
    assert speedup(slow, fast).slower


def test_only_requests_of_both_runs_are_compared_and_differing_outputs_are_said() -> None:
    base = run(request("a", [cycle((1,))], decode_ms=10), request("b", [cycle((1,))], decode_ms=1), method="ar")
    mine = run(request("a", [cycle((2,))], decode_ms=5), ONE_TOKEN)
    found = speedup(replace(mine, requests=mine.requests[:1]), base)
    assert (found.ratio_of_sums, found.requests) == (2.0, 1)
    assert "1 of 2 requests" in found.notes[0] and "differs" in found.notes[1]


def test_runs_that_cannot_be_compared_have_no_speedup_but_a_reason() -> None:
    base = run(request("a", [cycle((1,))], decode_ms=10), method="ar")
    for other in (run(), run(replace(ONE_TOKEN, request_id="z")), run(ONE_TOKEN)):
        for found in (speedup(other, base), speedup(base, other)):
            assert found.ratio_of_sums is None and found.mean_of_ratios is None and found.notes and not found.slower


def test_equation_8_adds_up() -> None:
    first, second = toy_run(SPECFIT, requests=2), toy_run(EAGLE3, requests=2)
    found = decompose(first, second, transfer_ms=1e-4)
    assert found.reason is None
    assert found.ratio is not None and found.weight is not None
    assert found.fixed_ratio is not None and found.transfer_ratio is not None
    assert (1 - found.weight) * found.fixed_ratio + found.weight * found.transfer_ratio == pytest.approx(found.ratio)
    assert found.ratio == pytest.approx(speedup(first, second).ratio_of_sums)


@pytest.mark.parametrize(
    ("transfer_ms", "why"), [(1e6, "of the time"), (-1.0, "of the time"), (float("nan"), "of the time")]
)
def test_equation_8_is_refused_where_the_copies_cannot_take_that_long(transfer_ms: float, why: str) -> None:
    mine = run(request("a", [cycle((1,))], decode_ms=10))
    assert why in str(decompose(mine, mine, transfer_ms=transfer_ms).reason)


def test_equation_8_without_copies_or_cycles_is_undefined() -> None:
    still = run(request("a", [cycle((1,), counts=ForwardCounts(3, 3, 0))], decode_ms=10))
    assert "without copies" in str(decompose(still, still, transfer_ms=1.0).reason)
    assert "no request" in str(decompose(run(), still, transfer_ms=1.0).reason)
    assert "no request" in str(decompose(run(ONE_TOKEN), still, transfer_ms=1.0).reason)
