"""The target's KV cache: the library's cache container over layers that fill buffers and keep chosen rows.

A request knows how long it can become, so it reserves that much and its buffers are made once; without a reservation
they grow. After a tree forward the accepted path is scattered among the rejected rows. `compact` moves the kept rows
together; nothing else is copied. `Cache.crop` is not used: its argument changed meaning between releases.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from specfit.engine.experts_kernel import to_device

GROWTH = 256  # positions added at a time where more come than were reserved


class KeepingLayer(CacheLayerMixin):
    """Keys and values of one layer in buffers with room to grow; keys and values may differ in width."""

    is_croppable = True

    def __init__(self) -> None:
        super().__init__()
        self.length = 0
        self.reserved = 0  # positions that the buffers are made for, once there are any

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        positions = self.reserved or GROWTH
        self.keys, self.values = (_room(states, positions) for states in (key_states, value_states))
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, end = self.length, self.length + key_states.shape[2]
        if end > self.keys.shape[2]:
            more = max(end + GROWTH, self.reserved) - self.keys.shape[2]
            self.keys, self.values = (
                torch.cat((buffer, _room(buffer, more)), dim=2) for buffer in (self.keys, self.values)
            )
        self.keys[:, :, start:end] = key_states
        self.values[:, :, start:end] = value_states
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_seq_length(self) -> int:
        return self.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_max_length(self) -> int:
        return -1

    def keep(self, start: int, end: int, source: Tensor | None) -> None:
        """Keep what lies at `source`, moved to start..end, and drop the rest; None where it lies there already."""
        if source is not None:
            self.keys[:, :, start:end] = self.keys.index_select(2, source)
            self.values[:, :, start:end] = self.values.index_select(2, source)
        self.length = end


class KVCache(Cache):
    """One request's keys and values over all layers."""

    def __init__(self, layers: int) -> None:
        super().__init__(layers=[KeepingLayer() for _ in range(layers)])

    def __len__(self) -> int:
        """Positions held."""
        return self.layers[0].length

    def reserve(self, positions: int) -> None:
        """Make room for this many positions in all when buffers are next made or grown; what is held stays."""
        for layer in self.layers:
            layer.reserved = positions

    def compact(self, start: int, rows: Sequence[int]) -> None:
        """Keep `rows` of the positions from `start` on, in every layer; afterwards the length is start + len(rows)."""
        source = None
        if list(rows) != list(range(len(rows))):  # a chain's path already lies in place
            source = to_device([start + row for row in rows], torch.int64, self.layers[0].keys.device)
        for layer in self.layers:
            layer.keep(start, start + len(rows), source)


def _room(like: Tensor, positions: int) -> Tensor:
    batch, heads, _, width = like.shape
    return like.new_zeros(batch, heads, positions, width)
