"""The modelled clock: times from counts, and nothing else changed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specfit.methods import AR, SPECFIT
from specfit.modelled import ModelledClock, retime
from specfit.records import ForwardCounts, StageTimes
from tests.toys import toy_run

CLOCK = ModelledClock(forward_ms=5.0, level_ms=0.5, expert_ms=0.25, miss_ms=2.0)


def test_a_forward_and_a_cycle() -> None:
    assert CLOCK.verify_ms(ForwardCounts(demand=8, hits=5, misses=3, wait_ms=99.0)) == 5.0 + 8 * 0.25 + 3 * 2.0
    cycle = toy_run(requests=1).requests[0].cycles[0]
    assert CLOCK.times(cycle) == StageTimes(
        draft_ms=0.5 * cycle.pool.levels, verify_ms=5.0 + 0.25 * cycle.counts.demand + 2.0 * cycle.counts.misses
    )


@pytest.mark.parametrize("method", [AR, SPECFIT])
def test_a_retimed_run_differs_in_times_alone(method) -> None:
    run = toy_run(method, slots=3)
    again = retime(run, CLOCK)
    assert again == retime(toy_run(method, slots=3), CLOCK)  # deterministic, where wall time is not
    assert again.settings == {
        **run.settings,
        "link": {"kind": "modelled", "forward_ms": 5.0, "level_ms": 0.5, "expert_ms": 0.25, "miss_ms": 2.0},
    }
    for old, new in zip(run.requests, again.requests, strict=True):
        assert new.prefill_ms == CLOCK.verify_ms(old.prefill)
        assert new.request_ms == new.prefill_ms + sum(cycle.times.total_ms for cycle in new.cycles)
        same = tuple(replace(cycle, times=was.times) for was, cycle in zip(old.cycles, new.cycles, strict=True))
        assert replace(new, cycles=same, prefill_ms=old.prefill_ms, request_ms=old.request_ms) == old


def test_the_cost_model_that_knows_the_clock() -> None:
    cost = CLOCK.cost(miss_share=0.5, max_nodes=3)
    assert cost.intercepts_ms == (5.0,) * 4
    assert (cost.expert_ms, cost.level_ms) == (1.25, 0.5)


@pytest.mark.parametrize("wrong", [-1.0, float("nan")])
def test_a_clock_runs_forward(wrong: float) -> None:
    with pytest.raises(ValueError, match=r"miss_ms of a modelled clock is .*; expected 0 or more milliseconds"):
        replace(CLOCK, miss_ms=wrong)
