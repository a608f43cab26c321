"""Route bitmaps against sets of experts, noise of a given accuracy, and the packed form."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specfit.routes import (
    Routes,
    bitmap_experts,
    bitmaps_from_indices,
    check_routes,
    expert_union,
    noisy_indices,
    pack_bitmaps,
    unpack_bitmaps,
)
from specfit.tree import EMPTY_POOL, DraftPool


def random_indices(rng: np.random.Generator, rows: int, layers: int, top_k: int, experts: int) -> np.ndarray:
    return rng.random((rows, layers, experts)).argsort(axis=2)[:, :, :top_k]


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 5), st.integers(1, 4), st.integers(1, 3), st.integers(3, 70))
def test_unions_are_set_unions(seed: int, nodes: int, layers: int, top_k: int, experts: int) -> None:
    ids = random_indices(np.random.default_rng(seed), 1 + nodes, layers, top_k, experts)
    routes = Routes.from_indices(ids[0], ids[1:], experts=experts)
    chosen = random.Random(seed).choices(range(nodes), k=4) if nodes else []  # repeats are fine
    rows = [0, *(1 + node for node in chosen)]
    sets = [{int(e) for row in rows for e in ids[row, layer]} for layer in range(layers)]
    assert expert_union(routes, chosen) == sum(map(len, sets))
    assert routes.layer_unions(chosen) == tuple(map(len, sets))
    assert bitmap_experts(routes.root, layers=layers, experts=experts) == [sorted(map(int, row)) for row in ids[0]]
    bitmaps = [routes.root, *routes.nodes]
    packed = pack_bitmaps(bitmaps, layers=layers, experts=experts)
    assert unpack_bitmaps(packed) == tuple(bitmaps)
    bits = np.unpackbits(packed, axis=1, bitorder="little")[:, : layers * experts].reshape(-1, layers, experts)
    assert all(sorted(np.flatnonzero(bits[i, 0])) == sorted(ids[i, 0]) for i in range(1 + nodes))
    shorter = routes.prefix(nodes // 2)
    assert len(shorter) == nodes // 2
    assert shorter.nodes == routes.nodes[: nodes // 2]


def test_repeated_experts_count_once() -> None:
    routes = Routes.from_indices([[1, 1]], [[[1, 2]], [[2, 2]]], experts=4)
    assert expert_union(routes, ()) == 1
    assert expert_union(routes, (0, 1)) == 2


def test_packing_no_rows_or_no_layers() -> None:
    assert pack_bitmaps([], layers=2, experts=4).shape == (0, 1)
    assert unpack_bitmaps(pack_bitmaps([], layers=2, experts=4)) == ()
    assert unpack_bitmaps(pack_bitmaps([0, 0], layers=0, experts=0)) == (0, 0)


@pytest.mark.parametrize("node", [-1, 2])
def test_a_union_refuses_nodes_outside_the_pool(node: int) -> None:
    routes = Routes.from_indices([[0]], [[[1]], [[2]]], experts=4)
    with pytest.raises(ValueError, match=f"node {node} has no routes; nodes are 0..1"):
        expert_union(routes, (node,))
    with pytest.raises(ValueError, match="the pool is empty, as last cycles' are, and the root is implied"):
        expert_union(routes.prefix(0), (0,))


@pytest.mark.parametrize(
    ("root", "nodes", "match"),
    [
        ([0, 1], [], r"root routes have shape \(2,\); expected \(layers, top_k\)"),
        ([[0, 1]], [[[0]]], r"node routes have shape \(1, 1, 1\); expected \(nodes, 1, 2\)"),
        ([[0, 4]], [], r"the root routes to experts \[0, 4\] in layer 0; expert ids are 0..3"),
        ([[0, 1]], [[[0, 1]], [[0, -1]]], r"node 1 routes to experts \[0, -1\] in layer 0"),
    ],
)
def test_indices_that_are_no_routes_are_named(root: list, nodes: list, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        Routes.from_indices(root, nodes, experts=4)


def test_bitmaps_that_are_too_wide_are_named() -> None:
    with pytest.raises(ValueError, match=r"the root's routes need 8 bits \(2 layers x 4 experts\)"):
        Routes(1 << 8, (), 2, 4)
    with pytest.raises(ValueError, match="routes of node 1 need 8 bits"):
        Routes(0, (0, 1 << 8), 2, 4)
    with pytest.raises(ValueError, match="routes of node 0"):
        Routes(0, (-1,), 2, 4)
    with pytest.raises(ValueError, match="routes are given for 1 nodes; the pool has 0"):
        check_routes(Routes(0, (0,), 1, 4), EMPTY_POOL)
    check_routes(Routes(0, (0,), 1, 4), DraftPool((1,), (-1,), (0.5,)))


@pytest.mark.parametrize("accuracy", [0.0, 0.3, 0.9, 1.0])
def test_noise_replaces_that_share_by_other_experts(accuracy: float) -> None:
    rng = np.random.default_rng(4)
    true = random_indices(rng, 300, 6, 4, 16)
    noisy = noisy_indices(true, experts=16, accuracy=accuracy, rng=rng)
    assert noisy.shape == true.shape and noisy.dtype == true.dtype
    kept = noisy == true
    assert abs(kept.mean() - accuracy) < 4 * np.sqrt(accuracy * (1 - accuracy) / true.size) + 1e-12
    assert all(len(set(row)) == 4 for row in noisy.reshape(-1, 4).tolist())  # no two alike
    for old, new, same in zip(true.reshape(-1, 4), noisy.reshape(-1, 4), kept.reshape(-1, 4)):
        assert not set(new[~same]) & set(old)  # a replacement is none of the true ones


def test_replacements_are_spread_evenly_over_the_other_experts() -> None:
    rng = np.random.default_rng(5)
    true = np.tile(np.arange(2), (4000, 1, 1))
    noisy = noisy_indices(true, experts=8, accuracy=0.0, rng=rng)
    counts = np.bincount(noisy.ravel(), minlength=8)
    assert counts[:2].tolist() == [0, 0]
    expected = noisy.size / 6
    assert ((counts[2:] - expected) ** 2 / expected).sum() < 20.5  # chi-square, 5 degrees of freedom, p = 0.001


@pytest.mark.parametrize("accuracy", [-0.1, 1.1, float("nan")])
def test_an_accuracy_is_a_share(accuracy: float) -> None:
    with pytest.raises(ValueError, match=r"a route accuracy is a share in \[0, 1\]"):
        noisy_indices(np.zeros((1, 1, 1), int), experts=4, accuracy=accuracy, rng=np.random.default_rng())


def test_noise_needs_enough_other_experts() -> None:
    true = np.arange(3).reshape(1, 1, 3)
    with pytest.raises(ValueError, match="noise needs 3 experts outside the 3 true ones; the layer has 5"):
        noisy_indices(true, experts=5, accuracy=0.5, rng=np.random.default_rng())
    assert (noisy_indices(true, experts=5, accuracy=1.0, rng=np.random.default_rng()) == true).all()


def test_bitmaps_of_no_rows() -> None:
    assert bitmaps_from_indices(np.zeros((0, 2, 2), int), experts=4) == []
