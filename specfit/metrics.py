"""What a run measured: throughput (Equation 10), means per cycle, acceptance, and comparisons of runs (Equation 8).

Everything is computed from records alone. A value that is undefined (no cycle, no time, no copy) is None, with the
reason under its name in `reasons`; nothing is ever NaN or infinite. Words, because they are often mixed up: *selected*
are the draft nodes verified, *accepted* those of them that the target kept, *committed* the tokens the output gained,
which are the accepted and one more, the target's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from specfit.fit import Probe, fit_consecutive
from specfit.records import CycleRecord, RequestRecord, RunRecord
from specfit.tree import ROOT

DRIFT = 0.10  # predicted and measured cycle times further apart than this get a warning


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """The columns of Tables 2 and 3 and what else one run says. Means are per cycle: one target verification."""

    method: str
    requests: int
    cycles: int
    output_tokens: int
    decode_tps: float | None  # Eq. 10: tokens after the first, per second outside prefill
    request_tps: float | None  # Eq. 10: all output tokens per second of request time
    draft_nodes: float | None  # selected nodes
    accepted: float | None  # accepted nodes
    committed: float | None  # tokens gained
    accepted_share: float | None  # accepted of selected nodes, 0..1
    drafted_levels: float | None
    cycle_ms: float | None  # request time outside prefill over cycles; the stages and what lies between them
    draft_ms: float | None
    select_ms: float | None
    verify_ms: float | None
    commit_ms: float | None
    demand: float | None  # experts executed, D(S)
    misses: float | None  # experts copied
    hit_rate: float | None  # of demand, in the cycles' forwards (prefill apart), 0..1
    h2d_per_token: float | None  # copies per output token, prefill included
    predicted_ms: float | None  # T(S) of Eq. 4
    measured_ms: float | None  # draft, verify and commit: what T(S) predicts, so without the selector
    depth_acceptance: tuple[float | None, ...]  # see `depth_acceptance`
    reasons: Mapping[str, str] = field(default_factory=dict)  # why a field is None

    @property
    def drift(self) -> float | None:
        """Predicted over measured cycle time, less one: +0.2 is a model 20 % too slow."""
        if not self.predicted_ms or not self.measured_ms:
            return None
        return self.predicted_ms / self.measured_ms - 1

    @property
    def warning(self) -> str | None:
        """A sentence when predicted and measured cycle times differ by more than 10 %."""
        if self.drift is None or abs(self.drift) <= DRIFT:
            return None
        return (
            f"{self.method}: the cost coefficients predict {self.predicted_ms:.1f} ms a cycle but "
            f"{self.measured_ms:.1f} ms were measured ({self.drift:+.0%}); calibrate again on this machine and settings"
        )


def measure(run: RunRecord) -> RunMetrics:
    """All metrics of a run."""
    requests = run.requests
    cycles = [cycle for _, cycle in run.cycles()]
    tokens = sum(len(request.output_tokens) for request in requests)
    reasons: dict[str, str] = {}

    def ratio(name: str, above: float, below: float, undefined: str) -> float | None:
        if below > 0:
            return above / below
        reasons[name] = undefined if requests else "no request is finished"
        return None

    def mean(name: str, values: Iterable[float]) -> float | None:
        return ratio(name, sum(values), len(cycles), "no request needed a decode cycle")

    decode_ms = sum(map(decode_time_ms, requests))
    selected = sum(len(cycle.selection.nodes) for cycle in cycles)
    accepted = sum(len(cycle.accepted) for cycle in cycles)
    demand = sum(cycle.counts.demand for cycle in cycles)
    misses = sum(cycle.counts.misses for cycle in cycles)
    predicted = [cycle.selection.predicted_ms for cycle in cycles]
    if run.settings.get("cost", "given") is None or (cycles and not any(predicted)):
        reasons["predicted_ms"] = "the run had no cost coefficients"
    return RunMetrics(
        method=run.method,
        requests=len(requests),
        cycles=len(cycles),
        output_tokens=tokens,
        decode_tps=_per_second("decode_tps", sum(map(decoded_tokens, requests)), decode_ms, len(requests), reasons),
        request_tps=ratio("request_tps", 1e3 * tokens, sum(r.request_ms for r in requests), "no time was measured"),
        draft_nodes=mean("draft_nodes", [selected]),
        accepted=mean("accepted", [accepted]),
        committed=mean("committed", (cycle.committed for cycle in cycles)),
        accepted_share=ratio("accepted_share", accepted, selected, "no draft node was verified"),
        drafted_levels=mean("drafted_levels", (cycle.drafted_levels for cycle in cycles)),
        cycle_ms=mean("cycle_ms", [decode_ms]),
        draft_ms=mean("draft_ms", (cycle.times.draft_ms for cycle in cycles)),
        select_ms=mean("select_ms", (cycle.times.select_ms for cycle in cycles)),
        verify_ms=mean("verify_ms", (cycle.times.verify_ms for cycle in cycles)),
        commit_ms=mean("commit_ms", (cycle.times.commit_ms for cycle in cycles)),
        demand=mean("demand", [demand]),
        misses=mean("misses", [misses]),
        hit_rate=ratio("hit_rate", demand - misses, demand, "no cycle executed an expert"),
        h2d_per_token=ratio(
            "h2d_per_token", misses + sum(r.prefill.misses for r in requests), tokens, "no token was put out"
        ),
        predicted_ms=None if "predicted_ms" in reasons else mean("predicted_ms", predicted),
        measured_ms=mean("measured_ms", (cycle.times.total_ms - cycle.times.select_ms for cycle in cycles)),
        depth_acceptance=depth_acceptance(cycles),
        reasons=reasons,
    )


def decode_time_ms(request: RequestRecord) -> float:
    """Request time outside prefill."""
    return request.request_ms - request.prefill_ms


def decoded_tokens(request: RequestRecord) -> int:
    """Tokens that belong to decoding: all but the first, which is prefill's (Eq. 10)."""
    return max(0, len(request.output_tokens) - 1)


def depth_acceptance(cycles: Iterable[CycleRecord]) -> tuple[float | None, ...]:
    """Share of cycles whose draft was right at depth 1, 2, ..., each among the cycles that reached that depth.

    A cycle reaches a depth when all above it was accepted and a node there was verified: what follows the first wrong
    token says nothing. A block cut short by the token limit or by EOS says nothing about the depth at the cut either.
    None at depths that no cycle reached.
    """
    reached: dict[int, int] = {}
    right: dict[int, int] = {}
    for cycle in cycles:
        last = ROOT
        for depth, token in enumerate(cycle.committed_tokens, start=1):
            offers = {cycle.pool.tokens[v]: v for v in reversed(cycle.selection.nodes) if cycle.pool.parents[v] == last}
            if not offers:
                break
            reached[depth] = reached.get(depth, 0) + 1
            if token not in offers:
                break
            right[depth] = right.get(depth, 0) + 1
            last = offers[token]
    return tuple(right.get(depth, 0) / reached[depth] for depth in range(1, max(reached, default=0) + 1))


# -- comparisons -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Speedup:
    """Decode throughput of a run over a baseline's, on the requests that both have."""

    ratio_of_sums: float | None  # the paper's: TPS over TPS, so long answers weigh more
    mean_of_ratios: float | None  # every request alike; a different number, never to be mixed with the other
    requests: int  # compared
    notes: tuple[str, ...] = ()  # what a reader must know: why None, requests left out, outputs that differ

    @property
    def slower(self) -> bool:
        """Whether the run is slower than the baseline; beside AR this is the flag "slower than AR"."""
        return self.ratio_of_sums is not None and self.ratio_of_sums < 1


def speedup(run: RunRecord, baseline: RunRecord) -> Speedup:
    """How much faster `run` decodes than `baseline` (usually AR with the same cache)."""
    pairs = shared_requests(run, baseline)
    if not pairs:
        return Speedup(None, None, 0, ("the two runs share no finished request",))
    notes: tuple[str, ...] = ()
    most = max(len(run.requests), len(baseline.requests))
    if len(pairs) < most:
        notes += (f"compared on the {len(pairs)} of {most} requests that both runs have",)
    differing = sum(mine.output_tokens != other.output_tokens for mine, other in pairs)
    if differing:
        notes += (f"the output differs from the baseline's in {differing} of {len(pairs)} requests",)
    rates = [(_rate([mine]), _rate([other])) for mine, other in pairs]
    ratios = [mine / other for mine, other in rates if mine and other]
    if len(ratios) < len(pairs):
        notes += (f"{len(pairs) - len(ratios)} requests without decode cycles are left out of the mean of ratios",)
    mine, other = _rate([pair[0] for pair in pairs]), _rate([pair[1] for pair in pairs])
    if not (mine and other):
        return Speedup(None, None, len(pairs), (*notes, "a run without decode cycles has no decode throughput"))
    return Speedup(mine / other, sum(ratios) / len(ratios) if ratios else None, len(pairs), notes)


def shared_requests(run: RunRecord, other: RunRecord) -> list[tuple[RequestRecord, RequestRecord]]:
    """Requests that both runs have, in the order of `run`."""
    theirs = {request.request_id: request for request in other.requests}
    return [(mine, theirs[mine.request_id]) for mine in run.requests if mine.request_id in theirs]


@dataclass(frozen=True, slots=True)
class Decomposition:
    """Equation 8: a ratio of decode throughputs as a weighted mean of two, what each gains per fixed time and per copy.

    (R/T) / (R'/T') = (1 - w) (R/B) / (R'/B') + w (R/H) / (R'/H'), with T = B + tau H and w = tau H / T.
    """

    ratio: float | None  # (R/T) / (R'/T')
    fixed_ratio: float | None  # tokens per fixed millisecond, over the baseline's
    transfer_ratio: float | None  # tokens per copy, over the baseline's
    weight: float | None  # w, the share of `run`'s decode time that its copies take
    reason: str | None = None  # why the fields are None


def decompose(run: RunRecord, baseline: RunRecord, *, transfer_ms: float) -> Decomposition:
    """Split the throughput ratio of two runs by Equation 8; `transfer_ms` is tau, the time one expert's copy adds.

    R is decoded tokens, H the copies of the cycles' forwards. Undefined where a run copied nothing, or where the
    copies alone would take longer than the run (they overlapped with compute: tau is too large for this engine).
    """
    pairs = shared_requests(run, baseline)
    tokens, times, copies = ([], [], []) if not pairs else _decode_totals(pairs)
    if not pairs or min(tokens) == 0 or min(times) <= 0:
        return Decomposition(None, None, None, None, "the two runs share no request with decode cycles")
    if min(copies) == 0:
        return Decomposition(None, None, None, None, "a run without copies has no tokens per copy")
    fixed = [time - transfer_ms * count for time, count in zip(times, copies, strict=True)]
    if not transfer_ms >= 0 or min(fixed) <= 0:
        taken = max(transfer_ms * count / time for time, count in zip(times, copies, strict=True))
        return Decomposition(None, None, None, None, f"copies of {transfer_ms} ms would take {taken:.0%} of the time")
    gain = tokens[0] / tokens[1]
    return Decomposition(
        ratio=gain * times[1] / times[0],
        fixed_ratio=gain * fixed[1] / fixed[0],
        transfer_ratio=gain * copies[1] / copies[0],
        weight=transfer_ms * copies[0] / times[0],
    )


def copy_ms(runs: Sequence[RunRecord]) -> tuple[float | None, str]:
    """tau, the milliseconds that one expert's copy adds to the cycles of these runs of one link, and how it was found;
    None with the reason where the records cannot say."""
    link = runs[0].settings.get("link") if runs else None
    if isinstance(link, Mapping) and link.get("kind") == "modelled" and "miss_ms" in link:
        return float(link["miss_ms"]), "what a copy adds on the described machine"
    cycles = [cycle for run in runs for _, cycle in run.cycles()]
    copies, waited = sum(c.counts.misses for c in cycles), sum(c.counts.wait_ms for c in cycles)
    if not copies:
        return None, "nothing was copied"
    if waited:
        return waited / copies, "what a copy held the forwards up on average, so what hid behind compute does not count"
    # On CUDA the host does not stand still, so tau is read off the cycles: what a miss adds at equal size and depth.
    probes = [
        Probe(len(c.selection.nodes), c.drafted_levels, c.counts.misses, c.times.total_ms - c.times.select_ms)
        for c in cycles
    ]
    try:
        most = max(probe.nodes for probe in probes)
        return fit_consecutive(probes, most).cost.expert_ms, "the slope of the cycles' times on their copies"
    except ValueError as error:
        return None, str(error)


def _decode_totals(
    pairs: list[tuple[RequestRecord, RequestRecord]],
) -> tuple[list[int], list[float], list[int]]:
    """Tokens, milliseconds and copies of decoding, each (of the first of every pair, of the second)."""
    sides = [[pair[side] for pair in pairs] for side in (0, 1)]
    return (
        [sum(map(decoded_tokens, side)) for side in sides],
        [sum(map(decode_time_ms, side)) for side in sides],
        [sum(cycle.counts.misses for request in side for cycle in request.cycles) for side in sides],
    )


def _rate(requests: list[RequestRecord]) -> float | None:
    return _per_second("", sum(map(decoded_tokens, requests)), sum(map(decode_time_ms, requests)), len(requests), {})


def _per_second(name: str, tokens: int, ms: float, requests: int, reasons: dict[str, str]) -> float | None:
    """Tokens per second; None with its reason when nothing was decoded, or no time was measured."""
    if tokens and ms > 0:
        return 1e3 * tokens / ms
    reasons[name] = (
        "no request is finished"
        if not requests
        else "no request has a token after the first"
        if not tokens
        else "no decode time was measured"
    )
    return None
