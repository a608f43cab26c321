"""What a run leaves behind: one record per cycle, per request and per run. Plain values, no torch.

Everything that theory, workbench and reports know about a run is in here; `specfit.runs` writes these records to a
folder and reads them back equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specfit.objective import Selection
from specfit.routes import Routes
from specfit.tree import DraftPool


@dataclass(frozen=True, slots=True)
class ForwardCounts:
    """What one or more target forwards asked of the expert cache; demand = hits + misses."""

    demand: int = 0  # experts executed, summed over layers: D(S), Equation 1, summed over forwards
    hits: int = 0  # found in a slot
    misses: int = 0  # copied host to device
    wait_ms: float = 0.0  # time the forward stood still for the link

    def __add__(self, other: ForwardCounts) -> ForwardCounts:
        return ForwardCounts(
            self.demand + other.demand,
            self.hits + other.hits,
            self.misses + other.misses,
            self.wait_ms + other.wait_ms,
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the target said in one verifying forward over the root and the selected nodes, in ascending id order."""

    next_tokens: tuple[int, ...]  # (1 + |S|,) the target's own next token after the root and after each node of S
    counts: ForwardCounts


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Wall time of the four stages of a cycle, milliseconds, read after synchronisation."""

    draft_ms: float = 0.0
    select_ms: float = 0.0  # route conversion and search; outside the cost fit, inside throughput (Appendix B)
    verify_ms: float = 0.0
    commit_ms: float = 0.0

    @property
    def total_ms(self) -> float:
        return self.draft_ms + self.select_ms + self.verify_ms + self.commit_ms


@dataclass(frozen=True, slots=True)
class Truth:
    """What an atlas knows of a pool: true routes and the target's own next token at every node.

    With it, what any other legal subtree would have committed in that cycle is known exactly.
    """

    routes: Routes  # root and all pool nodes
    next_tokens: tuple[int, ...]  # (1 + n,) after the root, then after each node


@dataclass(frozen=True, slots=True)
class CycleRecord:
    """One decode cycle: draft, select, verify, commit."""

    index: int  # cycle of its request, from 0
    prefix_length: int  # tokens before the root: prompt and output so far without the pending token
    root: int  # token id of the pending token that this cycle verifies first
    pool: DraftPool  # all nodes drafted in this cycle (of the levels drafted)
    estimate: Routes | None  # routes the selection read; None if the method reads none
    truth: Truth | None  # from the atlas, written outside every timer; None without one
    selection: Selection
    verified: Routes  # true routes of the root and the selected nodes, from the verifying forward
    accepted: tuple[int, ...]  # pool node ids kept of the accepted path (cut at EOS and at the token limit)
    committed_tokens: tuple[int, ...]  # what the output gained: the accepted path, then the next root
    counts: ForwardCounts
    times: StageTimes
    resident: int | None = None  # bitmap of the experts in slots before the verifying forward; None: not recorded

    @property
    def committed(self) -> int:
        """Tokens gained. The paper counts the root verified, this the root handed on: the same number, one token
        later, so that the first token belongs to prefill and a request's cycles sum to N - 1."""
        return len(self.committed_tokens)

    @property
    def drafted_levels(self) -> int:
        return self.pool.levels


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One prompt decoded by one method."""

    request_id: str  # unique in its run: workload, question and turn
    question_id: int | str
    category: str
    prompt_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]  # includes the first token (prefill's) and EOS if it came
    output_text: str
    stop_reason: str  # "eos" or "limit"
    request_ms: float  # prefill and all cycles, synchronised
    prefill_ms: float
    prefill: ForwardCounts
    cycles: tuple[CycleRecord, ...]
    extra: Mapping[str, Any] = field(default_factory=dict)  # e.g. the reference answer, a rendered prompt's hash


@dataclass(frozen=True, slots=True)
class RunRecord:
    """All requests of one method under one configuration."""

    settings: Mapping[str, Any]  # method, slots_per_layer, cleared, link, workload, seeds, limits, routes, cost
    machine: Mapping[str, Any]  # processor, versions, threads, start time
    requests: tuple[RequestRecord, ...]
    layers: int  # MoE layers L
    experts: int  # experts per layer N
    tokens: Mapping[int, str] = field(default_factory=dict)  # text of every token id that occurs
    complete: bool = True  # False: cut short (killed, or still running)

    @property
    def method(self) -> str:
        return str(self.settings["method"])

    def cycles(self) -> list[tuple[RequestRecord, CycleRecord]]:
        """Every cycle with its request, in order."""
        return [(request, cycle) for request in self.requests for cycle in request.cycles]
