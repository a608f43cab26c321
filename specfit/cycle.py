"""One decode cycle (Figure 1): draft, select, verify, commit; and the loop that decodes a request with it.

The loop knows no policy, no model and no torch. The drafter grows the pool level by level, the method's policy picks a
legal subtree, the target verifies it and keeps the accepted path; each is passed in. Every method emits the target's
own text, because only tokens that the target itself chose are committed: its greatest logits, or its draws.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from operator import itemgetter
from time import perf_counter
from typing import Any, Protocol

from specfit.methods import Method
from specfit.objective import CostModel, CycleState, Selection, evaluate
from specfit.records import CycleRecord, ForwardCounts, StageTimes, Truth, Verdict
from specfit.routes import Routes
from specfit.tree import EMPTY_POOL, DraftPool, check_legal


class Target(Protocol):
    """The unmodified target with its KV cache, which never holds the pending token (the root)."""

    def prefill(self, prompt: Sequence[int]) -> Verdict:
        """Run the prompt; `next_tokens` is the first output token alone."""
        ...

    def verify(self, root: int, pool: DraftPool, nodes: Sequence[int]) -> Verdict:
        """One tree forward over the root and `nodes` (ascending)."""
        ...

    def commit(self, rows: Sequence[int]) -> Any:
        """Keep these rows of the last forward (0 is the root) in the KV cache, drop the others, and return the
        drafter's features of the kept rows; after `prefill`, all rows are kept and `rows` is empty."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has done all it was asked to; clocks are read only then."""
        ...

    def true_routes(self) -> Routes:
        """Routes of the last verifying forward: the root's and each verified node's."""
        ...

    def resident_before(self) -> int | None:
        """Bitmap of the experts that were in slots when the last forward began; None where that is not known."""
        ...


class Drafter(Protocol):
    """The drafter with its own state over committed tokens."""

    def extend(self, tokens: Sequence[int], features: Any) -> None:
        """Note committed tokens, each paired with the target's features of the token before it."""
        ...

    def catch_up(self) -> None:
        """Run over the noted tokens now; `levels` does it by itself where this was not called."""
        ...

    def levels(self, *, max_depth: int) -> Iterator[DraftPool]:
        """Grow a tree from the pending token: the pool after each level, every one a prefix of the next."""
        ...


RouteSource = Callable[[Sequence[int], DraftPool], Routes]  # (tokens up to and with the root, pool) -> estimate
TruthSource = Callable[[Sequence[int], DraftPool], Truth | None]  # the same, and the target's next token at every node
StopRule = Callable[[Sequence[int]], int | None]  # tokens that are to be emitted next -> how many end the text, if any


class Decoding:
    """Decodes one request; iterate over it for its CycleRecords.

    After prefill `output` holds the first token. When the iteration ends, `output` is complete and `stop_reason` is
    "eos", "stop" (the stop rule) or "limit". Stopping early leaves everything that was yielded valid.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        *,
        target: Target,
        drafter: Drafter | None,
        method: Method,
        cost: CostModel,
        routes: RouteSource | None = None,
        truth: TruthSource | None = None,
        max_new_tokens: int,
        eos: Collection[int] = (),
        stop: StopRule | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """prompt: token ids, at least one. routes: what the policy may read; truth: what records keep, outside timers.

        stop: called once with every run of tokens before it is emitted, in order.

        Raises ValueError for an empty prompt, a limit below 1, or a method whose drafter or routes are missing.
        """
        if not prompt:
            raise ValueError("the prompt has no tokens; a target needs at least one to predict from")
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens is {max_new_tokens}; expected at least 1")
        if method.max_nodes > 0 and drafter is None:
            raise ValueError(f"method {method.name!r} verifies draft nodes; load the engine with a drafter")
        if method.uses_routes and routes is None:
            raise ValueError(
                f"method {method.name!r} reads expert routes; pass routes=, such as specfit.HeadRoutes(engine) or an "
                "atlas of the prompt"
            )
        self.prompt = tuple(prompt)
        self.output: list[int] = []
        self.stop_reason = ""
        self.prefill_ms = 0.0
        self.request_ms = 0.0  # prefill and cycles; what happens between two cycles is the reader's time
        self.prefill_counts = ForwardCounts()
        self._target, self._drafter, self._method, self._cost = target, drafter, method, cost
        self._routes, self._truth = routes, truth
        self._limit, self._eos, self._stop, self._clock = max_new_tokens, frozenset(eos), stop, clock
        self._context = list(prompt)  # prompt and output, the pending token last
        self._cycles = self._run()

    def __iter__(self) -> Iterator[CycleRecord]:
        return self._cycles

    @property
    def context(self) -> list[int]:
        """Prompt and output so far, the pending token last; do not change it."""
        return self._context

    def prefill(self) -> None:
        """Run the prompt and emit the first token; iterating does it by itself where this was not called."""
        if self.output:
            return
        start = self._clock()
        verdict = self._target.prefill(self.prompt)
        features = self._target.commit(())
        self._emit(*self._cut(verdict.next_tokens))
        if self._drafter is not None:
            self._drafter.extend(self._context[1:], features)
            self._drafter.catch_up()  # the drafter's pass over the prompt belongs to prefill
        self._target.synchronize()
        self.prefill_counts = verdict.counts
        self.prefill_ms = self.request_ms = 1e3 * (self._clock() - start)

    def _run(self) -> Iterator[CycleRecord]:
        self.prefill()
        index = 0
        while not self.stop_reason:
            yield self._cycle(index)
            index += 1

    def _cycle(self, index: int) -> CycleRecord:
        context, root, prefix_length = self._context, self._context[-1], len(self._context) - 1
        laps = _Laps(self._clock)
        pool, routes, selection = self._draft_and_select(laps)

        verdict = self._target.verify(root, pool, selection.nodes)
        laps.lap("verify_ms")

        accepted, rows, committed, reason = self._accept(pool, selection.nodes, verdict.next_tokens)
        features = self._target.commit(rows)
        if self._drafter is not None:
            self._drafter.extend(committed, features)
        self._target.synchronize()
        times = laps.stop("commit_ms")

        # From here on nothing is on the request's clock.
        self.request_ms += times.total_ms
        truth = self._truth(context, pool) if self._truth is not None else None
        verified = self._target.true_routes()
        if not self._method.uses_routes:  # its policy saw none, so only now is known what its choice uses
            used = dict(zip(selection.nodes, verified.nodes, strict=True))
            ran = replace(verified, nodes=tuple(used.get(node, 0) for node in range(len(pool))))
            selection = evaluate(CycleState(pool, ran), selection.nodes, self._cost, proved=selection.proved)
        self._emit(committed, reason)
        return CycleRecord(
            index=index,
            prefix_length=prefix_length,
            root=root,
            pool=pool,
            estimate=routes if self._method.uses_routes else None,
            truth=truth,
            selection=selection,
            verified=verified,
            accepted=accepted,
            committed_tokens=committed,
            counts=verdict.counts,
            times=times,
            resident=self._target.resident_before(),
        )

    def _draft_and_select(self, laps: _Laps) -> tuple[DraftPool, Routes, Selection]:
        """Grow the pool and choose from it; with adaptive depth, until the choice leaves the newest level out."""
        method, pool, selection = self._method, EMPTY_POOL, None
        depth = self._limit - len(self.output) - 1  # a cycle commits its accepted path and one token more
        if method.max_nodes > 0 and self._drafter is not None and depth > 0:
            for pool in self._drafter.levels(max_depth=depth):
                laps.lap("draft_ms")
                if not method.adaptive_depth:
                    continue
                routes, selection = self._select(pool, seed=selection.nodes if selection else ())
                laps.lap("select_ms")
                if method.stops(pool, selection):
                    break
            laps.lap("draft_ms")
        if selection is None:
            routes, selection = self._select(pool)
            laps.lap("select_ms")
        return pool, routes, selection

    def _select(self, pool: DraftPool, *, seed: tuple[int, ...] = ()) -> tuple[Routes, Selection]:
        routes = Routes(0, (0,) * len(pool), 0, 0)
        if self._method.uses_routes and self._routes is not None:
            routes = self._routes(self._context, pool)
        selection = self._method.select(CycleState(pool, routes), self._cost, seed=seed)
        if not isinstance(selection, Selection):
            raise ValueError(
                f"the policy of method {self._method.name!r} returned a {type(selection).__name__}; "
                "expected a Selection, which specfit.evaluate(state, nodes, cost) makes of node ids"
            )
        nodes = check_legal(pool, selection.nodes, max_nodes=self._method.max_nodes)
        return routes, replace(selection, nodes=nodes)  # ascending plain ints, whatever the policy gave

    def _accept(
        self, pool: DraftPool, nodes: Sequence[int], next_tokens: Sequence[int]
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], str]:
        """The accepted path, the rows to keep, and the tokens to emit, cut where the text ends; with the reason if so.

        The last emitted token is always the pending one and stays out of the KV cache, so a cut path keeps one row
        less than it emits.
        """
        path, token = accepted_path(pool, nodes, next_tokens)
        emitted, reason = self._cut([*(pool.tokens[node] for node in path), token])
        path = path[: len(emitted)]
        row = {node: 1 + i for i, node in enumerate(nodes)}
        return path, (0, *(row[node] for node in path[: len(emitted) - 1])), emitted, reason

    def _cut(self, tokens: Sequence[int]) -> tuple[tuple[int, ...], str]:
        """`tokens` up to the first that ends the text, and why it does: "eos", "stop", "limit", or "" for none."""
        room = self._limit - len(self.output)
        eos = next((count for count, token in enumerate(tokens, start=1) if token in self._eos), None)
        kept = tuple(tokens[: min(eos or room, room)])
        stop = self._stop(kept) if self._stop is not None else None
        ends = [(eos, "eos"), (stop, "stop"), (room, "limit")]  # of two at the same token the first is named
        reached = [(count, reason) for count, reason in ends if count is not None and count <= len(kept)]
        count, reason = min(reached, key=itemgetter(0), default=(len(kept), ""))
        return kept[:count], reason

    def _emit(self, tokens: Sequence[int], reason: str) -> None:
        self.output.extend(tokens)
        self._context.extend(tokens)
        self.stop_reason = reason


def accepted_path(pool: DraftPool, nodes: Sequence[int], next_tokens: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """The longest root-to-node path in `nodes` whose tokens are the target's own, and the target's token after it.

    next_tokens: (1 + len(nodes),) the target's next token after the root, then after each node in the order of `nodes`.
    Siblings carry distinct tokens, so the path is unique.
    """
    after = dict(zip(nodes, next_tokens[1:], strict=True))
    child = {(pool.parents[node], pool.tokens[node]): node for node in nodes}
    path: list[int] = []
    at, token = -1, next_tokens[0]
    while (at, token) in child:
        at = child[at, token]
        path.append(at)
        token = after[at]
    return tuple(path), token


class _Laps:
    """Adds up the time since the last lap under the stage that used it, so that the stages sum to the cycle."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._last = clock, clock()
        self._spent = {"draft_ms": 0.0, "select_ms": 0.0, "verify_ms": 0.0, "commit_ms": 0.0}

    def lap(self, stage: str) -> None:
        now = self._clock()
        self._spent[stage] += 1e3 * (now - self._last)
        self._last = now

    def stop(self, stage: str) -> StageTimes:
        self.lap(stage)
        return StageTimes(**self._spent)
