"""The KV cache: rows kept after a tree forward are those of a fresh cache that only ever saw them."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specfit.engine.kv_cache import GROWTH, KVCache

torch.set_num_threads(1)


def states(cache: KVCache, layer: int) -> torch.Tensor:
    held = cache.layers[layer]
    return held.keys[:, :, : held.length]


def append(cache: KVCache, numbers: list[int]) -> None:
    """Positions that carry their number, plus 1000 a layer; values are narrower and negative."""
    for layer in range(len(cache.layers)):
        keys = torch.tensor(numbers, dtype=torch.float32).view(1, 1, -1, 1) + 1000 * layer
        keys, values = keys.expand(1, 2, -1, 4), -keys.expand(1, 2, -1, 3)
        all_keys, all_values = cache.update(keys, values, layer)
        assert all_keys.shape[2] == all_values.shape[2] == cache.layers[layer].length
        assert torch.equal(all_keys[:, :, -len(numbers) :], keys)
        assert torch.equal(all_values[..., 0], -all_keys[..., 0])


def check(cache: KVCache, expected: list[int]) -> None:
    assert len(cache) == cache.get_seq_length() == len(expected)
    assert cache.get_mask_sizes(3, 0) == (len(expected) + 3, 0)
    for layer in range(len(cache.layers)):
        held = cache.layers[layer]
        assert held.length == len(expected)
        if expected:
            assert held.keys[0, 0, : held.length, 0].tolist() == [number + 1000 * layer for number in expected]
            assert torch.equal(held.values[..., : held.length, 0], -held.keys[..., : held.length, 0])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 12), st.data()), max_size=6), st.integers(1, 5))
def test_kept_rows_are_what_a_list_would_keep(steps: list, prompt: int) -> None:
    cache, expected, next_number = KVCache(3), list(range(prompt)), prompt
    append(cache, expected)
    for rows, data in steps:
        block = list(range(next_number, next_number + rows))
        next_number += rows
        start = len(cache)
        append(cache, block)
        kept = data.draw(st.sets(st.integers(0, rows - 1)).map(sorted))
        cache.compact(start, kept)
        expected += [block[row] for row in kept]
        check(cache, expected)


def test_growth_past_the_buffer_keeps_everything() -> None:
    cache, expected = KVCache(2), []
    for rows in (GROWTH - 1, 1, 1, GROWTH, 3 * GROWTH, 7):
        block = list(range(len(expected), len(expected) + rows))
        append(cache, block)
        expected += block
        check(cache, expected)


def test_what_is_reserved_is_made_once() -> None:
    cache = KVCache(2)
    cache.reserve(GROWTH + 100)
    append(cache, list(range(7)))
    place = cache.layers[1].keys.data_ptr()
    append(cache, list(range(7, GROWTH + 100)))
    assert cache.layers[1].keys.data_ptr() == place and cache.layers[1].keys.shape[2] == GROWTH + 100
    check(cache, list(range(GROWTH + 100)))
    cache.reserve(10 * GROWTH)  # the next request is longer: nothing moves until it has to, and then once
    cache.compact(5, ())
    append(cache, list(range(5, GROWTH + 100)))
    assert cache.layers[1].keys.data_ptr() == place
    append(cache, [GROWTH + 100])
    assert cache.layers[1].keys.shape[2] == 10 * GROWTH
    check(cache, list(range(GROWTH + 101)))


def test_a_chain_stays_in_place_and_a_rewind_keeps_nothing() -> None:
    cache = KVCache(2)
    append(cache, [0, 1, 2])
    place = states(cache, 0).data_ptr()
    append(cache, [3, 4, 5])
    cache.compact(3, (0, 1))
    check(cache, [0, 1, 2, 3, 4])
    assert states(cache, 0).data_ptr() == place
    cache.compact(2, ())
    check(cache, [0, 1])


def test_an_unused_cache_is_empty() -> None:
    cache = KVCache(2)
    cache.compact(0, ())
    assert len(cache) == 0
    assert cache.get_max_length() == -1
