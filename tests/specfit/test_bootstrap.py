"""The paired bootstrap: the ratio of sums, an interval that covers, and one sentence for what cannot be compared."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from specfit.bootstrap import paired_ratio, paired_speedup
from specfit.methods import AR, EAGLE3
from specfit.metrics import speedup
from specfit.modelled import ModelledClock, retime
from tests.toys import toy_run

CLOCK = ModelledClock(forward_ms=5.0, level_ms=0.5, expert_ms=0.25, miss_ms=2.0)


def test_the_ratio_is_one_of_sums() -> None:
    found = paired_ratio([10, 30], [5, 5], [10, 30], [10, 20])
    assert found.ratio == (40 / 10) / (40 / 30)
    assert found.prompts == 2
    assert str(found) == f"3.000x [{found.low:.3f}, {found.high:.3f}]"


def test_constant_ratios_leave_no_doubt_and_pairs_cancel_what_prompts_share() -> None:
    rng = np.random.default_rng(1)
    ms = rng.lognormal(sigma=1.5, size=40)  # prompts differ widely, the methods by 2 % each time
    found = paired_ratio(np.ones(40), ms, np.ones(40), 1.02 * ms)
    assert found.low == pytest.approx(1.02)
    assert found.high == pytest.approx(1.02)
    assert found.sure


def test_the_interval_covers_as_often_as_it_says() -> None:
    rng = np.random.default_rng(2)
    inside = 0
    for trial in range(300):
        tokens = rng.integers(20, 200, size=40)
        ms, other = tokens * rng.normal(10, 2, size=40), tokens * rng.normal(12, 2, size=40)
        found = paired_ratio(tokens, ms, tokens, other, resamples=400, seed=trial)
        inside += found.low <= 1.2 <= found.high
    assert 0.90 <= inside / 300 <= 0.99  # 95 %, four standard errors each way


def test_a_seed_gives_the_same_interval_and_another_nearly_so() -> None:
    rng = np.random.default_rng(3)
    columns = rng.uniform(1, 2, size=(4, 30))
    one, again, other = (paired_ratio(*columns, seed=seed) for seed in (5, 5, 6))
    assert one == again
    assert (one.low, one.high) != (other.low, other.high)
    assert one.low == pytest.approx(other.low, abs=0.02)


def test_a_prompt_without_decode_time_is_left_out_and_one_alone_has_no_interval() -> None:
    found = paired_ratio([10, 0], [5, 0], [10, 0], [10, 0])
    assert (found.ratio, found.prompts, found.low, found.high, found.sure) == (2.0, 1, None, None, False)
    assert str(found) == "2.000x"


def test_runs_are_paired_by_request() -> None:
    drafted, plain = retime(toy_run(EAGLE3, requests=6), CLOCK), retime(toy_run(AR, requests=6), CLOCK)
    found = paired_speedup(drafted, plain)
    assert found.ratio == pytest.approx(speedup(drafted, plain).ratio_of_sums)
    assert found.low < found.ratio < found.high
    turned = replace(plain, requests=plain.requests[::-1])
    assert paired_speedup(drafted, turned) == found


@pytest.mark.parametrize(
    ("columns", "more", "match"),
    [
        (([1], [1], [1], [1, 2]), {}, r"one number a prompt in every column; got tokens \(1,\).*other ms \(2,\)"),
        (([[1]], [[1]], [[1]], [[1]]), {}, "one number a prompt"),
        (([1], [float("nan")], [1], [1]), {}, "^ms of a paired comparison holds nan"),
        (([1], [1], [-1], [1]), {}, "^other tokens of a paired comparison holds -1"),
        (([], [], [], []), {}, "no prompt was decoded by both methods"),
        (([0], [0], [1], [1]), {}, "no prompt was decoded by both methods"),
        (([1], [1], [1], [1]), {"level": 1.0}, "level is a share between 0 and 1"),
        (([1], [1], [1], [1]), {"resamples": 0}, "at least one resample; got 0"),
    ],
)
def test_what_cannot_be_compared(columns: tuple, more: dict, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        paired_ratio(*columns, **more)
