"""Route sources besides the atlas: the target itself, a trained head, the last token's routes, most used experts.

A route source is called as `source(context, pool)` after each drafted level and gives estimated routes of the root and
of every node. These need nothing recorded beforehand; all that they compute is inside the request timer.

    routes = specfit.HeadRoutes(engine)  # the embedded pair's; or HeadRoutes(engine, specfit.RouteHead.load(path))
    for cycle in engine.decode(prompt, method=specfit.SPECFIT, cost=cost, routes=routes): ...
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from specfit import embedded as embedded_pair
from specfit.engine.route_head import PIECES, RouteHead, pair_fingerprint, scaled
from specfit.routes import Routes, bitmaps_from_indices, noise_stream, noisy_indices
from specfit.tree import EMPTY_POOL, ROOT, DraftPool

if TYPE_CHECKING:
    from specfit.engine.drafter import Growth, Pending
    from specfit.engine.engine import Engine

BEFORE_ROOT = -2  # stands for the token before the root, whose fused target features are the root's parent state


class TargetRoutes:
    """The true routes, by running the pool through the target and forgetting it: exact, slow, and off the clock.

    What an atlas holds, for texts that no atlas can: in bfloat16 a tree forward rounds otherwise than a plain one, so
    pools and near-tied tokens come out otherwise from method to method, and a recording no longer fits. Expert caches
    are put back as they were, and `clock` stands still meanwhile: decoding is timed as if the routes had lain there.
    """

    def __init__(self, engine: Engine, *, accuracy: float = 1.0, seed: int = 0) -> None:
        """accuracy below 1: simulated noise (Section 4.6), drawn by prefix and node."""
        if not 0 <= accuracy <= 1:
            raise ValueError(f"a route accuracy is a share in [0, 1]; got {accuracy}")
        self._engine, self._accuracy, self._seed = engine, accuracy, seed
        self._paused = 0.0  # seconds

    def clock(self) -> float:
        """Seconds like `time.perf_counter`, without those spent here."""
        return perf_counter() - self._paused

    def __call__(self, context: Sequence[int], pool: DraftPool) -> Routes:
        self._engine.check_open()
        target, offload = self._engine.target, self._engine.offload
        target.synchronize()
        start = perf_counter()
        held = offload.contents()
        with offload.link.off_the_clock():
            target.verify(context[-1], pool, range(len(pool)))
        indices = offload.indices(1 + len(pool))
        target.rewind()
        offload.restore(held)
        if self._accuracy < 1:
            rows = [
                noisy_indices(
                    indices[row : row + 1],
                    experts=offload.experts,
                    accuracy=self._accuracy,
                    rng=noise_stream(self._seed, context, row),
                )
                for row in range(len(indices))
            ]
            indices = np.concatenate(rows)
        root, *nodes = bitmaps_from_indices(indices, experts=offload.experts)
        target.synchronize()
        self._paused += perf_counter() - start
        return Routes(root, tuple(nodes), len(offload.layers), offload.experts)


class HeadRoutes:
    """A route head at work on an engine: every call estimates what is new since the last level, and that alone.

    A node is estimated when it is drafted, and once more when it has been expanded and has a state of its own.
    """

    def __init__(self, engine: Engine, head: RouteHead | None = None) -> None:
        """head: the one that ships for the embedded pair unless given. ValueError for another pair's head, or none."""
        head = head or shipped_head(engine)
        head.check(engine)
        assert engine.drafter is not None
        self.head, self._engine = head, engine
        device = engine.drafter.device
        self._weights = {kind: weight.to(device, torch.float32) for kind, weight in head.weights.items()}
        self._biases = {kind: bias.to(device, torch.float32) for kind, bias in head.biases.items()}
        self._pending: Pending | None = None  # whose root and
        self._growth: Growth | None = None  # whose nodes everything below is of
        self._levels = 0  # of it, estimated so far
        self._bitmaps: list[int] = []  # of the root, then of the nodes
        self._vectors: Tensor  # (places, H) embeddings and states, scaled
        self._token_at: list[int] = []  # place of the root's embedding, then of the nodes'
        self._state_at: dict[int, int] = {}  # place of a node's state

    @torch.inference_mode()
    def __call__(self, context: Sequence[int], pool: DraftPool) -> Routes:
        """Estimated routes of the pool that the engine's drafter has just grown after `context`.

        Raises ValueError for any other pool: the drafter holds the states of one tree at a time.
        """
        self._engine.check_open()
        drafter = self._engine.drafter
        assert drafter is not None
        if not pool:
            drafter.catch_up()  # nothing is drafted before the last token, so nothing has made it catch up
        pending, growth = drafter.pending, drafter.growth
        grown = growth is not None and (pool is growth.pool or pool == growth.pool)
        if pending is None or pending.token != context[-1] or not (grown or not pool):
            raise ValueError(
                "a route head reads the drafter's states, and the drafter has not just grown this pool; use it as the "
                "routes= of a decode, or an atlas for pools from elsewhere"
            )
        self._estimate(pending, growth if pool else None)
        root, *nodes = self._bitmaps
        return Routes(root, tuple(nodes), self.head.shape.layers, self.head.shape.experts)

    def _estimate(self, pending: Pending, growth: Growth | None) -> None:
        """Bring the bitmaps up to date, with one product for each kind of row and one transfer to the host."""
        if self._pending is not pending or self._growth is not growth:
            self._pending, self._growth, self._levels = pending, growth, 0
            self._bitmaps, self._token_at, self._state_at = [], [], {}
        pool, grown = (growth.pool, growth.expanded) if growth else (EMPTY_POOL, [([ROOT], pending.state[0])])
        new_levels, known = grown[self._levels :], len(self._bitmaps)
        if not new_levels:
            return
        self._levels = len(grown)
        tokens = [pending.token, *pool.tokens][known:]
        states = [states for _, states in new_levels]
        if not known:
            states.insert(0, pending.feature[0])
        self._place(
            tokens, [*([BEFORE_ROOT] if not known else ()), *(n for nodes, _ in new_levels for n in nodes)], states
        )
        # A node is estimated when it is new, and again when it has just been expanded.
        rows: dict[str, list[int]] = {kind: [] for kind in PIECES}
        again = [node for nodes, _ in new_levels for node in nodes if node + 1 < known]
        for node in (*again, *range(known - 1, len(pool))):
            kind = "root" if node == ROOT else "inner" if node in self._state_at else "leaf"
            rows[kind].append(node)
        self._bitmaps += [0] * (1 + len(pool) - known)
        order = [node for nodes in rows.values() for node in nodes]
        for node, bitmap in zip(order, self._predict(rows, pool), strict=True):
            self._bitmaps[1 + node] = bitmap

    def _place(self, tokens: list[int], nodes: list[int], states: list[Tensor]) -> None:
        """Add embeddings of tokens and states of nodes to the vectors, scaled."""
        drafter = self._engine.drafter
        assert drafter is not None
        embeddings = drafter.head.embed(torch.tensor(tokens).to(drafter.device, non_blocking=True))
        vectors = scaled(torch.cat([embeddings, *states]))
        start = len(self._vectors) if self._token_at else 0
        self._vectors = torch.cat([self._vectors, vectors]) if start else vectors
        self._token_at += range(start, start + len(tokens))
        self._state_at |= {node: start + len(tokens) + row for row, node in enumerate(nodes)}

    def _predict(self, rows: dict[str, list[int]], pool: DraftPool) -> list[int]:
        """Bitmaps of nodes by kind of row, in that order."""
        places: list[int] = []
        for kind, nodes in rows.items():
            for node in nodes:
                parent = BEFORE_ROOT if node == ROOT else pool.parents[node]
                own = (self._state_at[node],) if PIECES[kind] == 3 else ()
                places += (self._token_at[1 + node], self._state_at[parent], *own)
        picked = self._vectors[torch.tensor(places).to(self._vectors.device, non_blocking=True)]  # (places, H)
        logits, start = [], 0
        for kind, nodes in rows.items():
            if nodes:
                end = start + PIECES[kind] * len(nodes)
                inputs = picked[start:end].view(len(nodes), -1)
                logits.append(torch.addmm(self._biases[kind], inputs, self._weights[kind]))
                start = end
        shape = self.head.shape
        chosen = torch.cat(logits).view(-1, shape.layers, shape.experts).topk(shape.top_k, dim=-1).indices
        return bitmaps_from_indices(chosen.cpu().numpy(), experts=shape.experts)


class LastTokenRoutes:
    """Every node is said to use what the last verified token used: the token before the root."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __call__(self, context: Sequence[int], pool: DraftPool) -> Routes:
        self._engine.check_open()
        bitmap = self._engine.target.last_routes()
        return Routes(bitmap, (bitmap,) * len(pool), self._engine.layers, self._engine.experts)


class PriorRoutes:
    """Every node is said to use its layer's most used experts, whatever the text: what a head must beat."""

    def __init__(self, engine: Engine, head: RouteHead | None = None) -> None:
        """head: its file also holds the shares; the shipped one unless given. ValueError as for `HeadRoutes`."""
        head = head or shipped_head(engine)
        head.check(engine)
        self.head = head
        shape, prior = head.shape, head.prior.float().numpy()
        top = np.argsort(-prior, axis=1, kind="stable")[None, :, : shape.top_k]
        self._bitmap, self._shape = bitmaps_from_indices(top, experts=shape.experts)[0], shape

    def __call__(self, context: Sequence[int], pool: DraftPool) -> Routes:
        return Routes(self._bitmap, (self._bitmap,) * len(pool), self._shape.layers, self._shape.experts)


def shipped_head(engine: Engine) -> RouteHead:
    """The head that ships with the embedded pair; ValueError for an engine of another."""
    engine.check_open()
    if engine.drafter is not None and engine.settings["target"] == "embedded":
        head = RouteHead.load(embedded_pair.route_head_file())
        if head.card.get("fingerprint") == pair_fingerprint(engine):
            return head
    raise ValueError(
        "there is no route head for this pair; train one with `specfit train-routes` and give its file, or use an atlas"
    )
