"""Routes: which experts each draft token would use, and how many a subtree needs together (Equations 1 and 4).

Every node's routes are one Python int, bit `layer * experts + expert`: a union is `|` and its size `int.bit_count()`,
which is both the plainest and the fastest way at these sizes. The same type holds true routes (what a router chose)
and estimated ones (what an atlas, a predictor or noise says).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specfit.tree import DraftPool


@dataclass(frozen=True, slots=True)
class Routes:
    """Expert bitmaps of the root and of each pool node, over `layers` MoE layers of `experts` experts.

    Raises ValueError for a bitmap with a bit outside layers * experts; the message names the node.
    """

    root: int  # bitmap of E_l(s)
    nodes: tuple[int, ...]  # (n,) bitmaps of E_l(v)
    layers: int
    experts: int  # per layer; of the widest layer if they differ

    def __post_init__(self) -> None:
        width = self.layers * self.experts
        if self.root < 0 or self.root >> width:
            raise ValueError(f"the root's routes need {width} bits ({self.layers} layers x {self.experts} experts)")
        for node, bitmap in enumerate(self.nodes):
            if bitmap < 0 or bitmap >> width:
                raise ValueError(f"routes of node {node} need {width} bits ({self.layers} x {self.experts} experts)")

    def __len__(self) -> int:
        return len(self.nodes)

    @classmethod
    def from_indices(cls, root: ArrayLike, nodes: ArrayLike, *, experts: int) -> Routes:
        """From expert ids: root (layers, top_k), nodes (n, layers, top_k); repeats are fine.

        Raises ValueError for another shape, or an expert id outside 0..experts-1 (names node, layer and id).
        """
        root_ids = np.asarray(root, dtype=np.int64)
        if root_ids.ndim != 2:
            raise ValueError(f"root routes have shape {root_ids.shape}; expected (layers, top_k)")
        layers, top_k = root_ids.shape
        node_ids = np.asarray(nodes, dtype=np.int64)
        if node_ids.size == 0:
            node_ids = node_ids.reshape(0, layers, top_k)
        if node_ids.ndim != 3 or node_ids.shape[1:] != (layers, top_k):
            raise ValueError(f"node routes have shape {node_ids.shape}; expected (nodes, {layers}, {top_k})")
        bitmaps = bitmaps_from_indices(np.concatenate([root_ids[None], node_ids]), experts=experts)
        return cls(bitmaps[0], tuple(bitmaps[1:]), layers, experts)

    def prefix(self, count: int) -> Routes:
        """Routes of the root and the first `count` nodes."""
        if count == len(self.nodes):
            return self
        return Routes(self.root, self.nodes[:count], self.layers, self.experts)

    def layer_unions(self, nodes: Iterable[int]) -> tuple[int, ...]:
        """Size of the expert union of the root and `nodes` in every layer; the sum is `expert_union`."""
        union, mask = self.root, (1 << self.experts) - 1
        for node in nodes:
            union |= self.nodes[node]
        return tuple((union >> (layer * self.experts) & mask).bit_count() for layer in range(self.layers))


def bitmaps_from_indices(indices: NDArray[np.integer], *, experts: int) -> list[int]:
    """Bitmaps of rows of expert ids, (rows, layers, top_k) -> one int a row."""
    rows, layers, _ = indices.shape
    if indices.size and not (indices.min() >= 0 and indices.max() < experts):
        row, layer, _ = (int(i) for i in np.argwhere((indices < 0) | (indices >= experts))[0])
        where = "the root" if row == 0 else f"node {row - 1}"
        wrong = indices[row, layer].tolist()
        raise ValueError(f"{where} routes to experts {wrong} in layer {layer}; expert ids are 0..{experts - 1}")
    bits = np.zeros(rows * layers * experts, dtype=np.uint8)
    starts = np.arange(0, len(bits), experts).reshape(rows, layers, 1)
    bits[(indices + starts).ravel()] = 1  # it is in the request timer; `put_along_axis` takes twice as long
    packed = np.packbits(bits.reshape(rows, layers * experts), axis=1, bitorder="little")
    return [int.from_bytes(row.tobytes(), "little") for row in packed]


def bitmap_experts(bitmap: int, *, layers: int, experts: int) -> list[list[int]]:
    """Expert ids of every layer in a bitmap, ascending: the inverse of `bitmaps_from_indices` up to order."""
    mask = (1 << experts) - 1
    found = []
    for layer in range(layers):
        bits, ids = bitmap >> (layer * experts) & mask, []
        while bits:
            ids.append((bits & -bits).bit_length() - 1)
            bits &= bits - 1
        found.append(ids)
    return found


def expert_union(routes: Routes, nodes: Iterable[int]) -> int:
    """Count the distinct (layer, expert) pairs that the root and `nodes` activate: F(S), Equation 4.

    nodes: pool node ids; order and repeats do not matter.
    Returns experts summed over layers, between the root's own and `layers * experts`.
    Raises ValueError for ROOT or a node outside the pool (-1 would quietly pick the last node).
    Monotone and submodular in `nodes` (Section 3.2).
    """
    union = routes.root
    for node in nodes:
        if not 0 <= node < len(routes.nodes):
            last = len(routes.nodes) - 1
            known = f"nodes are 0..{last}" if last >= 0 else "the pool is empty, as last cycles' are,"
            raise ValueError(f"node {node} has no routes; {known} and the root is implied")
        union |= routes.nodes[node]
    return union.bit_count()


def noisy_indices(
    indices: NDArray[np.integer], *, experts: int, accuracy: float, rng: np.random.Generator
) -> NDArray[np.integer]:
    """Expert ids of a simulated predictor (Section 4.6), (rows, layers, top_k) -> the same shape.

    Each routed expert is replaced, with probability 1 - accuracy, by a random expert outside the row's true ones of
    that layer, no two replacements alike. Raises ValueError for an accuracy outside [0, 1] or if top_k > experts / 2,
    where a layer has too few other experts.
    """
    rows, layers, top_k = indices.shape
    if not 0 <= accuracy <= 1:
        raise ValueError(f"a route accuracy is a share in [0, 1]; got {accuracy}")
    if accuracy < 1 and 2 * top_k > experts:
        raise ValueError(f"noise needs {top_k} experts outside the {top_k} true ones; the layer has {experts}")
    order = rng.random((rows, layers, experts))
    np.put_along_axis(order, indices, 2.0, axis=2)  # the true experts come last, so the first top_k are others
    others = np.argsort(order, axis=2)[:, :, :top_k]
    return np.where(rng.random(indices.shape) < accuracy, indices, others).astype(indices.dtype)


def noise_stream(seed: int, prompt: Sequence[int], position: int) -> np.random.Generator:
    """The random numbers of a simulated predictor at one position of a prompt: the same whatever came before."""
    return np.random.default_rng([seed, zlib.crc32(np.asarray(prompt, dtype=np.int64).tobytes()), position])


def check_routes(routes: Routes, pool: DraftPool) -> None:
    """ValueError unless there are routes for exactly the pool's nodes."""
    if len(routes) != len(pool):
        raise ValueError(f"routes are given for {len(routes)} nodes; the pool has {len(pool)}")


def pack_bitmaps(bitmaps: Sequence[int], *, layers: int, experts: int) -> NDArray[np.uint8]:
    """Bitmaps as bytes, (rows, ceil(layers * experts / 8)), little bit order: `numpy.unpackbits` reads them back."""
    width = (layers * experts + 7) // 8
    packed = b"".join(bitmap.to_bytes(width, "little") for bitmap in bitmaps)
    return np.frombuffer(packed, np.uint8).reshape(len(bitmaps), width)


def unpack_bitmaps(packed: NDArray[np.uint8]) -> tuple[int, ...]:
    """The inverse of `pack_bitmaps`."""
    return tuple(int.from_bytes(row.tobytes(), "little") for row in packed)
