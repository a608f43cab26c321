"""Is one more draft token worth its experts? The arithmetic of overlap, for a first look without any search.

A token routes to top_k experts a layer. If a draft token shares part of them with the token before it, verifying both
reads fewer than twice the experts; whether that pays depends on how likely the draft is right.
"""

from __future__ import annotations

from specfit.routes import Routes
from specfit.tree import ROOT, DraftPool


def union_of_two(top_k: int, share: float) -> float:
    """Experts a layer that two neighbouring tokens need together, if they share this part of their top_k."""
    _check_share("the shared part", share)
    return top_k * (2 - share)


def chance_share(top_k: int, experts: int) -> float:
    """The part that two tokens would share if each drew its experts at random: the line to compare with."""
    if not 0 < top_k <= experts:
        raise ValueError(f"top_k is {top_k} of {experts} experts; expected at least 1 and at most all")
    return top_k / experts


def one_draft_speedup(acceptance: float, time_ratio: float) -> float:
    """Throughput with one draft token over throughput without: (1 + acceptance) / (time with / time without)."""
    _check_share("the acceptance", acceptance)
    if not time_ratio > 0:
        raise ValueError(f"the ratio of cycle times is {time_ratio}; expected a positive number")
    return (1 + acceptance) / time_ratio


def neighbour_share(pool: DraftPool, routes: Routes) -> float | None:
    """Mean part of a node's experts that its parent (or the root) uses too; None if no node has experts."""
    shares = []
    for node, parent in enumerate(pool.parents):
        own = routes.nodes[node]
        above = routes.root if parent == ROOT else routes.nodes[parent]
        if own:
            shares.append((own & above).bit_count() / own.bit_count())
    return sum(shares) / len(shares) if shares else None


def _check_share(what: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{what} is {value}; expected a number in [0, 1]")
