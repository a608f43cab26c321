"""Seeded cycles of any size for the workbench's tests: pools, routes and texts as large and as odd as they come."""

from __future__ import annotations

import numpy as np

from specfit.objective import CostModel, CycleState
from specfit.records import CycleRecord, ForwardCounts, StageTimes, Truth
from specfit.routes import Routes
from specfit.select import select_exact
from specfit.tree import ROOT, DraftPool

COST = CostModel.affine(12.0, 0.4, expert_ms=0.004)
WORDS = [
    *(" the", " cat", " sat", " on", " a", " mat", " and", " 42", ",", "."),
    *(" every", " day", " she", " sold", " eggs", " for", " 2", " dollars", " =", " Natalia"),
]
ODD = {
    0: "<img src=x onerror=alert(1)>",
    1: "\"quoted\" & 'single'",
    2: "\n\n",
    3: "\u202eright to left\u202c",
    4: "שלום עולם",
    5: "x" * 4000,
    6: "\x00\x1b[31m\x07",
    7: "</script><script>alert(1)</script>",
    8: "\ud83d",
    9: "日本語のとても長い文字列です",
    10: "👩‍👩‍👧‍👦🇩🇪",
    11: "   ",
    12: "",
    13: "{{7*7}} $x^2$ [link](javascript:alert(1))",
}


def word(token: int) -> str:
    return WORDS[token % len(WORDS)]


def pool_of(nodes: int, *, seed: int, wide: int = 4, tokens: int = 20) -> DraftPool:
    """A random pool, level by level, at most `wide` times its level nodes a level."""
    rng = np.random.default_rng(seed)
    parents: list[int] = []
    probs: list[float] = []
    level = [ROOT]
    while len(parents) < nodes:
        grown: list[int] = []
        for parent in level:
            mass = 1.0 if parent == ROOT else probs[parent]
            for share in (0.62, 0.21, 0.09):
                if len(parents) < nodes and rng.random() < 0.8:
                    parents.append(parent)
                    probs.append(mass * share * float(rng.uniform(0.7, 1.0)))
                    grown.append(len(parents) - 1)
        level = sorted(grown, key=lambda node: -probs[node])[:wide] or level
    taken: dict[int, int] = {}
    ids = []
    for parent in parents:  # siblings carry distinct tokens
        taken[parent] = taken.get(parent, int(rng.integers(tokens))) + 1
        ids.append(taken[parent] % tokens)
    return DraftPool(tuple(ids), tuple(parents), tuple(probs))


def routes_of(pool: DraftPool, *, layers: int, experts: int, top_k: int, seed: int) -> Routes:
    """Routes with a few experts that everyone likes."""
    rng = np.random.default_rng(seed)
    weight = rng.dirichlet(np.full(experts, 0.5), size=layers) + 1e-4

    def rows() -> np.ndarray:
        scores = np.log(weight) + rng.gumbel(size=(layers, experts))
        return np.argsort(-scores, axis=1)[:, :top_k]

    return Routes.from_indices(rows(), np.array([rows() for _ in range(len(pool))]), experts=experts)


def cycle_of(
    nodes: int = 18,
    *,
    layers: int = 48,
    experts: int = 128,
    top_k: int = 8,
    seed: int = 1,
    atlas: bool = True,
    cost: CostModel = COST,
) -> CycleRecord:
    """One recorded cycle with SpecFit's choice, and a target that follows the likeliest path part of the way."""
    pool = pool_of(nodes, seed=seed)
    routes = routes_of(pool, layers=layers, experts=experts, top_k=top_k, seed=seed)
    selection = select_exact(CycleState(pool, routes), cost)
    children = pool.children()
    after = [pool.tokens[children[ROOT][0]] if ROOT in children else 3]
    after += [pool.tokens[children[node][0]] if node in children and node % 5 != 4 else 19 for node in range(nodes)]
    path: list[int] = []
    at, token = ROOT, after[0]
    while True:
        step = [node for node in children.get(at, ()) if pool.tokens[node] == token and node in selection.nodes]
        if not step:
            break
        at = step[0]
        path.append(at)
        token = after[1 + at]
    verified = Routes(routes.root, tuple(routes.nodes[node] for node in selection.nodes), layers, experts)
    bitmap = verified.root
    for row in verified.nodes:
        bitmap |= row
    demand = bitmap.bit_count()
    return CycleRecord(
        index=3,
        prefix_length=57,
        root=7,
        pool=pool,
        estimate=routes,
        truth=Truth(routes, tuple(after)) if atlas else None,
        selection=selection,
        verified=verified,
        accepted=tuple(path),
        committed_tokens=(*(pool.tokens[node] for node in path), token),
        counts=ForwardCounts(demand, demand - demand // 3, demand // 3, 3.25),
        times=StageTimes(8.1, 1.42, 38.6, 0.7),
    )
