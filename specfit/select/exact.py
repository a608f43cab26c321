"""The exact selection of Equation 5: Algorithm 1 as the paper prints it, and a branch and bound that is faster.

Both take a cycle state and frozen coefficients and give the legal subtree of at most K nodes with the largest
R(S) / T(S), ties by larger reward, smaller union, fewer nodes, smaller node ids. Both work on the integers of
`specfit.objective`, so they must agree always, and the tests say so on thousands of pools.

`select_exact` is what runs: it may be seeded with the previous level's choice (the families are nested and the tie
rule does not depend on the pool, Lemma 2, so a seed can only shorten the search, never change its answer), and may
be told to give up after some number of subtrees, which the Selection then says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from numbers import Integral
from operator import sub

from specfit.objective import (
    PROB_GRID,
    CostModel,
    CycleState,
    Selection,
    check_size,
    cost_on_grid,
    evaluate,
    probs_on_grid,
    tie_key,
)
from specfit.objective import reward as reward_of
from specfit.tree import ROOT, check_legal


@dataclass(frozen=True, slots=True)
class ExactPolicy:
    """SpecFit's rule with its knobs; a cycle loop may pass the previous level's nodes as `seed`."""

    max_nodes: int = 7
    node_limit: int | None = None  # subtrees to look at before giving up; None: prove every choice

    def __call__(self, state: CycleState, cost: CostModel, seed: tuple[int, ...] = ()) -> Selection:
        return select_exact(state, cost, self.max_nodes, seed=seed, node_limit=self.node_limit)


def algorithm_1(state: CycleState, cost: CostModel, *, max_nodes: int = 7) -> Selection:
    """Equation 5 by visiting every legal subtree (Algorithm 1).

    Raises ValueError if the cost has too few intercepts for the largest legal subtree.
    """
    limit = size_limit(state, cost, max_nodes)
    intercepts, beta = times_on_grid(state, cost)
    best: tuple[int, ...] = ()
    best_reward, best_union = PROB_GRID, state.routes.root.bit_count()
    best_time = intercepts[0] + beta * best_union
    for nodes, reward, bitmap in legal_subtrees(state, max_nodes=limit):
        union = bitmap.bit_count()
        time = intercepts[len(nodes)] + beta * union
        gain = reward * best_time - best_reward * time
        if gain > 0 or (gain == 0 and tie_key(reward, union, nodes) < tie_key(best_reward, best_union, best)):
            best, best_reward, best_union, best_time = nodes, reward, union, time
    return evaluate(state, best, cost)


def legal_subtrees(state: CycleState, *, max_nodes: int) -> Iterator[tuple[tuple[int, ...], int, int]]:
    """Every member of A_K once, depth first, as (sorted node ids, reward in steps of 2^-48, expert bitmap).

    Nodes are added in increasing id order, each only when its parent is present; the bitmap is carried from the state
    it was added to. The empty selection (the root alone) comes first.
    """
    probs, parents, routes = probs_on_grid(state.pool), state.pool.parents, state.routes.nodes
    stack: list[tuple[tuple[int, ...], int, int]] = [((), PROB_GRID, state.routes.root)]
    while stack:
        nodes, reward, bitmap = stack.pop()
        yield nodes, reward, bitmap
        if len(nodes) < max_nodes:
            first = nodes[-1] + 1 if nodes else 0
            for node in range(len(parents) - 1, first - 1, -1):  # highest id first: the stack turns the order round
                if parents[node] == ROOT or parents[node] in nodes:
                    stack.append(((*nodes, node), reward + probs[node], bitmap | routes[node]))


def select_exact(
    state: CycleState,
    cost: CostModel,
    max_nodes: int = 7,
    *,
    seed: tuple[int, ...] = (),
    node_limit: int | None = None,
) -> Selection:
    """Equation 5 by branch and bound; equal to `algorithm_1`, ties included.

    seed: a legal selection to beat, as the choice from the same pool with fewer levels.
    node_limit: subtrees to look at before giving up; the Selection then has proved=False and is still legal.
    Raises ValueError for a seed that is not legal, or a cost with too few intercepts.
    """
    return branch_and_bound(state, cost, max_nodes, seed=seed, node_limit=node_limit)


def branch_and_bound(
    state: CycleState,
    cost: CostModel,
    max_nodes: int,
    *,
    seed: tuple[int, ...] = (),
    node_limit: int | None = None,
    weights: tuple[int, int] | None = None,
) -> Selection:
    """The legal subtree with the largest R / T, or with the largest w_R * R - w_T * T if `weights` are given.

    Weights are for rewards and times in grid steps. With R0 and T0 those of the best subtree so far, R / T is above
    R0 / T0 just when T0 * R - R0 * T > 0: the ratio is the same search with weights (T0, R0) that change whenever a
    better subtree turns up.

    Every subtree belongs to the branch of the first candidate it takes, candidates being ordered by (-p, id). What can
    be added later lies behind that candidate, because a child has at most its parent's probability and a larger id.
    A node adds at least the experts that no other node uses, and every size is bounded apart since intercepts may
    fall; so the best q of the nodes behind tell whether a branch can win. A branch that can only tie is followed
    unless the tie rule itself speaks against it.
    """
    if node_limit is not None and node_limit < 0:
        raise ValueError(f"node_limit is {node_limit}; expected 0 or more subtrees, or None to prove the choice")
    limit = size_limit(state, cost, max_nodes)
    intercepts, beta = times_on_grid(state, cost)
    routes, root = state.routes.nodes, state.routes.root
    probs = probs_on_grid(state.pool)
    order = sorted(range(len(probs)), key=probs.__getitem__, reverse=True)  # stable, so equal p stay in id order

    best: tuple[int, ...] = ()
    best_reward, best_union = PROB_GRID, (root_union := root.bit_count())
    best_time = intercepts[0] + beta * best_union
    for nodes, reward, bitmap in _guesses(state, probs, order[:limit], check_legal(state.pool, seed, max_nodes=limit)):
        union = bitmap.bit_count()
        time = intercepts[len(nodes)] + beta * union
        by_reward, by_time = weights or (best_time, best_reward)
        gain = by_reward * (reward - best_reward) - by_time * (time - best_time)
        if gain > 0 or (gain == 0 and tie_key(reward, union, nodes) < tie_key(best_reward, best_union, best)):
            best, best_reward, best_union, best_time = nodes, reward, union, time

    # Places in `order` are bits: the lowest bit of a set of candidates is the one to take next.
    bits = [0] * len(order)
    for place, node in enumerate(order):
        bits[node] = 1 << place
    below = [0] * (len(order) + 1)  # a node's children; of the root's, last
    for node, parent in enumerate(state.pool.parents):
        below[parent] |= bits[node]
    private = _private_experts(state) if len(order) <= 100 else []  # beyond, next to no expert is one node's alone
    stack: list[tuple[int, tuple[int, ...], int, int, int]] = []
    if limit:
        stack = [(below[ROOT], (), PROB_GRID, root, root_union)]
    looked, stale = 0, True
    while stack:
        waiting, nodes, reward, bitmap, union = stack.pop()
        while waiting:
            if stale:  # a better subtree turned up: state the bounds in its terms
                by_reward, by_time = weights or (best_time, best_reward)
                per_expert = by_time * beta
                if private:
                    worth = [by_reward * probs[node] - per_expert * private[node] for node in order]
                else:
                    worth = [by_reward * probs[node] for node in order]
                goal = by_reward * best_reward - by_time * best_time
                needed = [goal + by_time * b for b in intercepts[: limit + 1]]  # (limit + 1,) by size
                sums: dict[int, list[int]] = {}  # by place: the most that 1, 2, ... nodes from there on are worth
                stale = False
            size = len(nodes) + 1
            value = by_reward * reward - per_expert * union
            low = waiting & -waiting
            place = low.bit_length() - 1
            if place not in sums:
                behind = sorted(worth[place:], reverse=True)[:limit] if private else worth[place : place + limit]
                sums[place] = list(accumulate(behind))
            lack = min(map(sub, needed[size:], sums[place]))
            if value < lack:
                break  # and so for every later candidate
            if value == lack:
                most = accumulate([probs[node] for node in order[place : place + limit - size + 1]], initial=reward)
                ties = [(-total, union, size + extra) for extra, total in enumerate(list(most)[1:])]
                if min(ties) > (-best_reward, best_union, len(best)):
                    break
            if looked == node_limit:
                return _selection(state, cost, best, best_union, proved=False)
            looked += 1
            waiting ^= low
            if waiting:
                stack.append((waiting, nodes, reward, bitmap, union))  # the branches without this node
            node = order[place]
            nodes, reward, bitmap = (*nodes, node), reward + probs[node], bitmap | routes[node]
            union = bitmap.bit_count()
            gain = by_reward * reward - per_expert * union - needed[size]
            if gain >= 0:
                ids = tuple(sorted(nodes))
                if gain or tie_key(reward, union, ids) < tie_key(best_reward, best_union, best):
                    best, best_reward, best_union, best_time = ids, reward, union, intercepts[size] + beta * union
                    stale = True
            waiting = waiting | below[node] if size < limit else 0
    return _selection(state, cost, best, best_union, proved=True)


def _guesses(
    state: CycleState, probs: list[int], order: list[int], seed: tuple[int, ...]
) -> Iterator[tuple[tuple[int, ...], int, int]]:
    """Legal subtrees that may be good, as `legal_subtrees` gives them: the seed, and the most probable 1, 2, ... nodes.

    order: nodes by falling probability, as many as may be chosen.
    """
    routes = state.routes.nodes
    if seed:
        bitmap = state.routes.root
        for node in seed:
            bitmap |= routes[node]
        yield seed, PROB_GRID + sum([probs[node] for node in seed]), bitmap
    reward, bitmap = PROB_GRID, state.routes.root
    for size, node in enumerate(order, 1):
        reward, bitmap = reward + probs[node], bitmap | routes[node]
        yield tuple(sorted(order[:size])), reward, bitmap


def size_limit(state: CycleState, cost: CostModel, max_nodes: int) -> int:
    """min(K, |V|), or ValueError if K is no whole number from 0 on, or the cost has no intercept for it."""
    if not isinstance(max_nodes, Integral) or max_nodes < 0:
        raise ValueError(f"max_nodes is {max_nodes!r}; expected a whole number of draft nodes, 0 or more")
    limit = min(max_nodes, len(state.pool))
    check_size(cost, limit)
    return limit


def times_on_grid(state: CycleState, cost: CostModel) -> tuple[tuple[int, ...], int]:
    """(b_0..b_K, beta) in steps of 10^-12 ms; the price of the drafted levels, one for a whole pool, is in every b."""
    intercepts, beta, gamma = cost_on_grid(cost)
    if gamma:
        drafting = gamma * state.pool.levels
        intercepts = tuple([b + drafting for b in intercepts])
    return intercepts, beta


def _private_experts(state: CycleState) -> list[int]:
    """How many of each node's (layer, expert) pairs neither the root nor another node uses."""
    once, twice = state.routes.root, 0
    for bitmap in state.routes.nodes:
        twice |= once & bitmap
        once |= bitmap
    single = once ^ twice
    return [(bitmap & single).bit_count() for bitmap in state.routes.nodes]


def _selection(state: CycleState, cost: CostModel, nodes: tuple[int, ...], union: int, *, proved: bool) -> Selection:
    """`evaluate` without counting the union again."""
    time = cost.intercepts_ms[len(nodes)] + cost.expert_ms * union + cost.level_ms * state.pool.levels
    return Selection(nodes, reward_of(state.pool, nodes), time, union, proved)
