"""Replay: any policy, cache size and modelled clock over a recorded world, exactly, without a model.

The decode loop is the engine's own (`specfit.cycle`), and so is the expert cache; only the drafter, the target and its
routers are looked up in the world instead of computed. So a replay gives the live engine's trees, tokens, demand, hits
and misses to the last digit. Path probabilities agree to float rounding, as those of two live methods do: a forward
over other rows rounds the features that the drafter reads another way. (So a choice between trees that tie to six
digits may fall otherwise; in bfloat16, where rounding is coarse, so may a router's.)

The RunRecord serves every table, figure and widget. Its times are modelled, never measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from dataclasses import replace as change
from typing import TYPE_CHECKING, Any

from specfit.cycle import Decoding, RouteSource
from specfit.methods import Method, Policy, as_method
from specfit.modelled import ModelledClock, retime
from specfit.objective import CostModel
from specfit.records import ForwardCounts, RequestRecord, RunRecord, Truth, Verdict
from specfit.routes import Routes, noise_stream, noisy_indices
from specfit.tree import DraftPool
from specfit.world import Position, World, WorldPrompt, routes_of

if TYPE_CHECKING:
    from specfit.engine.expert_cache import ExpertCache

MACHINE = {"note": "replayed from a recorded world; the machine does not matter"}


def replay(
    world: World,
    method: Method | Policy | str,
    cost: CostModel | None = None,
    slots: int | None = None,
    clock: ModelledClock | None = None,
    *,
    cleared: bool = False,
    routes: RouteSource | None = None,
    accuracy: float = 1.0,
    seed: int = 0,
    max_new_tokens: int | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> RunRecord:
    """Decode every prompt of a world with one method, one after the other, as `run_method` would with an engine.

    method: a Method, the name of one, or a plain policy (state, cost) -> Selection, as `as_method` takes them.
    cost: what the policy weighs; needed by methods that read routes. slots: experts a layer that fit; None for all.
    cleared: empty the caches before every forward, else what they hold carries over from prompt to prompt.
    clock: the described machine; without one all times are 0.
    routes: what the policy reads; the true routes unless given, with simulated noise below accuracy 1 (Section 4.6:
    the same seed gives the noise that the live engine's atlas gives).
    max_new_tokens: a shorter limit than the recorded one.
    A policy with a memory of its own is replaced by its `fresh()`, so that a replay does not depend on earlier ones.
    Raises ValueError for slots or a limit that the world does not have, a missing cost, a policy that returns something
    other than a Selection of legal nodes, or a pool that the policy wants and the world lacks.
    """
    from specfit.engine.expert_cache import ExpertCache  # here: who opens recorded runs loads nothing of the engine

    method = fresh_method(method, cost)
    slots = world.experts if slots is None else slots
    if isinstance(slots, bool) or not (isinstance(slots, int) and 1 <= slots <= world.experts):
        raise ValueError(f"slots per layer must be between 1 and the world's {world.experts} experts; got {slots}")
    if not 0 <= accuracy <= 1:
        raise ValueError(f"a route accuracy is a share in [0, 1]; got {accuracy}")
    if routes is not None and accuracy != 1:
        raise ValueError("either routes come from a source of your own or they have a simulated accuracy; give one")
    if max_new_tokens is not None and max_new_tokens < 1:
        raise ValueError(f"max_new_tokens is {max_new_tokens}; expected at least 1")
    if cost is None:
        if method.uses_routes:
            raise ValueError(f"method {method.name!r} weighs time; give it cost coefficients")
        cost = CostModel((0.0,) * (method.max_nodes + 1), 0.0)
        told = None
    else:
        told = asdict(cost)
    caches = [ExpertCache(slots=min(slots, experts), experts=experts) for experts in world.layer_experts]
    requests = []
    for done, prompt in enumerate(world.prompts, start=1):
        noise = None if accuracy == 1 else (accuracy, seed)
        recorded = RecordedRequest(world, prompt, caches, cleared=cleared, noise=noise)
        decoding = Decoding(
            prompt.prompt,
            target=recorded,
            drafter=recorded if method.max_nodes > 0 else None,
            method=method,
            cost=cost,
            routes=routes or recorded.routes,
            truth=recorded.truth,
            max_new_tokens=_limit(prompt, max_new_tokens, world),
            eos=world.eos,
            clock=_no_time,
        )
        requests.append(_request(prompt, decoding))
        progress(done)
    settings = {
        "method": method.name,
        "max_nodes": method.max_nodes,
        "adaptive_depth": method.adaptive_depth,
        **world.made_with,
        "device": "none",
        "slots_per_layer": slots,
        "cleared": cleared,
        "link": {"kind": "none"},
        "workload": world.workload,
        "limits": {"max_new_tokens": max_new_tokens},
        "questions": [prompt.question_id for prompt in world.prompts],
        "routes": _describe(routes, accuracy, seed) if method.uses_routes else None,
        "cost": told,
        "replayed": True,
    }
    run = RunRecord(settings, MACHINE, tuple(requests), world.layers, world.experts, world.tokens)
    return run if clock is None else retime(run, clock)


def fresh_method(rule: Method | Policy | str, cost: CostModel | None = None) -> Method:
    """`as_method`, with a policy that has a memory of its own replaced by its `fresh()`."""
    method = as_method(rule, cost)
    fresh = getattr(method.policy, "fresh", None)
    return method if fresh is None else change(method, policy=fresh())


class RecordedRequest:
    """A recorded prompt in the place of target, drafter, route source and truth source of one decoding."""

    def __init__(
        self,
        world: World,
        prompt: WorldPrompt,
        caches: Sequence[ExpertCache],
        *,
        cleared: bool = False,
        noise: tuple[float, int] | None = None,
    ) -> None:
        """caches: one a layer, of the whole stream. noise: accuracy and seed of the simulated route predictor."""
        self._world, self._prompt, self._caches, self._cleared, self._noise = world, prompt, caches, cleared, noise
        self._at = 0  # output tokens in the KV cache: output[at] is pending
        self._verified: tuple[Position, Sequence[int]]  # what the last forward ran over
        self._resident = 0
        self._estimate: tuple[int, Routes] | None = None  # the position of the newest noisy routes, and these

    # -- the target

    def prefill(self, prompt: Sequence[int]) -> Verdict:
        self._at = 0
        return Verdict(self._prompt.output[:1], self._serve(self._prompt.prefill))

    def verify(self, root: int, pool: DraftPool, nodes: Sequence[int]) -> Verdict:
        position = self._prompt.positions[self._at]
        self._verified = position, nodes
        rows = [0, *(1 + node for node in nodes)]
        uses = position.indices[rows].swapaxes(0, 1).reshape(self._world.layers, -1).tolist()
        return Verdict(tuple([position.next_tokens[row] for row in rows]), self._serve(uses))

    def commit(self, rows: Sequence[int]) -> None:
        self._at += len(rows)

    def synchronize(self) -> None:
        pass

    def true_routes(self) -> Routes:
        position, nodes = self._verified
        known = position.routes(self._world.experts)
        return Routes(known.root, tuple([known.nodes[node] for node in nodes]), known.layers, known.experts)

    def resident_before(self) -> int:
        return self._resident

    # -- the drafter

    def extend(self, tokens: Sequence[int], features: Any) -> None:
        pass

    def catch_up(self) -> None:
        pass

    def levels(self, *, max_depth: int) -> Iterator[DraftPool]:
        return iter(self._prompt.positions[self._at].levels[:max_depth])

    # -- what a policy may read, and the truth

    def routes(self, context: Sequence[int], pool: DraftPool) -> Routes:
        """True routes of the pool at the pending token, or those of the simulated predictor."""
        if self._noise is None:
            return self._prompt.positions[self._at].routes(self._world.experts).prefix(len(pool))
        if self._estimate is None or self._estimate[0] != self._at:
            self._estimate = self._at, self._noisy(*self._noise)
        return self._estimate[1].prefix(len(pool))

    def truth(self, context: Sequence[int], pool: DraftPool) -> Truth:
        """True routes and the target's next tokens at the position that was verified last."""
        position, _ = self._verified
        return Truth(position.routes(self._world.experts).prefix(len(pool)), position.next_tokens[: 1 + len(pool)])

    def _noisy(self, accuracy: float, seed: int) -> Routes:
        rng = noise_stream(seed, self._prompt.prompt, self._at)
        indices = self._prompt.positions[self._at].indices
        noise = noisy_indices(indices, experts=self._world.experts, accuracy=accuracy, rng=rng)
        return routes_of(noise, experts=self._world.experts)

    def _serve(self, uses: Sequence[Sequence[int]]) -> ForwardCounts:
        """One forward: for every layer, its experts in the order in which the rows use them."""
        if self._cleared:
            for cache in self._caches:
                cache.clear()
        resident = demand = misses = shift = 0
        for cache, used in zip(self._caches, uses, strict=True):
            resident |= cache.bitmap << shift
            shift += self._world.experts
            waves = cache.serve(used)
            loaded = sum([len(wave.loads) for wave in waves])
            misses += loaded
            demand += loaded + len(waves[0].hits)
        self._resident = resident
        return ForwardCounts(demand, demand - misses, misses)


def _request(prompt: WorldPrompt, decoding: Decoding) -> RequestRecord:
    cycles = tuple(decoding)
    whole = len(decoding.output) == len(prompt.output)
    return RequestRecord(
        request_id=prompt.request_id,
        question_id=prompt.question_id,
        category=prompt.category,
        prompt_tokens=prompt.prompt,
        output_tokens=tuple(decoding.output),
        output_text=prompt.output_text if whole else "",  # of a cut output: its text takes a tokenizer
        stop_reason=decoding.stop_reason,
        request_ms=decoding.request_ms,
        prefill_ms=decoding.prefill_ms,
        prefill=decoding.prefill_counts,
        cycles=cycles,
        extra=prompt.extra,
    )


def _limit(prompt: WorldPrompt, asked: int | None, world: World) -> int:
    """New tokens that a prompt gets; ValueError where the recording does not reach that far."""
    if asked is None or asked <= prompt.limit or prompt.output[-1] in world.eos:
        return prompt.limit if asked is None else asked
    raise ValueError(
        f"request {prompt.request_id!r} was recorded for {prompt.limit} new tokens and {asked} are asked for; "
        "record the world again with that limit, or replay fewer tokens"
    )


def _describe(routes: RouteSource | None, accuracy: float, seed: int) -> dict[str, Any]:
    if routes is not None:
        return {"source": getattr(routes, "__name__", type(routes).__name__)}
    return {"source": "world", "accuracy": accuracy, "seed": seed}


def _no_time() -> float:
    return 0.0
