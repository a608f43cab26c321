"""The second half of Proposition 2: without a size limit and with affine intercepts, the choice is a minimum cut.

For one price lambda, R - lambda T over ancestor-closed subtrees is a maximum-weight closure: the source pays p_v to
take node v, taking it costs lambda * a, needs its parent and its (layer, expert) pairs, and every pair costs
lambda * beta once. Capacities are integers, so cuts are exact; the objective is computed again from the nodes found
and must equal the cut. Dinkelbach's iteration around it gives the largest ratio; intersecting lines gives every price
at which the cut changes, and the cuts are nested.

This is an independent check of the search on constructed costs, and a picture; fitted intercepts are not affine.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import networkx as nx  # type: ignore[import-untyped]
from networkx.algorithms.flow import boykov_kolmogorov  # type: ignore[import-untyped]

from specfit.objective import (
    MS_GRID,
    PROB_GRID,
    CostModel,
    CycleState,
    Selection,
    check_size,
    cost_on_grid,
    evaluate,
    probs_on_grid,
)
from specfit.routes import expert_union
from specfit.select.envelope import Corner, breakpoints, trace_envelope
from specfit.select.exact import times_on_grid
from specfit.select.penalized import Price, weights_on_grid
from specfit.tree import ROOT, is_legal

FlowFunction = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class NestedCuts:
    """The minimum cuts over all prices of time: each contains the ones before it."""

    cuts: tuple[Corner, ...]  # from the highest price (fewest nodes) to the lowest
    prices: tuple[Fraction, ...]  # (len(cuts) - 1,) falling; at prices[i] cuts i and i + 1 tie


def min_cut(state: CycleState, cost: CostModel, *, grouped: bool = True) -> Selection:
    """The largest R / T over all legal subtrees of any size, by minimum cuts inside Dinkelbach's iteration.

    Raises ValueError for intercepts that are not affine or that fall. The ratio equals `select_exact` with
    max_nodes=len(pool); among subtrees of equal ratio it may name another one.
    """
    network = ClosureNetwork(state, cost, grouped=grouped)
    best = network.corner(())
    while True:
        found = network.best_at(best.time_steps, best.reward_steps)
        if found.reward_steps * best.time_steps <= best.reward_steps * found.time_steps:
            return evaluate(state, best.nodes, cost)
        best = found


def min_cut_at(state: CycleState, cost: CostModel, price: Price, *, grouped: bool = True) -> Selection:
    """argmax R - price * T over all legal subtrees of any size, by one minimum cut; the largest set of those that tie.

    Raises ValueError for intercepts that are not affine or that fall, or a negative or infinite price.
    """
    found = ClosureNetwork(state, cost, grouped=grouped).best_at(*weights_on_grid(price))
    return evaluate(state, found.nodes, cost)


def nested_cuts(state: CycleState, cost: CostModel, *, grouped: bool = True) -> NestedCuts:
    """Every minimum cut over prices from infinity to zero, with the prices at which they change."""
    network = ClosureNetwork(state, cost, grouped=grouped)
    everything = network.time_of(len(state.pool), state.routes.layers * state.routes.experts)
    cuts = trace_envelope(network.best_at, most_reward=PROB_GRID * (1 + len(state.pool)), most_time=everything)
    return NestedCuts(cuts, breakpoints(cuts))


class ClosureNetwork:
    """The closure problem of one cycle, to be solved for several prices.

    grouped: pairs that the same minimal nodes need (nodes whose ancestors do not need the pair already) become one
    vertex of their joint cost, which leaves a few hundred of some fourteen hundred. Ungrouped, every pair has its own
    vertex and an arc from every node that routes to it: larger, and the same answer.
    flow: one of networkx's flow functions; with integer capacities they all are exact.
    """

    def __init__(
        self, state: CycleState, cost: CostModel, *, grouped: bool = True, flow: FlowFunction = boykov_kolmogorov
    ) -> None:
        check_size(cost, len(state.pool))
        self.state, self.flow = state, flow
        self.slope = affine_slope(cost, len(state.pool))
        (self.start, *_), self.beta = times_on_grid(state, cost)
        self.probs = probs_on_grid(state.pool)
        self.groups = pair_groups(state) if grouped else single_pairs(state)

    def time_of(self, nodes: int, union: int) -> int:
        """Cycle time in steps of 10^-12 ms."""
        return self.start + self.slope * nodes + self.beta * union

    def corner(self, nodes: tuple[int, ...]) -> Corner:
        """The exact reward and time of a legal subtree."""
        union = expert_union(self.state.routes, nodes)
        reward = PROB_GRID + sum(self.probs[node] for node in nodes)
        return Corner(nodes, union, reward, self.time_of(len(nodes), union))

    def best_at(self, by_reward: int, by_time: int) -> Corner:
        """Maximise by_reward * R - by_time * T, in grid steps; the largest set of those that tie."""
        gains = [by_reward * prob for prob in self.probs]
        total = sum(gains)
        unlimited = total + 1  # more than any finite cut, and finite: a path of infinite arcs has no minimum cut
        graph: nx.DiGraph = nx.DiGraph()
        graph.add_nodes_from(("source", "sink"))
        for node, gain in enumerate(gains):
            graph.add_edge("source", node, capacity=gain)
            graph.add_edge(node, "sink", capacity=by_time * self.slope)
            if self.state.pool.parents[node] != ROOT:
                graph.add_edge(node, self.state.pool.parents[node], capacity=unlimited)
        for number, (users, pairs) in enumerate(self.groups):
            graph.add_edge(("pairs", number), "sink", capacity=by_time * self.beta * pairs)
            for node in users:
                graph.add_edge(node, ("pairs", number), capacity=unlimited)
        cut, (taken, _) = nx.minimum_cut(graph, "source", "sink", flow_func=self.flow)
        found = self.corner(tuple(node for node in range(len(self.probs)) if node in taken))
        self._certify(found, total - int(cut), by_reward, by_time)  # capacities are ints, so the cut is one
        return found

    def _certify(self, found: Corner, value: int, by_reward: int, by_time: int) -> None:
        """A flow library's partition is believed only if it is legal and worth what the cut says."""
        root = self.corner(())
        gain, loss = found.reward_steps - root.reward_steps, found.time_steps - root.time_steps
        worth = by_reward * gain - by_time * loss
        if not is_legal(self.state.pool, found.nodes) or worth != value:
            raise ArithmeticError(
                f"{self.flow.__name__} returned nodes {list(found.nodes)} worth {worth}, but a cut worth {value}; "
                "use another flow function"
            )


def affine_slope(cost: CostModel, nodes: int) -> int:
    """a in b_k = b_0 + a k, in steps of 10^-12 ms, for k up to `nodes`.

    Rounding, to floats and to the grid, may bend a fitted line a little; such a line is straightened, and anything
    more refused.
    Raises ValueError for intercepts that are not affine or that fall.
    """
    intercepts = cost_on_grid(cost)[0][: nodes + 1]
    rise = intercepts[-1] - intercepts[0]
    rounding = 1 + round(4 * math.ulp(max(cost.intercepts_ms)) * MS_GRID)
    bent = any(abs(nodes * (b - intercepts[0]) - rise * k) > nodes * rounding for k, b in enumerate(intercepts))
    if rise < 0 or bent:
        shown = ", ".join(f"{b:g}" for b in cost.intercepts_ms[: nodes + 1])
        raise ValueError(
            f"min-cut needs affine, nondecreasing intercepts (Prop. 2); got b = [{shown}]; "
            "use select_exact, which takes any nonnegative intercepts"
        )
    return round(Fraction(rise, nodes)) if nodes else 0


def pair_groups(state: CycleState) -> list[tuple[tuple[int, ...], int]]:
    """(minimal nodes, number of pairs): the (layer, expert) pairs that exactly these nodes bring in first.

    A pair of the root is free; a node whose ancestor needs the pair adds nothing, as the ancestor must come along.
    """
    covered: list[int] = []  # pairs of the root, a node and its ancestors
    users: dict[int, int] = {}  # bitmap of minimal nodes, by pair
    for node, bitmap in enumerate(state.routes.nodes):
        parent = state.pool.parents[node]
        above = state.routes.root if parent == ROOT else covered[parent]
        covered.append(above | bitmap)
        for pair in _bits(bitmap & ~above):
            users[pair] = users.get(pair, 0) | 1 << node
    return [(tuple(_bits(nodes)), pairs) for nodes, pairs in sorted(Counter(users.values()).items())]


def single_pairs(state: CycleState) -> list[tuple[tuple[int, ...], int]]:
    """(nodes, 1) for every (layer, expert) pair, with all nodes that route to it; pairs of the root are free."""
    users: dict[int, list[int]] = {}
    for node, bitmap in enumerate(state.routes.nodes):
        for pair in _bits(bitmap & ~state.routes.root):
            users.setdefault(pair, []).append(node)
    return [(tuple(nodes), 1) for _, nodes in sorted(users.items())]


def _bits(bitmap: int) -> list[int]:
    found = []
    while bitmap:
        found.append((bitmap & -bitmap).bit_length() - 1)
        bitmap &= bitmap - 1
    return found
