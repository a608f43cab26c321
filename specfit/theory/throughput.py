"""Throughput over a stream of cycles, and the paper's statements about it (Section 3.4, Appendix A.1 and A.2).

The states are recorded or constructed cycles, each equally likely, the trajectory held fixed. Everything is exact:
rewards and times are integers on the grids of `specfit.objective`, ratios are Fractions (tokens per millisecond), so
that a sign or an equality means what it says; `float()` of a result is for people. S^ is a cycle's choice by Equation
5, rho its ratio, S* its choice by R - lambda* T.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from specfit.objective import MS_GRID, PROB_GRID, CostModel, CycleState, Selection
from specfit.select.envelope import Corner, corner, upper_envelope
from specfit.select.exact import select_exact
from specfit.select.penalized import Price, penalized

Policy = Callable[[CycleState, CostModel], Selection]
Envelope = tuple[Corner, ...]


@dataclass(frozen=True, slots=True)
class Proposition1:
    """0 <= lambda* - Theta <= E[(rho - lambda*)(T(S*) - T(S^))] / E[T(S^)] (Equation 7), and its parts."""

    lambda_star: Fraction  # the best throughput of any rule, tokens per ms
    theta: Fraction  # the throughput of Equation 5
    terms: tuple[Fraction, ...]  # (cycles,) (rho - lambda*)(T(S*) - T(S^)), each at least 0
    mean_ms: Fraction  # E[T(S^)]
    ratios: tuple[Fraction, ...]  # (cycles,) rho
    chosen: tuple[Corner, ...]  # (cycles,) S^
    optimal: tuple[Corner, ...]  # (cycles,) S*

    @property
    def gap(self) -> Fraction:
        """lambda* - Theta."""
        return self.lambda_star - self.theta

    def bound(self) -> Fraction:
        """The right-hand side of Equation 7, exactly; slow for thousands of cycles, whose fractions share nothing."""
        return sum(self.terms, Fraction(0)) / len(self.terms) / self.mean_ms

    @property
    def bound_float(self) -> float:
        """The right-hand side of Equation 7, each term exact and their sum rounded once."""
        return math.fsum(map(float, self.terms)) / len(self.terms) / float(self.mean_ms)

    @property
    def differing(self) -> int:
        """Cycles in which S* is another tree than S^."""
        return sum(a.nodes != b.nodes for a, b in zip(self.chosen, self.optimal, strict=True))


@dataclass(frozen=True, slots=True)
class LevelChoice:
    """The choice over the pool of the first `level` levels."""

    level: int
    selection: Selection
    ratio: Fraction


@dataclass(frozen=True, slots=True)
class Lemma2:
    """Choices level by level, and where adaptive depth stops."""

    levels: tuple[LevelChoice, ...]  # level 0 (the root alone) to the deepest
    stopped: LevelChoice  # at the first level whose choice has no node of that level, or the deepest
    full: LevelChoice  # over the whole pool


def envelopes(states: Iterable[CycleState], cost: CostModel, *, max_nodes: int = 7) -> list[Envelope]:
    """Every cycle's corners: all that h and lambda* need. Raises ValueError for no states or a time of zero."""
    found = [upper_envelope(state, cost, max_nodes=max_nodes) for state in states]
    if not found:
        raise ValueError("there are no cycles; throughput is a mean over at least one")
    for index, corners in enumerate(found):
        if corners[0].time_steps == 0:
            raise ValueError(f"cycle {index} has a legal subtree that takes 0 ms; throughput needs positive times")
    return found


def h(corners: Sequence[Envelope], price: Price) -> Fraction:
    """E[max over S of R(S) - price * T(S)] (Equation 9): continuous and strictly decreasing in the price."""
    exact = Fraction(price)
    return sum((max(c.reward - exact * c.ms for c in one) for one in corners), Fraction(0)) / len(corners)


def optimal_at(corners: Envelope, price: Price) -> Corner:
    """The corner that maximises R - price * T, the richer one in a tie: what `penalized` selects at this price."""
    exact = Fraction(price)
    return max(corners, key=lambda c: (c.reward - exact * c.ms, c.reward_steps))


def best_corner(corners: Envelope) -> Corner:
    """The corner of the largest ratio, the richer one in a tie: what Equation 5 selects."""
    return max(corners, key=lambda c: (c.ratio, c.reward_steps))


def dinkelbach(corners: Sequence[Envelope]) -> tuple[Fraction, int]:
    """lambda* and the number of iterations: the throughput of the rule for the last price, until it stays."""
    price = _throughput(best_corner(one) for one in corners)
    iterations = 0
    while True:
        iterations += 1
        better = _throughput(optimal_at(one, price) for one in corners)
        assert better >= price, "Dinkelbach's iteration cannot fall"
        if better == price:
            return price, iterations
        price = better


def lambda_star(states: Iterable[CycleState], cost: CostModel, *, max_nodes: int = 7) -> Fraction:
    """The largest throughput that any rule reaches over these cycles, tokens per millisecond (the root of h)."""
    return dinkelbach(envelopes(states, cost, max_nodes=max_nodes))[0]


def theta(states: Iterable[CycleState], cost: CostModel, policy: Policy) -> Fraction:
    """Throughput of a rule as the proxies predict it: E[R] / E[T], tokens per millisecond."""
    return _throughput(corner(state, policy(state, cost).nodes, cost) for state in states)


def proposition_1(states: Iterable[CycleState], cost: CostModel, *, max_nodes: int = 7) -> Proposition1:
    """Both sides of Equation 7 over these cycles, and every cycle's term."""
    return proposition_1_of(envelopes(states, cost, max_nodes=max_nodes))


def proposition_1_of(corners: Sequence[Envelope]) -> Proposition1:
    """`proposition_1` from cycles' corners."""
    best, _ = dinkelbach(corners)
    chosen = tuple(map(best_corner, corners))
    optimal = tuple(optimal_at(one, best) for one in corners)
    ratios = tuple(c.ratio for c in chosen)
    terms = tuple((rho - best) * (s.ms - c.ms) for rho, s, c in zip(ratios, optimal, chosen, strict=True))
    mean_ms = Fraction(sum(c.time_steps for c in chosen), MS_GRID * len(chosen))
    return Proposition1(best, _throughput(chosen), terms, mean_ms, ratios, chosen, optimal)


def lemma_1(state: CycleState, cost: CostModel, price: Price, *, max_nodes: int = 7) -> Fraction:
    """(rho - price) * (T(S_price) - T(S^)) of one cycle, which Lemma 1 says is at least 0 for every price."""
    chosen = corner(state, select_exact(state, cost, max_nodes).nodes, cost)
    priced = corner(state, penalized(state, cost, price, max_nodes=max_nodes).nodes, cost)
    return (chosen.ratio - Fraction(price)) * (priced.ms - chosen.ms)


def demand_per_token(state: CycleState, cost: CostModel, *, expert_ms: float, max_nodes: int = 7) -> Fraction:
    """F(S^) / R(S^) with beta replaced and the intercepts kept: it can only fall as beta rises (Section 3.4)."""
    other = replace(cost, expert_ms=expert_ms)
    chosen = corner(state, select_exact(state, other, max_nodes).nodes, other)
    return chosen.union / chosen.reward


def lemma_2(state: CycleState, cost: CostModel, *, max_nodes: int = 7) -> Lemma2:
    """Choices over the pools of the first 0, 1, ... levels; node ids must go level by level.

    A price per drafted level is left out: Lemma 2 is about one cost for all levels, and compares nested families.
    """
    if list(state.pool.depths) != sorted(state.pool.depths):
        raise ValueError("this pool's node ids do not go level by level, so its first levels are not its first nodes")
    flat = replace(cost, level_ms=0.0)
    choices: list[LevelChoice] = []
    stopped = None
    for level in range(state.pool.levels + 1):
        count = sum(depth <= level for depth in state.pool.depths)
        drafted = CycleState(state.pool.prefix(count), state.routes.prefix(count))
        seed = choices[-1].selection.nodes if choices else ()
        selection = select_exact(drafted, flat, max_nodes, seed=seed)
        choices.append(LevelChoice(level, selection, corner(drafted, selection.nodes, flat).ratio))
        if level and stopped is None and not any(state.pool.depths[node] == level for node in selection.nodes):
            stopped = choices[-1]
    return Lemma2(tuple(choices), stopped or choices[-1], choices[-1])


def _throughput(corners: Iterable[Corner]) -> Fraction:
    rewards = times = 0
    for one in corners:
        rewards += one.reward_steps
        times += one.time_steps
    if not times:
        raise ValueError("throughput needs at least one cycle that takes time")
    return Fraction(rewards * MS_GRID, times * PROB_GRID)
