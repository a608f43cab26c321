"""The two probe trees of the paper's calibration (Appendix B): of a given size, the most probable nodes, and those
that need the fewest experts together. One has many experts for its size and the other few, which is what lets a fit
tell the price of an expert from the price of a node.

The second is a baseline too: `MinUnionPolicy` verifies as many nodes as it is told, chosen for their experts alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from specfit.objective import PROB_GRID, CostModel, CycleState, Selection, evaluate, probs_on_grid
from specfit.tree import ROOT, is_legal


def prefix_tree(state: CycleState, size: int) -> tuple[int, ...]:
    """The `size` most probable nodes, sorted by id; equal probabilities by lower id.

    Always a legal subtree: a parent has at least its child's probability and a lower id, so it comes before the child
    in this order, by probability or, in a tie, by id.
    Raises ValueError if the pool has fewer nodes.
    """
    _check_size(state, size)
    pool = state.pool
    ranked = sorted(range(len(pool)), key=lambda node: (-pool.path_probs[node], node))
    chosen = tuple(sorted(ranked[:size]))
    assert is_legal(pool, chosen), f"the {size} most probable nodes {chosen} are not closed under parents"
    return chosen


def min_union_tree(state: CycleState, size: int) -> tuple[int, ...]:
    """The legal subtree of exactly `size` nodes with the smallest expert union; ties by larger reward, smaller ids.

    Exact: depth-first as in Algorithm 1, leaving a branch when its union, which can only grow, is already larger than
    one found. Raises ValueError if the pool has fewer nodes.
    """
    _check_size(state, size)
    probs, parents, routes = probs_on_grid(state.pool), state.pool.parents, state.routes.nodes
    first = _greedy(state, size)
    best = _key(state, first, probs)
    stack: list[tuple[tuple[int, ...], int]] = [((), state.routes.root)]
    while stack:
        nodes, bitmap = stack.pop()
        if bitmap.bit_count() > best[0]:
            continue
        if len(nodes) == size:
            best = min(best, _key(state, nodes, probs))
            continue
        start = nodes[-1] + 1 if nodes else 0
        for node in range(len(parents) - (size - len(nodes)), start - 1, -1):  # leave room for the nodes still to come
            if parents[node] == ROOT or parents[node] in nodes:
                stack.append(((*nodes, node), bitmap | routes[node]))
    return best[2]


@dataclass(frozen=True, slots=True)
class MinUnionPolicy:
    """The legal subtree of `size` nodes (all of a smaller pool) with the smallest expert union, probable or not."""

    size: int

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError(f"a minimum-union tree's size is {self.size}; expected 0 or more draft nodes")

    def __call__(self, state: CycleState, cost: CostModel) -> Selection:
        return evaluate(state, min_union_tree(state, min(self.size, len(state.pool))), cost)


def _key(state: CycleState, nodes: tuple[int, ...], probs: list[int]) -> tuple[int, int, tuple[int, ...]]:
    bitmap = state.routes.root
    for node in nodes:
        bitmap |= state.routes.nodes[node]
    return bitmap.bit_count(), -PROB_GRID - sum(probs[node] for node in nodes), nodes


def _greedy(state: CycleState, size: int) -> tuple[int, ...]:
    """A legal subtree built by adding, each time, the node that needs the fewest new experts."""
    chosen: set[int] = set()
    bitmap, parents = state.routes.root, state.pool.parents
    for _ in range(size):
        open_nodes = [
            n for n in range(len(parents)) if n not in chosen and (parents[n] == ROOT or parents[n] in chosen)
        ]
        node = min(open_nodes, key=lambda n: ((bitmap | state.routes.nodes[n]).bit_count(), n))
        chosen.add(node)
        bitmap |= state.routes.nodes[node]
    return tuple(sorted(chosen))


def _check_size(state: CycleState, size: int) -> None:
    if not 0 <= size <= len(state.pool):
        raise ValueError(f"a probe tree of {size} nodes was asked from a pool of {len(state.pool)}")
