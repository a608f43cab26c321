"""Draft trees: the candidate pool V and the subtrees that may be verified (Section 3.1, Equation 2).

A pool is what the drafter grew from the pending token, the *root*. The root is not in the pool: `ROOT` stands for it
as a parent and is never an index. Node ids put parents before children, so the first n nodes of a pool are a pool.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import index

ROOT = -1


@dataclass(frozen=True, slots=True)
class DraftPool:
    """Nodes 0..n-1 of a draft tree with the probability that the drafter gives to the path from the root to each.

    Raises ValueError for a parent that does not come before its child, a path probability outside [0, 1] or above its
    parent's, NaN, or tuples of different lengths; the message names the node.
    """

    tokens: tuple[int, ...]  # (n,) token id of each node
    parents: tuple[int, ...]  # (n,) node id of the parent, ROOT for children of the root
    path_probs: tuple[float, ...]  # (n,) p_v: product of draft probabilities from the root
    depths: tuple[int, ...] = field(init=False, compare=False)  # (n,) 1 for children of the root

    def __post_init__(self) -> None:
        for name in ("tokens", "parents", "path_probs"):
            if not isinstance(getattr(self, name), tuple):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        if not len(self.tokens) == len(self.parents) == len(self.path_probs):
            raise ValueError(
                f"a pool needs one token, parent and path probability per node; got {len(self.tokens)} tokens, "
                f"{len(self.parents)} parents and {len(self.path_probs)} path probabilities"
            )
        depths: list[int] = []
        for node, (parent, prob) in enumerate(zip(self.parents, self.path_probs, strict=True)):
            if not ROOT <= parent < node:
                raise ValueError(
                    f"node {node} has parent {parent}; a parent is ROOT (-1) or a node with a smaller id, "
                    "so renumber the pool with parents before children (a cycle cannot be numbered)"
                )
            above = 1 if parent == ROOT else self.path_probs[parent]
            if not 0 <= prob <= 1:
                raise ValueError(f"node {node} has path probability {prob}; expected a number in [0, 1]")
            if prob > above:
                raise ValueError(
                    f"node {node} has path probability {prob}, above its parent's {above}; a path probability is a "
                    "product of draft probabilities and can only fall along a path"
                )
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        object.__setattr__(self, "depths", tuple(depths))

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def levels(self) -> int:
        """Drafted levels: the depth of the deepest node, 0 for an empty pool."""
        return max(self.depths, default=0)

    def prefix(self, count: int) -> DraftPool:
        """The pool of the first `count` nodes: V_{<=d} when ids go level by level, as a drafter's do."""
        return DraftPool(self.tokens[:count], self.parents[:count], self.path_probs[:count])

    def path(self, node: int) -> tuple[int, ...]:
        """Node ids from the child of the root down to `node`; empty for ROOT."""
        nodes: list[int] = []
        while node != ROOT:
            nodes.append(node)
            node = self.parents[node]
        return tuple(reversed(nodes))

    def children(self) -> dict[int, tuple[int, ...]]:
        """Children of every node and of ROOT, in id order; nodes without children are absent."""
        found: dict[int, list[int]] = {}
        for node, parent in enumerate(self.parents):
            found.setdefault(parent, []).append(node)
        return {parent: tuple(nodes) for parent, nodes in found.items()}


EMPTY_POOL = DraftPool((), (), ())


def is_legal(pool: DraftPool, nodes: Iterable[int], *, max_nodes: int | None = None) -> bool:
    """Whether `nodes` is a member of A_K (Equation 2): pool nodes without repeats, each with its parent, at most K."""
    chosen = list(nodes)
    members = set(chosen)
    return (
        len(members) == len(chosen)
        and (max_nodes is None or len(members) <= max_nodes)
        and all(0 <= node < len(pool) for node in members)
        and all(pool.parents[node] == ROOT or pool.parents[node] in members for node in members)
    )


def check_legal(pool: DraftPool, nodes: Iterable[int], *, max_nodes: int | None = None) -> tuple[int, ...]:
    """The nodes as a sorted tuple of ints, or ValueError with the first reason why they are no legal subtree."""
    try:
        chosen = tuple(sorted(map(index, nodes)))  # a policy may hand over numpy integers; records hold plain ones
    except TypeError as error:
        raise ValueError(f"a selection is a collection of pool node ids; got {nodes!r}") from error
    for node in chosen:
        if not 0 <= node < len(pool):
            raise ValueError(f"node {node} is not in the pool; its nodes are 0..{len(pool) - 1}")
        parent = pool.parents[node]
        if parent != ROOT and parent not in chosen:
            raise ValueError(f"node {node} is selected without its parent {parent}; a legal subtree has both (Eq. 2)")
    if len(set(chosen)) != len(chosen):
        raise ValueError(f"the selection {list(chosen)} names a node twice")
    if max_nodes is not None and len(chosen) > max_nodes:
        raise ValueError(f"{len(chosen)} nodes are selected; the limit is K = {max_nodes}")
    return chosen
