"""The first half of Proposition 2, to run: a graph and r become a pool and a cost, and the search decides CLIQUE.

One node per edge, all children of the root and equally probable; one layer with an expert per vertex, an edge routing
to its two ends; a flat intercept and a small price per expert. The r(r-1)/2 edges of an r-clique cover only r
vertices, and nothing else reaches their ratio.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from fractions import Fraction

from specfit.objective import MS_GRID, PROB_GRID, CostModel, CycleState
from specfit.routes import Routes
from specfit.select.envelope import corner
from specfit.select.exact import select_exact
from specfit.tree import ROOT, DraftPool


@dataclass(frozen=True, slots=True)
class CliqueInstance:
    """A selection problem: some subtree reaches the ratio `threshold` just when the graph has an r-clique."""

    state: CycleState
    cost: CostModel
    max_nodes: int  # r (r - 1) / 2
    threshold: Fraction  # tokens per millisecond
    vertices: tuple[Hashable, ...]  # expert ids, in order
    edges: tuple[tuple[Hashable, Hashable], ...]  # pool nodes, in order


def clique_instance(vertices: Iterable[Hashable], edges: Iterable[tuple[Hashable, Hashable]], r: int) -> CliqueInstance:
    """The reduction of Proposition 2 for an undirected graph and 2 <= r <= number of vertices.

    p and beta are rounded to the grids; the proof needs only that p > 0 and 0 < beta < b p / (n (1 + (k - 1) p)),
    which holds for the rounded numbers, and the threshold is made from them.
    Raises ValueError for an edge from a vertex to itself or to an unknown one, or r out of range.
    """
    ids = {vertex: number for number, vertex in enumerate(dict.fromkeys(vertices))}
    pairs: dict[frozenset[Hashable], tuple[Hashable, Hashable]] = {}
    for a, b in edges:
        if a == b or a not in ids or b not in ids:
            raise ValueError(f"edge ({a}, {b}) does not join two different vertices of the graph")
        pairs.setdefault(frozenset((a, b)), (a, b))
    if not 2 <= r <= len(ids):
        raise ValueError(f"r is {r}; the reduction is for 2 <= r <= {len(ids)}, the number of vertices")
    n, k = len(ids), r * (r - 1) // 2
    prob = Fraction(round(Fraction(PROB_GRID, len(pairs) + 1)), PROB_GRID)
    beta_steps = int(MS_GRID * prob / (n * (1 + (k - 1) * prob)) / 2)
    assert beta_steps > 0, "the graph is too large for the grid of milliseconds"
    routes = tuple(1 << ids[a] | 1 << ids[b] for a, b in pairs.values())
    pool = DraftPool(tuple(range(len(pairs))), (ROOT,) * len(pairs), (float(prob),) * len(pairs))
    return CliqueInstance(
        state=CycleState(pool, Routes(0, routes, layers=1, experts=n)),
        cost=CostModel((1.0,) * (k + 1), beta_steps / MS_GRID),
        max_nodes=k,
        threshold=(1 + k * prob) / (1 + Fraction(beta_steps, MS_GRID) * r),
        vertices=tuple(ids),
        edges=tuple(pairs.values()),
    )


def find_clique(
    vertices: Iterable[Hashable], edges: Iterable[tuple[Hashable, Hashable]], r: int
) -> tuple[Hashable, ...] | None:
    """The vertices of an r-clique, or None if there is none: decided by the exact selection."""
    problem = clique_instance(vertices, edges, r)
    chosen = select_exact(problem.state, problem.cost, problem.max_nodes)
    if corner(problem.state, chosen.nodes, problem.cost).ratio < problem.threshold:
        return None
    ends = {vertex for node in chosen.nodes for vertex in problem.edges[node]}
    return tuple(vertex for vertex in problem.vertices if vertex in ends)
