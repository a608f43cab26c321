"""A toy world for tests: a drafter and a target made of hashes, exact, instant and without torch.

The toy language has a next token for every context and every token has routes that depend on its context, so a cycle,
a run and a record can be tested without a model. `toy_run` gives a whole RunRecord.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from specfit.cycle import Decoding
from specfit.engine.expert_cache import ExpertCache
from specfit.methods import AR, EAGLE3, SPECFIT, Method
from specfit.objective import CostModel
from specfit.records import ForwardCounts, RequestRecord, RunRecord, Truth, Verdict
from specfit.routes import Routes
from specfit.tree import ROOT, DraftPool

VOCABULARY, LAYERS, EXPERTS, TOP_K = 12, 3, 8, 2
TOY_COST = CostModel.affine(4.0, 0.2, expert_ms=0.3)


def _hash(*parts: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "little")


class ToyWorld:
    """What the toy target would say and route after any context; a function of its last tokens and the seed."""

    def __init__(self, seed: int = 0, *, memory: int = 3) -> None:
        self.seed, self.memory = seed, memory

    def next_token(self, context: Sequence[int]) -> int:
        return _hash(self.seed, "next", tuple(context[-self.memory :])) % VOCABULARY

    def guesses(self, context: Sequence[int], count: int) -> list[tuple[int, float]]:
        """The drafter's best tokens with probabilities: the right one first about three times in four."""
        right = self.next_token(context)
        luck = _hash(self.seed, "luck", tuple(context[-self.memory :]))
        other = (right + 1 + luck % (VOCABULARY - 1)) % VOCABULARY
        order = [right, other] if luck % 4 else [other, right]
        order += [token for token in range(VOCABULARY) if token not in order]
        sure = 0.5 + (luck >> 8) % 40 / 100
        return [(token, sure * (1 - sure) ** rank) for rank, token in enumerate(order[:count])]

    def route(self, context: Sequence[int]) -> int:
        """Bitmap of the experts that the last token of `context` uses."""
        bitmap = 0
        for layer in range(LAYERS):
            first = _hash(self.seed, "route", layer, tuple(context[-2:])) % EXPERTS
            for step in range(TOP_K):
                bitmap |= 1 << (layer * EXPERTS + (first + 3 * step) % EXPERTS)
        return bitmap

    def greedy(self, prompt: Sequence[int], count: int, eos: Sequence[int] = ()) -> list[int]:
        """Plain greedy decoding: the text that every method must give."""
        context = list(prompt)
        for _ in range(count):
            context.append(self.next_token(context))
            if context[-1] in eos:
                break
        return context[len(prompt) :]

    def node_contexts(self, context: Sequence[int], pool: DraftPool) -> list[list[int]]:
        """Every node's tokens from the start of the text."""
        found: list[list[int]] = []
        for token, parent in zip(pool.tokens, pool.parents, strict=True):
            found.append([*(context if parent == ROOT else found[parent]), token])
        return found

    def routes(self, context: Sequence[int], pool: DraftPool) -> Routes:
        """A perfect route source."""
        nodes = tuple(self.route(node) for node in self.node_contexts(context, pool))
        return Routes(self.route(context), nodes, LAYERS, EXPERTS)

    def truth(self, context: Sequence[int], pool: DraftPool) -> Truth:
        nodes = self.node_contexts(context, pool)
        after = (self.next_token(context), *(self.next_token(node) for node in nodes))
        return Truth(self.routes(context, pool), after)


class ToyTarget:
    """A target whose KV cache is the list of its tokens and whose experts sit in real LRU caches."""

    def __init__(self, world: ToyWorld, *, slots: int = EXPERTS) -> None:
        self.world = world
        self.caches = [ExpertCache(slots=slots, experts=EXPERTS) for _ in range(LAYERS)]
        self.cached: list[int] = []  # tokens in the KV cache
        self._rows: list[int] = []
        self._routes: Routes | None = None

    def prefill(self, prompt: Sequence[int]) -> Verdict:
        self.cached = list(prompt)
        self._rows = []
        rows = [self.world.route(prompt[: i + 1]) for i in range(len(prompt))]
        return Verdict((self.world.next_token(prompt),), self._forward(rows))

    def verify(self, root: int, pool: DraftPool, nodes: Sequence[int]) -> Verdict:
        context = [*self.cached, root]
        contexts = [context, *(self.world.node_contexts(context, pool)[node] for node in nodes)]
        self._rows = [root, *(pool.tokens[node] for node in nodes)]
        bitmaps = [self.world.route(row) for row in contexts]
        self._routes = Routes(bitmaps[0], tuple(bitmaps[1:]), LAYERS, EXPERTS)
        return Verdict(tuple(self.world.next_token(row) for row in contexts), self._forward(bitmaps))

    def commit(self, rows: Sequence[int]) -> None:
        self.cached.extend(self._rows[row] for row in rows)

    def synchronize(self) -> None:
        pass

    def resident_before(self) -> int:
        return self._resident

    def true_routes(self) -> Routes:
        assert self._routes is not None
        return self._routes

    def _forward(self, rows: Sequence[int]) -> ForwardCounts:
        demand = misses = 0
        self._resident = sum(1 << (layer * EXPERTS + e) for layer, c in enumerate(self.caches) for e in c.slot_of)
        for layer, cache in enumerate(self.caches):
            mask = (1 << EXPERTS) - 1
            used = [[e for e in range(EXPERTS) if row >> (layer * EXPERTS) & mask & (1 << e)] for row in rows]
            waves = cache.serve([expert for row in used for expert in row])
            demand += len({expert for row in used for expert in row})
            misses += sum(len(wave.loads) for wave in waves)
        return ForwardCounts(demand, demand - misses, misses, 0.0)


class ToyDrafter:
    """Grows a tree from the world's guesses, as an EAGLE drafter would: best `top_k` nodes of each level expand."""

    def __init__(self, world: ToyWorld, *, top_k: int = 2, depth: int = 5) -> None:
        self.world, self.top_k, self.depth = world, top_k, depth
        self.context: list[int] = []

    def begin(self, prompt: Sequence[int]) -> ToyDrafter:
        self.context = list(prompt[:1])
        return self

    def extend(self, tokens: Sequence[int], features: object) -> None:
        self.context.extend(tokens)

    def catch_up(self) -> None:
        pass

    def levels(self, *, max_depth: int) -> Iterator[DraftPool]:
        tokens: list[int] = []
        parents: list[int] = []
        probs: list[float] = []
        beam: list[tuple[int, float, list[int]]] = [(ROOT, 1.0, self.context)]
        for _ in range(min(self.depth, max_depth)):
            grown: list[tuple[int, float, list[int]]] = []
            for parent, prob, context in beam:
                for token, share in self.world.guesses(context, self.top_k):
                    grown.append((len(tokens), prob * share, [*context, token]))
                    tokens.append(token)
                    parents.append(parent)
                    probs.append(prob * share)
            beam = sorted(grown, key=lambda node: -node[1])[: self.top_k]
            yield DraftPool(tuple(tokens), tuple(parents), tuple(probs))


METHODS = {method.name: method for method in (AR, EAGLE3, SPECFIT)}


def toy_decoding(
    world: ToyWorld,
    prompt: Sequence[int],
    *,
    method: Method = SPECFIT,
    target: ToyTarget | None = None,
    max_new_tokens: int = 40,
    eos: Sequence[int] = (),
    cost: CostModel = TOY_COST,
    depth: int = 5,
) -> Decoding:
    """A request over the toy world, ready to iterate."""
    return Decoding(
        prompt,
        target=target or ToyTarget(world),
        drafter=ToyDrafter(world, depth=depth).begin(prompt) if method.max_nodes else None,
        method=method,
        cost=cost,
        routes=world.routes if method.uses_routes else None,
        truth=world.truth,
        max_new_tokens=max_new_tokens,
        eos=eos,
    )


def toy_request(number: int, decoding: Decoding) -> RequestRecord:
    """Decode to the end and keep everything."""
    cycles = tuple(decoding)
    return RequestRecord(
        request_id=f"toy/{number}/0",
        question_id=number,
        category="toy",
        prompt_tokens=decoding.prompt,
        output_tokens=tuple(decoding.output),
        output_text=" ".join(f"t{token}" for token in decoding.output),
        stop_reason=decoding.stop_reason,
        request_ms=decoding.request_ms,
        prefill_ms=decoding.prefill_ms,
        prefill=decoding.prefill_counts,
        cycles=cycles,
    )


def toy_run(
    method: Method = SPECFIT, *, seed: int = 0, requests: int = 3, tokens: int = 40, slots: int = 4
) -> RunRecord:
    """A complete run of the toy world; the caches carry over between requests."""
    world = ToyWorld(seed)
    target = ToyTarget(world, slots=slots)
    done = tuple(
        toy_request(
            number,
            toy_decoding(world, (number, 1, 2), method=method, target=target, max_new_tokens=tokens),
        )
        for number in range(requests)
    )
    return RunRecord(
        settings={
            "method": method.name,
            "max_nodes": method.max_nodes,
            "slots_per_layer": slots,
            "cleared": False,
            "link": {"kind": "none"},
            "workload": "toy",
            "seed": seed,
        },
        machine={"processor": "toy"},
        requests=done,
        layers=LAYERS,
        experts=EXPERTS,
        tokens={token: f"t{token}" for token in range(VOCABULARY)},
    )
