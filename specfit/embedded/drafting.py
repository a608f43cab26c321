"""EAGLE-3 drafting over a text that is already known, for measuring: no cache to keep, no cycle to time.

The target's greedy text does not depend on what is drafted, so acceptance can be counted on a finished answer: run
the head once over the whole text with true features, then at each cycle grow the pool of 18 nodes (top 2, five
levels: 2 + 4 * 4) from the row of the last committed token and see how far the tree follows the text.

This is written apart from the engine on purpose: the two check each other.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import DynamicCache, Qwen3MoeForCausalLM

from specfit.engine.eagle3 import Eagle3Head

BRANCH, LEVELS, TREE = 2, 5, 7


@dataclass(frozen=True, slots=True)
class Pool:
    """Candidates of one cycle; parents come before children."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]  # node index, -1 for the root
    log_probs: tuple[float, ...]  # of the path from the root

    def path(self, node: int) -> list[int]:
        """The node and its ancestors, deepest first."""
        found = []
        while node >= 0:
            found.append(node)
            node = self.parents[node]
        return found

    def top(self, count: int) -> list[int]:
        """The `count` likeliest paths' nodes, ascending; ties keep the earlier node, so ancestors are in."""
        return sorted(sorted(range(len(self.tokens)), key=lambda node: -self.log_probs[node])[:count])


class KnownText:
    """A finished text under a target and a drafter: features, keys and values are there for every prefix."""

    def __init__(self, target: Qwen3MoeForCausalLM, head: Eagle3Head, ids: list[int]):
        self.target, self.head, self.ids = target, head, ids
        tokens = torch.tensor([ids])
        self.target_cache = DynamicCache()
        out = target.model(tokens, None, None, self.target_cache, output_hidden_states=True)
        features = torch.cat([out.hidden_states[i] for i in head.config.aux_layer_ids], dim=-1)  # (1, T, 3H)
        rows = len(ids) - 1  # row i: feature of token i, embedding of token i + 1
        self.recorder = RowCache()
        causal = torch.full((rows, rows), float("-inf")).triu(1)[None, None]
        self.g = head(
            head.embed(tokens[:, 1:]), head.fuse(features[:, :-1]), torch.arange(rows)[None], causal, self.recorder
        )[0]  # (rows, H)

    def grow(self, committed: int) -> Pool:
        """The pool after `committed` tokens; the root is the token that follows them."""
        head = self.head
        tokens, parents, scores = [], [], []

        def add(parent: int, log_probs: Tensor) -> list[int]:
            top = log_probs.topk(BRANCH)
            for token, log_prob in zip(top.indices.tolist(), top.values.tolist()):
                tokens.append(token)
                parents.append(parent)
                scores.append(log_prob + (scores[parent] if parent >= 0 else 0.0))
            return list(range(len(tokens) - BRANCH, len(tokens)))

        g = self.g[committed - 1]
        beam = add(-1, head.log_probs(g))
        hidden = head.feed_back(g).expand(BRANCH, -1)
        cache, drawn = self.recorder.prefix(committed), []  # drawn: nodes whose rows are in the cache, in order
        for level in range(1, LEVELS):
            drawn += beam
            mask = torch.full((BRANCH, committed + len(drawn)), float("-inf"))
            mask[:, :committed] = 0
            for row, node in enumerate(beam):
                for ancestor in Pool(tuple(tokens), tuple(parents), ()).path(node):
                    mask[row, committed + drawn.index(ancestor)] = 0
            ids = torch.tensor([[tokens[node] for node in beam]])
            positions = torch.full((1, BRANCH), committed - 1 + level)
            g = head(head.embed(ids), hidden[None], positions, mask[None, None], cache)[0]
            children = [child for row, node in enumerate(beam) for child in add(node, head.log_probs(g[row]))]
            best = sorted(sorted(children, key=lambda node: -scores[node])[:BRANCH])
            hidden = head.feed_back(torch.stack([g[beam.index(parents[node])] for node in best]))
            beam = best
        return Pool(tuple(tokens), tuple(parents), tuple(scores))

    def accepted(self, pool: Pool, nodes: list[int], committed: int) -> int:
        """How many of the tree's nodes the text goes through, root excluded."""
        at: int | None = -1
        count = 0
        for token in self.ids[committed + 1 :]:
            at = next((node for node in nodes if pool.parents[node] == at and pool.tokens[node] == token), None)
            if at is None:
                break
            count += 1
        return count

    def verify(self, pool: Pool, committed: int) -> None:
        """Forward the root and the whole pool through the target (a route recorder on its routers sees the rows)."""
        rows = 1 + len(pool.tokens)
        depth = [0, *(len(pool.path(node)) for node in range(len(pool.tokens)))]
        mask = torch.full((rows, committed + rows), torch.finfo(torch.float32).min)
        mask[:, : committed + 1] = 0  # the prefix and the root
        for node in range(len(pool.tokens)):
            for ancestor in pool.path(node):
                mask[node + 1, committed + 1 + ancestor] = 0
        past = DynamicCache()
        for index, layer in enumerate(self.target_cache.layers):
            past.update(layer.keys[:, :, :committed], layer.values[:, :, :committed], index)
        ids, positions = torch.tensor([[self.ids[committed], *pool.tokens]]), torch.tensor([depth]) + committed
        self.target.model(ids, mask[None, None], positions, past)  # by place: the cache's name changed in 5.24


class RowCache:
    """Keys and values of the head's single layer, grown by concatenation."""

    def __init__(self, keys: Tensor | None = None, values: Tensor | None = None):
        self.keys, self.values = keys, values

    def update(self, layer_index: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        if self.keys is not None and self.values is not None:
            keys, values = torch.cat([self.keys, keys], dim=2), torch.cat([self.values, values], dim=2)
        self.keys, self.values = keys, values
        return keys, values

    def prefix(self, rows: int) -> "RowCache":
        """A cache of the first `rows` rows, to be grown apart."""
        if self.keys is None or self.values is None:
            return RowCache()
        return RowCache(self.keys[:, :, :rows], self.values[:, :, :rows])
