"""Policies: every rule that picks which drafted nodes to verify. A policy is (CycleState, CostModel) -> Selection."""

from specfit.select.envelope import Corner, breakpoints, corner, count_subtrees, upper_envelope
from specfit.select.exact import ExactPolicy, algorithm_1, legal_subtrees, select_exact
from specfit.select.min_union import min_union_tree, prefix_tree
from specfit.select.penalized import PenalizedPolicy, penalized
from specfit.select.prefix import PrefixPolicy, root_only

__all__ = [
    "Corner",
    "ExactPolicy",
    "PenalizedPolicy",
    "PrefixPolicy",
    "algorithm_1",
    "breakpoints",
    "corner",
    "count_subtrees",
    "legal_subtrees",
    "min_union_tree",
    "penalized",
    "prefix_tree",
    "root_only",
    "select_exact",
    "upper_envelope",
]
