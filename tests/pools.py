"""Pools, routes and costs for tests, benchmarks and the notebook: seeded builders, hypothesis strategies, and a judge.

The judge works from first principles (sets of experts, Fractions, every subset of the nodes) and shares no code with
the solvers it judges.
"""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import combinations

from hypothesis import strategies as st

from specfit.objective import CostModel, CycleState, Selection
from specfit.routes import Routes
from specfit.theory.samples import sample_state
from specfit.tree import ROOT, DraftPool, is_legal

# Published for one machine (A100, expert cache on); here only to have intercepts of a real shape.
PAPER_COST = CostModel((142.214, 147.532, 150.522, 152.269, 152.743, 163.204, 155.175, 156.068), 0.210715513)


# -- pools like a drafter's -------------------------------------------------------------------------------------------


def small_grown_state(seed: int) -> CycleState:
    """18 nodes over 6 layers of 16 experts, top 2: the paper's shape, quick to build."""
    return sample_state(seed, layers=6, experts=16, top_k=2)


def levels_of(state: CycleState) -> list[CycleState]:
    """The state after each drafted level, as the cycle loop sees them; ids must go level by level."""
    ends = [sum(depth <= level for depth in state.pool.depths) for level in range(1, state.pool.levels + 1)]
    return [CycleState(state.pool.prefix(end), state.routes.prefix(end)) for end in ends]


# -- any tree, tie-rich on request ------------------------------------------------------------------------------------


def random_state(
    rng: random.Random, *, nodes: int, layers: int = 2, experts: int = 4, top_k: int = 2, steps: int = 0
) -> CycleState:
    """Any tree shape. steps > 0 draws conditional probabilities from so many values, which makes ties common."""
    parents: list[int] = []
    probs: list[float] = []
    for node in range(nodes):
        parent = rng.randrange(-1, node)
        share = rng.randrange(steps + 1) / steps if steps else rng.random()
        parents.append(parent)
        probs.append((1.0 if parent == ROOT else probs[parent]) * share)
    bits = [
        sum(1 << (layer * experts + e) for layer in range(layers) for e in rng.sample(range(experts), top_k))
        for _ in range(nodes + 1)
    ]
    pool = DraftPool(tuple(range(nodes)), tuple(parents), tuple(probs))
    return CycleState(pool, Routes(bits[0], tuple(bits[1:]), layers, experts))


def random_cost(rng: random.Random, *, max_nodes: int, steps: int = 0) -> CostModel:
    """Intercepts in any order, the smallest above zero; steps > 0 draws from so many whole milliseconds."""

    def draw(top: float) -> float:
        return float(rng.randrange(steps + 1)) if steps else rng.uniform(0.0, top)

    base = 1.0 + draw(10.0)
    return CostModel(tuple(base + draw(3.0) for _ in range(max_nodes + 1)), draw(1.0))


def odd_problem(rng: random.Random, *, largest: int = 9) -> tuple[CycleState, CostModel, int]:
    """A small state, a cost and K, of any kind: no nodes, one layer, a single expert, ties, free experts, K > n."""
    max_nodes = rng.randrange(0, 8)
    state = random_state(
        rng,
        nodes=rng.randrange(0, largest + 1),
        layers=rng.randrange(0, 3),
        experts=4,
        top_k=rng.randrange(0, 3),
        steps=rng.choice([0, 1, 2, 4]),
    )
    return state, random_cost(rng, max_nodes=max_nodes, steps=rng.choice([0, 2, 4])), max_nodes


def affine_problem(rng: random.Random, *, largest: int = 8) -> tuple[CycleState, CostModel]:
    """A small state and a cost that the minimum cut takes: affine intercepts for every size."""
    nodes = rng.randrange(0, largest + 1)
    state = random_state(
        rng, nodes=nodes, layers=rng.randrange(1, 3), top_k=rng.randrange(1, 3), steps=rng.choice([0, 1, 2, 4])
    )
    slope, beta = rng.choice([0, 0.25, 1.1]), rng.choice([0, 0.1, 0.3])
    return state, CostModel.affine(rng.randrange(1, 5), slope, expert_ms=beta, max_nodes=nodes)


# -- hypothesis: counterexamples print as a call of small_state -------------------------------------------------------


def small_state(nodes: list[tuple[int, int, int]], root: int = 0) -> CycleState:
    """A state over 2 layers of 3 experts from (parent, quarters, bitmap) a node.

    A parent beyond the nodes so far is the newest of them; quarters are fourths of the parent's probability.
    """
    parents: list[int] = []
    probs: list[float] = []
    for node, (parent, quarters, _) in enumerate(nodes):
        parents.append(min(parent, node - 1))
        probs.append((1.0 if parents[-1] == ROOT else probs[parents[-1]]) * quarters / 4)
    pool = DraftPool(tuple(range(len(nodes))), tuple(parents), tuple(probs))
    return CycleState(pool, Routes(root, tuple(bitmap for _, _, bitmap in nodes), 2, 3))


def small_cost(quarters: list[int], expert_quarters: int = 0) -> CostModel:
    """Intercepts and beta in quarters of a millisecond; the intercepts start at one millisecond."""
    return CostModel(tuple(1 + b / 4 for b in quarters), expert_quarters / 4)


small_states = st.builds(
    small_state,
    nodes=st.lists(st.tuples(st.integers(-1, 7), st.integers(0, 4), st.integers(0, 63)), max_size=8),
    root=st.integers(0, 63),
)
small_costs = st.builds(
    small_cost,
    quarters=st.lists(st.integers(0, 8), min_size=9, max_size=9),
    expert_quarters=st.integers(0, 4),
)
sizes = st.integers(0, 8)


# -- the judge --------------------------------------------------------------------------------------------------------


def exact_values(state: CycleState, nodes: tuple[int, ...], cost: CostModel) -> tuple[Fraction, Fraction, int]:
    """(reward, ms, union) in rational numbers, on the grids on which the problem is defined."""
    reward = Fraction(2**48 + sum(round(state.pool.path_probs[node] * 2**48) for node in nodes), 2**48)
    experts = set()
    for bitmap in [state.routes.root, *(state.routes.nodes[node] for node in nodes)]:
        experts |= {bit for bit in range(bitmap.bit_length()) if bitmap >> bit & 1}
    intercept, beta, gamma = (
        round(ms * 10**12) for ms in (cost.intercepts_ms[len(nodes)], cost.expert_ms, cost.level_ms)
    )
    return reward, Fraction(intercept + beta * len(experts) + gamma * state.pool.levels, 10**12), len(experts)


def rank(state: CycleState, nodes: tuple[int, ...], cost: CostModel) -> tuple[object, ...]:
    """Equation 5 with its tie rule as a sort key, smallest first."""
    reward, ms, union = exact_values(state, nodes, cost)
    return (-reward / ms if ms else -(10**30), -reward, union, len(nodes), nodes)


def ratio(state: CycleState, nodes: tuple[int, ...], cost: CostModel) -> Fraction:
    """R / T, exactly."""
    reward, ms, _ = exact_values(state, nodes, cost)
    return reward / ms


def all_legal(pool: DraftPool, max_nodes: int) -> list[tuple[int, ...]]:
    """A_K from its definition: every subset of at most K nodes that is ancestor-closed."""
    return [
        nodes
        for size in range(min(max_nodes, len(pool)) + 1)
        for nodes in combinations(range(len(pool)), size)
        if is_legal(pool, nodes)
    ]


def brute_force(state: CycleState, cost: CostModel, max_nodes: int) -> tuple[int, ...]:
    """Equation 5 by looking at every subset of the nodes."""
    return min(all_legal(state.pool, max_nodes), key=lambda nodes: rank(state, nodes, cost))


def neighbours(pool: DraftPool, nodes: tuple[int, ...], max_nodes: int) -> list[tuple[int, ...]]:
    """Legal subtrees that differ from `nodes` by one node more or one node fewer."""
    near = [tuple(sorted({*nodes} ^ {node})) for node in range(len(pool))]
    return [other for other in near if is_legal(pool, other, max_nodes=max_nodes)]


def certify(state: CycleState, cost: CostModel, max_nodes: int, selection: Selection) -> None:
    """Assert that a selection is legal, says of itself what is true, and that no neighbour has a larger ratio."""
    nodes = selection.nodes
    assert nodes == tuple(sorted(nodes))
    assert is_legal(state.pool, nodes, max_nodes=max_nodes)
    reward, ms, union = exact_values(state, nodes, cost)
    assert selection.union == union
    assert abs(selection.reward - reward) <= Fraction(len(nodes) + 1, 2**48)
    assert abs(Fraction(selection.predicted_ms) - ms) <= Fraction(1, 10**9)
    for other in neighbours(state.pool, nodes, max_nodes):
        other_reward, other_ms, _ = exact_values(state, other, cost)
        assert other_reward * ms <= reward * other_ms, f"{other} beats {nodes}"
