"""Policies: every rule that picks which drafted nodes to verify. A policy is (CycleState, CostModel) -> Selection."""

from specfit.select.chain import ChainPolicy, chain_tree
from specfit.select.envelope import Corner, breakpoints, corner, count_subtrees, upper_envelope
from specfit.select.exact import ExactPolicy, algorithm_1, legal_subtrees, select_exact
from specfit.select.min_union import MinUnionPolicy, min_union_tree, prefix_tree
from specfit.select.online_price import OnlinePricePolicy
from specfit.select.opt_tree import OptTreeStop
from specfit.select.penalized import PenalizedPolicy, penalized
from specfit.select.prefix import PrefixPolicy, root_only
from specfit.select.size_only import SizeOnlyPolicy, mean_unions

__all__ = [
    "ChainPolicy",
    "Corner",
    "ExactPolicy",
    "MinUnionPolicy",
    "OnlinePricePolicy",
    "OptTreeStop",
    "PenalizedPolicy",
    "PrefixPolicy",
    "SizeOnlyPolicy",
    "algorithm_1",
    "breakpoints",
    "chain_tree",
    "corner",
    "count_subtrees",
    "legal_subtrees",
    "mean_unions",
    "min_union_tree",
    "penalized",
    "prefix_tree",
    "root_only",
    "select_exact",
    "upper_envelope",
]
