"""Pools, prefixes and legality (Section 3.1, Equation 2)."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from specfit.tree import EMPTY_POOL, ROOT, DraftPool, check_legal, is_legal
from tests.pools import random_state

POOL = DraftPool((5, 6, 7, 8, 9), (ROOT, ROOT, 0, 0, 2), (0.6, 0.4, 0.5, 0.1, 0.5))


def test_depths_levels_paths_and_children() -> None:
    assert POOL.depths == (1, 1, 2, 2, 3)
    assert POOL.levels == 3
    assert POOL.path(4) == (0, 2, 4)
    assert POOL.path(ROOT) == ()
    assert POOL.children() == {ROOT: (0, 1), 0: (2, 3), 2: (4,)}
    assert len(POOL) == 5


def test_prefixes_are_pools() -> None:
    for count in range(len(POOL) + 1):
        prefix = POOL.prefix(count)
        assert prefix.tokens == POOL.tokens[:count]
        assert prefix.depths == POOL.depths[:count]
    assert POOL.prefix(0) == EMPTY_POOL
    assert EMPTY_POOL.levels == 0


def test_lists_become_tuples_and_the_pool_is_hashable() -> None:
    pool = DraftPool([1, 2], [-1, 0], [0.5, 0.5])  # type: ignore[arg-type]
    assert hash(pool) == hash(DraftPool((1, 2), (-1, 0), (0.5, 0.5)))


@pytest.mark.parametrize(
    ("tokens", "parents", "probs", "match"),
    [
        ((1, 2), (-1,), (0.5, 0.5), "2 tokens, 1 parents and 2 path probabilities"),
        ((1, 2), (-1, 1), (0.5, 0.4), "node 1 has parent 1; .*parents before children"),
        ((1, 2), (1, -1), (0.5, 0.4), "node 0 has parent 1"),
        ((1,), (-2,), (0.5,), "node 0 has parent -2"),
        ((1,), (-1,), (1.5,), r"node 0 has path probability 1.5; expected a number in \[0, 1\]"),
        ((1,), (-1,), (-0.1,), "node 0 has path probability -0.1"),
        ((1,), (-1,), (float("nan"),), "node 0 has path probability nan"),
        ((1, 2), (-1, 0), (0.5, 0.6), "node 1 has path probability 0.6, above its parent's 0.5"),
    ],
)
def test_a_broken_pool_names_its_node(tokens: tuple, parents: tuple, probs: tuple, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        DraftPool(tokens, parents, probs)


@pytest.mark.parametrize("seed", range(6))
def test_legality_by_definition(seed: int) -> None:
    rng = random.Random(seed)
    pool = random_state(rng, nodes=6).pool
    for size in range(7):
        for nodes in itertools.combinations(range(6), size):
            closed = all(pool.parents[node] in (ROOT, *nodes) for node in nodes)
            for limit in (None, 3):
                legal = closed and (limit is None or size <= limit)
                assert is_legal(pool, nodes, max_nodes=limit) == legal
                if legal:
                    assert check_legal(pool, reversed(nodes), max_nodes=limit) == nodes
                else:
                    with pytest.raises(ValueError, match="without its parent|limit is K = 3"):
                        check_legal(pool, nodes, max_nodes=limit)


@pytest.mark.parametrize(
    ("nodes", "match"),
    [
        ((5,), r"node 5 is not in the pool; its nodes are 0..4"),
        ((-1,), "node -1 is not in the pool"),
        ((0, 0), r"the selection \[0, 0\] names a node twice"),
        ((2,), "node 2 is selected without its parent 0"),
        ((0.0,), r"a selection is a collection of pool node ids; got \(0.0,\)"),
        (None, "a selection is a collection of pool node ids; got None"),
        (("a",), "a selection is a collection of pool node ids"),
    ],
)
def test_an_illegal_selection_gets_one_sentence(nodes: object, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        check_legal(POOL, nodes)  # type: ignore[arg-type]
    if isinstance(nodes, tuple) and all(isinstance(node, int) for node in nodes):
        assert not is_legal(POOL, nodes)


def test_numpy_ids_come_out_as_plain_integers() -> None:
    nodes = check_legal(POOL, np.array([2, 0]))
    assert nodes == (0, 2)
    assert all(type(node) is int for node in nodes)
