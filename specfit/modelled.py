"""The modelled clock: the time a run would have taken on a described machine, computed from its counts.

Deterministic, so signs and sizes can be asserted, shown and played with where wall time is too noisy. What it gives is
always called *modelled*, never measured.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace

from specfit.objective import CostModel
from specfit.records import CycleRecord, ForwardCounts, RequestRecord, RunRecord, StageTimes


@dataclass(frozen=True, slots=True)
class ModelledClock:
    """Milliseconds of a machine; a cycle takes level * levels + forward + expert * executed + miss * copied."""

    forward_ms: float  # fixed part of a target forward
    level_ms: float  # per drafted level
    expert_ms: float  # per executed expert, hit or miss
    miss_ms: float  # per expert copied, on top

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"{name} of a modelled clock is {value}; expected 0 or more milliseconds, finite")

    def verify_ms(self, counts: ForwardCounts) -> float:
        """One target forward."""
        return self.forward_ms + self.expert_ms * counts.demand + self.miss_ms * counts.misses

    def times(self, cycle: CycleRecord) -> StageTimes:
        """One cycle; selecting and committing are free."""
        return StageTimes(draft_ms=self.level_ms * cycle.drafted_levels, verify_ms=self.verify_ms(cycle.counts))

    def cost(self, *, miss_share: float, max_nodes: int = 7) -> CostModel:
        """The cost model that knows this clock: beta is an expert's price at the given share of misses."""
        beta = self.expert_ms + self.miss_ms * miss_share
        return CostModel.affine(self.forward_ms, 0.0, expert_ms=beta, level_ms=self.level_ms, max_nodes=max_nodes)


def retime(run: RunRecord, clock: ModelledClock) -> RunRecord:
    """The run with modelled times in place of measured ones; its settings say so."""

    def request(old: RequestRecord) -> RequestRecord:
        cycles = tuple(replace(cycle, times=clock.times(cycle)) for cycle in old.cycles)
        prefill_ms = clock.verify_ms(old.prefill)
        total = prefill_ms + sum(cycle.times.total_ms for cycle in cycles)
        return replace(old, cycles=cycles, prefill_ms=prefill_ms, request_ms=total)

    settings = {**run.settings, "link": {"kind": "modelled", **asdict(clock)}}
    return replace(run, settings=settings, requests=tuple(map(request, run.requests)))
