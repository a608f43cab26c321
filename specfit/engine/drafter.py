"""The EAGLE-3 drafter: keeps its own KV over committed tokens and grows a draft tree level by level.

For committed tokens the KV is always computed from the target's true features; what the drafter computed from its own
guesses while growing a tree is dropped at the end of the cycle. The pool at a position therefore depends on the
committed prefix alone, not on the trees verified before it. Path probabilities are multiplied in float64 and a child
never exceeds its parent.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specfit.engine.eagle3 import Eagle3Head
from specfit.tree import EMPTY_POOL, ROOT, DraftPool

PROMPT_ROWS = 512  # of a pass over committed tokens; a mask over all of a long prompt would grow with its square


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """The candidate generator (Section 3.1); the defaults are the paper's: 2 + 4 * 2 * 2 = 18 nodes."""

    top_k: int = 2  # children per expanded node, and nodes of a level that are expanded
    depth: int = 5  # levels at most
    max_pool: int = 18  # nodes at most; drafting ends with the level that reaches it

    def __post_init__(self) -> None:
        for name in ("top_k", "depth", "max_pool"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"draft {name} is {value!r}; expected a whole number, at least 1")


@dataclass(frozen=True, slots=True)
class Pending:
    """What the drafter computed at the pending token, the root of the next tree."""

    token: int
    feature: Tensor  # (1, 1, H) the target's features of the token before, fused
    state: Tensor  # (1, 1, H) the drafter's own state, fed back to the first level
    log_probs: Tensor  # (1, 1, V_d)


@dataclass(slots=True)
class Growth:
    """A tree while `levels` grows it, for whoever reads the drafter's states (the route head)."""

    pending: Pending
    pool: DraftPool  # as last yielded
    expanded: list[tuple[list[int], Tensor]]  # a level each: the nodes it grew from, and their own states (nodes, H)


Snapshot = tuple[int, list[tuple[list[int], Any]], Pending | None]


class Eagle3Drafter:
    """One drafting session at a time over an EAGLE-3 head; `begin` starts the next request."""

    def __init__(
        self,
        head: Eagle3Head,
        *,
        target_ids: Tensor | None,
        config: DraftConfig,
        eos: Collection[int],
        device: torch.device,
    ) -> None:
        """target_ids: (V_d,) target token id of each draft id, None where they are the same.

        eos: tokens after which nothing is drafted; a node with one is a leaf.
        """
        self.head, self.config, self.device = head, config, device
        self._target_ids, self._eos = target_ids, frozenset(eos)
        self._cache = _DraftCache()
        self._waiting: list[tuple[list[int], Any]] = []
        self.pending: Pending | None = None  # None until `catch_up` has run over the prompt
        self.growth: Growth | None = None  # of the last call of `levels`
        self.request: object = None  # of the target, that its rows belong to; None where nobody said
        self._top_k = min(config.top_k, head.config.draft_vocab_size)  # as wide as there are tokens to draft
        self._low = torch.finfo(head.fc.weight.dtype).min

    def begin(self) -> None:
        """Forget the last request."""
        self._cache = _DraftCache()
        self._waiting, self.pending, self.growth = [], None, None
        self.request = None

    def keep(self, rows: int) -> None:
        """Begin the next request with the first `rows` of the last one's committed rows."""
        self._cache.commit(rows)
        self._cache.drop_tree()
        self._waiting, self.pending, self.growth = [], None, None

    @property
    def rows(self) -> int:
        """Committed tokens it has run over: row i is that of token i + 1 with the features of token i."""
        return self._cache.committed

    def snapshot(self) -> Snapshot:
        """The state between two cycles, for `restore`."""
        return self._cache.committed, list(self._waiting), self.pending

    def restore(self, state: Snapshot) -> None:
        """Go back to a snapshot of this request, as if what came after had not been drafted."""
        self._cache.committed, self._waiting, self.pending = state[0], list(state[1]), state[2]
        self._cache.drop_tree()
        self.growth = None

    def extend(self, tokens: Sequence[int], features: Any) -> None:
        """Note committed tokens and the features of the token before each, (1, len(tokens), n_aux * H_t)."""
        self._waiting.append((list(tokens), features))

    @torch.inference_mode()
    def catch_up(self) -> None:
        """Run over the noted tokens with their true features, and keep their KV."""
        if not self._waiting:
            return
        tokens = [token for some, _ in self._waiting for token in some]
        features = torch.cat([features for _, features in self._waiting], dim=1)
        self._waiting = []
        self._cache.drop_tree()
        for start in range(0, len(tokens), PROMPT_ROWS):
            end = start + PROMPT_ROWS
            fused, g = self._run_committed(tokens[start:end], features[:, start:end])
        self.pending = Pending(tokens[-1], fused, self.head.feed_back(g), self.head.log_probs(g))
        self.growth = None

    def _run_committed(self, tokens: list[int], features: Tensor) -> tuple[Tensor, Tensor]:
        """Keep the KV of these tokens; gives the last one's fused features and state, (1, 1, H) each."""
        past, rows = self._cache.committed, len(tokens)
        mask = None
        if rows > 1:
            mask = torch.full((rows, past + rows), self._low, dtype=features.dtype, device=self.device)
            mask = mask.triu_(past + 1)[None, None]
        fused = self.head.fuse(features)
        positions = torch.arange(past, past + rows, device=self.device)[None]
        g = self.head(self.head.embed(self._tensor([tokens])), fused, positions, mask, self._cache)
        self._cache.commit(past + rows)
        return fused[:, -1:], g[:, -1:]

    def levels(self, *, max_depth: int) -> Iterator[DraftPool]:
        """Grow the tree from the pending token and yield the pool after each level, V_{<=1}, V_{<=2}, ...

        Stops at the configured depth, at `max_depth`, when the pool is full, or when no node can be expanded.
        """
        self.catch_up()
        assert self.pending is not None, "levels() needs extend() first: there is no pending token"
        self._cache.drop_tree()
        tokens: list[int] = []
        parents: list[int] = []
        probs: list[float] = []
        beam = [ROOT]
        hidden, log_probs = self.pending.state, self.pending.log_probs
        growth = self.growth = Growth(self.pending, EMPTY_POOL, [])
        path_rows: dict[int, list[int]] = {ROOT: []}  # KV rows of a node's drafted ancestors and itself, tree-relative
        for level in range(1, min(self.config.depth, max_depth) + 1):
            if level > 1:
                hidden, log_probs = self._expand(beam, [tokens[node] for node in beam], hidden, path_rows, level)
            first = len(tokens)
            for parent, children in zip(beam, self._children(log_probs), strict=True):
                above = 1.0 if parent == ROOT else probs[parent]
                for token, log_prob in children:
                    tokens.append(token)
                    parents.append(parent)
                    probs.append(above * min(1.0, math.exp(log_prob)))
            if len(tokens) > self.config.max_pool:
                tokens, parents, probs = _best_of_level(tokens, parents, probs, first, self.config.max_pool)
            if len(tokens) == first:
                return
            growth.pool = DraftPool(tuple(tokens), tuple(parents), tuple(probs))
            growth.expanded.append((beam, hidden[0]))
            yield growth.pool
            open_nodes = [node for node in range(first, len(tokens)) if tokens[node] not in self._eos]
            chosen = sorted(open_nodes, key=lambda node: -probs[node])[: self._top_k]  # stable: lower id first
            if not chosen or len(tokens) == self.config.max_pool:
                return
            at = {parent: row for row, parent in enumerate(beam)}
            hidden = hidden[:, self._tensor([at[parents[node]] for node in chosen])]
            for node in chosen:
                path_rows[node] = path_rows[parents[node]]
            beam = chosen

    def full_pool(self) -> DraftPool:
        """The pool after the last level."""
        pool = EMPTY_POOL
        for grown in self.levels(max_depth=self.config.depth):
            pool = grown
        return pool

    @torch.inference_mode()
    def _expand(
        self, beam: list[int], tokens: list[int], hidden: Tensor, path_rows: dict[int, list[int]], level: int
    ) -> tuple[Tensor, Tensor]:
        """Run the head over the beam; hidden (1, beam, H) is the parents' state. Gives state and log-probabilities."""
        committed, drafted = self._cache.committed, self._cache.drafted
        mask = torch.zeros(1, 1, len(beam), committed + drafted + len(beam), dtype=hidden.dtype)
        for row, node in enumerate(beam):
            path_rows[node] = [*path_rows[node], drafted + row]
            seen = set(path_rows[node])
            mask[0, 0, row, [committed + i for i in range(drafted + len(beam)) if i not in seen]] = self._low
        positions = torch.full((1, len(beam)), committed + level - 2, device=self.device)
        g = self.head(
            self.head.embed(self._tensor([tokens])),
            hidden,
            positions,
            mask.to(self.device, non_blocking=True),
            self._cache,
        )
        return self.head.feed_back(g), self.head.log_probs(g)

    def _children(self, log_probs: Tensor) -> list[list[tuple[int, float]]]:
        """For every row of (1, rows, V_d) its most probable target tokens with log-probabilities, -inf left out."""
        values, ids = log_probs[0].topk(self._top_k, dim=-1)
        if self._target_ids is not None:
            ids = self._target_ids[ids]
        rows = zip(ids.tolist(), values.tolist(), strict=True)
        return [[(token, value) for token, value in zip(*row, strict=True) if value > -math.inf] for row in rows]

    def _tensor(self, values: list) -> Tensor:
        return torch.tensor(values).to(self.device, non_blocking=True)


def _best_of_level(
    tokens: list[int], parents: list[int], probs: list[float], first: int, limit: int
) -> tuple[list[int], list[int], list[float]]:
    """Cut the newest level, which starts at `first`, to its most probable nodes so that the pool has `limit`."""
    newest = sorted(range(first, len(tokens)), key=lambda node: -probs[node])[: max(0, limit - first)]
    kept = [*range(first), *sorted(newest)]
    return [tokens[node] for node in kept], [parents[node] for node in kept], [probs[node] for node in kept]


class _DraftCache:
    """The head's keys and values: committed positions, then the rows of the tree being grown."""

    def __init__(self) -> None:
        self.committed = 0
        self._layers: list[tuple[Tensor, Tensor]] = []

    @property
    def drafted(self) -> int:
        """Rows of the tree so far."""
        return self._layers[0][0].shape[2] - self.committed if self._layers else 0

    def update(self, layer_index: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        if layer_index == len(self._layers):
            self._layers.append((keys, values))
        else:
            old_keys, old_values = self._layers[layer_index]
            self._layers[layer_index] = torch.cat((old_keys, keys), dim=2), torch.cat((old_values, values), dim=2)
        return self._layers[layer_index]

    def commit(self, length: int) -> None:
        self.committed = length

    def drop_tree(self) -> None:
        end = self.committed
        self._layers = [(keys[:, :, :end], values[:, :, :end]) for keys, values in self._layers]
