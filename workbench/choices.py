"""What any legal subtree of a recorded cycle is worth: the numbers behind what-if, beside the choice that was made.

The formulas are the core's own (`evaluate`, `expert_union`, `accepted_path`); this file only asks what of them a record
can answer. Predictions read the routes that the selection read; misses read true routes where an atlas left them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from specfit.cycle import accepted_path
from specfit.objective import CostModel, CycleState, evaluate, reward
from specfit.records import CycleRecord
from specfit.routes import Routes, expert_union
from specfit.select import prefix_tree
from specfit.tree import EMPTY_POOL, ROOT, DraftPool, check_legal
from workbench.residency import UNKNOWN, Residency


@dataclass(frozen=True, slots=True)
class Choice:
    """One legal subtree of a cycle; None where the record cannot tell."""

    name: str
    nodes: tuple[int, ...]
    reward: float  # R(S)
    predicted_ms: float | None  # T(S); None without cost coefficients or routes
    ratio: float | None  # R / T, tokens per millisecond
    union: int | None  # F(S), estimated routes
    misses: tuple[int, int] | None  # least and most copies, from the cache's state before the cycle
    committed: tuple[int, bool] | None  # tokens it would have committed; False: at least so many


def choice(
    name: str,
    cycle: CycleRecord,
    nodes: Iterable[int],
    cost: CostModel | None,
    residency: Residency = UNKNOWN,
) -> Choice:
    """Evaluate `nodes` in `cycle`; ValueError if they are no legal subtree of its pool."""
    chosen = check_legal(cycle.pool, nodes)
    routes = known_routes(cycle, chosen, true=False)
    time = ratio = union = None
    if routes is not None:
        union = expert_union(routes, chosen)
        if cost is not None and len(chosen) <= cost.max_nodes:
            selection = evaluate(CycleState(cycle.pool, routes), chosen, cost)
            time, ratio = selection.predicted_ms, selection.ratio if selection.predicted_ms else None
    true = known_routes(cycle, chosen, true=True)
    misses = None if true is None else residency.misses(union_bitmap(true, chosen))
    return Choice(name, chosen, reward(cycle.pool, chosen), time, ratio, union, misses, would_commit(cycle, chosen))


def ar_choice(cycle: CycleRecord, cost: CostModel | None, residency: Residency = UNKNOWN) -> Choice:
    """Plain decoding of the root alone: no draft node is verified and, unlike in this cycle's T, no level drafted."""
    made = choice("AR", cycle, (), cost, residency)
    if made.predicted_ms is None or cost is None:
        return made
    routes = known_routes(cycle, (), true=False)
    assert routes is not None
    undrafted = CycleState(EMPTY_POOL, Routes(routes.root, (), routes.layers, routes.experts))
    alone = evaluate(undrafted, (), cost)
    return replace(made, predicted_ms=alone.predicted_ms, ratio=alone.ratio if alone.predicted_ms else None)


def eagle3_choice(
    cycle: CycleRecord,
    cost: CostModel | None,
    max_nodes: int,
    residency: Residency = UNKNOWN,
    fuller: CycleRecord | None = None,
) -> Choice:
    """EAGLE-3's tree: the most probable nodes of `fuller`, a record of the same place that drafted every level.

    Without one, of the nodes that this cycle drafted, as if EAGLE-3 had drafted no further either.
    """
    source = fuller or cycle
    nodes = eagle3_nodes(source.pool, min(max_nodes, len(source.pool)))
    return choice("EAGLE-3", source, nodes, cost, residency)


def eagle3_nodes(pool: DraftPool, count: int) -> tuple[int, ...]:
    """EAGLE-3's choice from this pool: the `count` most probable nodes."""
    return prefix_tree(CycleState(pool, Routes(0, (0,) * len(pool), 0, 0)), count)


def known_routes(cycle: CycleRecord, nodes: Sequence[int], *, true: bool) -> Routes | None:
    """Routes of the whole pool, right for the root and `nodes`; None if the record lacks one of them.

    true: what the target routed, from the atlas or the verifying forward, with the selection's estimate where neither
    has the node; otherwise what the selection read, with true routes where it read none.
    """
    rows = node_rows(cycle, true=true)
    if any(node not in rows for node in nodes):
        return None
    others = tuple(rows.get(node, 0) for node in range(len(cycle.pool)))
    return Routes(rows[ROOT], others, cycle.verified.layers, cycle.verified.experts)


def node_rows(cycle: CycleRecord, *, true: bool) -> dict[int, int]:
    """Expert bitmaps of the root (ROOT) and of every node that the record has routes of, as in `known_routes`."""
    verified = dict(zip((ROOT, *cycle.selection.nodes), (cycle.verified.root, *cycle.verified.nodes), strict=True))
    atlas = _rows(None if cycle.truth is None else cycle.truth.routes)
    estimate = _rows(cycle.estimate)
    return {**estimate, **atlas, **verified} if true else {**verified, **atlas, **estimate}


def _rows(routes: Routes | None) -> dict[int, int]:
    return {} if routes is None else {ROOT: routes.root, **dict(enumerate(routes.nodes))}


def union_bitmap(routes: Routes, nodes: Iterable[int]) -> int:
    """The experts that the root and `nodes` execute."""
    bitmap = routes.root
    for node in nodes:
        bitmap |= routes.nodes[node]
    return bitmap


def would_commit(cycle: CycleRecord, nodes: Sequence[int]) -> tuple[int, bool] | None:
    """Tokens that verifying `nodes` would have committed, before any cut at a stop token or a limit.

    Exact with an atlas. Without one the target's own tokens are known along the accepted path only, so the count may
    be a lower bound; the second value says which.
    """
    if tuple(nodes) == cycle.selection.nodes:
        return cycle.committed, True
    if cycle.truth is not None:
        after = cycle.truth.next_tokens
        path, _ = accepted_path(cycle.pool, nodes, [after[0], *(after[1 + node] for node in nodes)])
        return 1 + len(path), True
    path = longest_known_path(cycle, nodes)
    beyond = len(path) == len(cycle.committed_tokens)  # the last known token is in the pool, its successor unknown
    return 1 + len(path), not beyond


def longest_known_path(cycle: CycleRecord, nodes: Iterable[int]) -> tuple[int, ...]:
    """The path in `nodes` along the tokens that this cycle committed."""
    child = {(cycle.pool.parents[node], cycle.pool.tokens[node]): node for node in nodes}
    path: list[int] = []
    at = ROOT
    for token in cycle.committed_tokens:
        if (at, token) not in child:
            break
        at = child[at, token]
        path.append(at)
    return tuple(path)


def true_path(cycle: CycleRecord, nodes: Sequence[int]) -> tuple[int, ...]:
    """Nodes of the path that the target would accept from `nodes`, as far as the record tells."""
    if tuple(nodes) == cycle.selection.nodes:
        return cycle.accepted
    if cycle.truth is None:
        return longest_known_path(cycle, nodes)
    after = cycle.truth.next_tokens
    return accepted_path(cycle.pool, nodes, [after[0], *(after[1 + node] for node in nodes)])[0]


def with_ancestors(pool: DraftPool, nodes: Iterable[int], node: int) -> tuple[int, ...]:
    """`nodes` and `node` with the ancestors it needs."""
    return tuple(sorted({*nodes, *pool.path(node)}))


def without_descendants(pool: DraftPool, nodes: Iterable[int], node: int) -> tuple[int, ...]:
    """`nodes` less `node` and all that hangs below it."""
    return tuple(other for other in sorted(nodes) if node not in pool.path(other))


def deeper(cycle: CycleRecord, fuller: CycleRecord | None) -> CycleRecord | None:
    """`fuller` if it is a record of the same place whose pool begins with this cycle's and goes on; else None."""
    if fuller is None or fuller.root != cycle.root or fuller.prefix_length != cycle.prefix_length:
        return None
    return fuller if goes_on(cycle.pool, fuller.pool) else None


def goes_on(pool: DraftPool, full_pool: DraftPool | None) -> bool:
    """Whether `full_pool` begins with `pool` and holds more."""
    if full_pool is None or len(full_pool) <= len(pool):
        return False
    return full_pool.tokens[: len(pool)] == pool.tokens and full_pool.parents[: len(pool)] == pool.parents
