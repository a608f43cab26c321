"""How sure a ratio of two methods is: a paired bootstrap over prompts.

Both methods decode the same prompts, and a prompt that is hard for one is hard for the other, so prompts are drawn in
pairs: each resample draws as many prompts as there are, with replacement, and takes both methods' tokens and times of
each. The ratio is the paper's, of sums (tokens over time of one method, over tokens over time of the other). The
interval speaks of other prompts of the same kind; it knows nothing of a clock that drifts or of another machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specfit.metrics import decode_time_ms, decoded_tokens, shared_requests
from specfit.records import RunRecord

RESAMPLES = 5000


@dataclass(frozen=True, slots=True)
class PairedRatio:
    """Throughput of a method over another's on the same prompts, with a bootstrap interval."""

    ratio: float  # of sums
    low: float | None  # the interval's ends; None for a single prompt, which says nothing about others
    high: float | None
    prompts: int  # compared: those that took decode time in both methods
    level: float  # share of resamples inside the interval
    resamples: int
    seed: int

    @property
    def sure(self) -> bool:
        """Whether the interval lies wholly on one side of 1."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.ratio:.3f}x"
        return f"{self.ratio:.3f}x [{self.low:.3f}, {self.high:.3f}]"


def paired_ratio(
    tokens: ArrayLike,
    ms: ArrayLike,
    other_tokens: ArrayLike,
    other_ms: ArrayLike,
    *,
    resamples: int = RESAMPLES,
    level: float = 0.95,
    seed: int = 0,
) -> PairedRatio:
    """(sum tokens / sum ms) / (sum other_tokens / sum other_ms), each array (prompts,), with its bootstrap interval.

    The same numbers and seed give the same interval. Prompts that took no time in one of the methods (they ended in
    their prefill) have no rate and are left out.
    Raises ValueError for arrays of different lengths, a negative or NaN number, a level outside (0, 1), fewer than one
    resample, or no prompt with decode time in both.
    """
    values = _checked(tokens, ms, other_tokens, other_ms)
    if not 0 < level < 1:
        raise ValueError(f"an interval's level is a share between 0 and 1, as 0.95; got {level}")
    if resamples < 1:
        raise ValueError(f"a bootstrap draws at least one resample; got {resamples}")
    values = values[:, (values > 0).all(axis=0)]
    prompts = values.shape[1]
    if not prompts:
        raise ValueError("no prompt was decoded by both methods, so there is no ratio of their throughputs")
    low = high = None
    if prompts > 1:
        counts = np.random.default_rng(seed).multinomial(prompts, [1 / prompts] * prompts, size=resamples)
        low, high = np.quantile(_ratio(values @ counts.T), [(1 - level) / 2, (1 + level) / 2]).tolist()
    return PairedRatio(float(_ratio(values.sum(axis=1))), low, high, prompts, level, resamples, seed)


def paired_speedup(
    run: RunRecord, baseline: RunRecord, *, resamples: int = RESAMPLES, level: float = 0.95, seed: int = 0
) -> PairedRatio:
    """Decode throughput (Equation 10) of a run over a baseline's, on the requests that both have.

    Raises ValueError where they share no request with decode cycles.
    """
    pairs = shared_requests(run, baseline)
    mine, theirs = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    return paired_ratio(
        [decoded_tokens(request) for request in mine],
        [decode_time_ms(request) for request in mine],
        [decoded_tokens(request) for request in theirs],
        [decode_time_ms(request) for request in theirs],
        resamples=resamples,
        level=level,
        seed=seed,
    )


def _ratio(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ratios of (4, ...) sums of tokens, ms, other tokens and other ms."""
    return sums[0] * sums[3] / (sums[1] * sums[2])


def _checked(*arrays: ArrayLike) -> NDArray[np.float64]:
    """The four arrays as one, (4, prompts)."""
    names = ("tokens", "ms", "other tokens", "other ms")
    columns: Sequence[NDArray[np.float64]] = [np.asarray(array, dtype=np.float64) for array in arrays]
    if len({column.shape for column in columns}) > 1 or columns[0].ndim != 1:
        shapes = ", ".join(f"{name} {column.shape}" for name, column in zip(names, columns, strict=True))
        raise ValueError(f"a paired comparison needs one number a prompt in every column; got {shapes}")
    for name, column in zip(names, columns, strict=True):
        wrong = next((value for value in column.tolist() if not (math.isfinite(value) and value >= 0)), None)
        if wrong is not None:
            raise ValueError(f"{name} of a paired comparison holds {wrong}; expected finite numbers of 0 or more")
    return np.stack(columns)
