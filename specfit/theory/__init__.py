"""The selection theory (Section 3.4, Appendix A), executable: throughput, minimum cuts, an integer program, CLIQUE."""

from specfit.theory.clique import CliqueInstance, clique_instance, find_clique
from specfit.theory.ilp import ilp_model, solve_ilp
from specfit.theory.mincut import NestedCuts, min_cut, min_cut_at, nested_cuts
from specfit.theory.overlap import chance_share, neighbour_share, one_draft_speedup, union_of_two
from specfit.theory.samples import sample_state
from specfit.theory.table_5 import Row, committed_by, recorded_states, render_table_5, table_5
from specfit.theory.throughput import (
    Lemma2,
    Proposition1,
    demand_per_token,
    envelopes,
    h,
    lambda_star,
    lemma_1,
    lemma_2,
    proposition_1,
    theta,
)

__all__ = [
    "CliqueInstance",
    "Lemma2",
    "NestedCuts",
    "Proposition1",
    "Row",
    "chance_share",
    "clique_instance",
    "committed_by",
    "demand_per_token",
    "envelopes",
    "find_clique",
    "h",
    "ilp_model",
    "lambda_star",
    "lemma_1",
    "lemma_2",
    "min_cut",
    "min_cut_at",
    "neighbour_share",
    "nested_cuts",
    "one_draft_speedup",
    "proposition_1",
    "recorded_states",
    "render_table_5",
    "sample_state",
    "solve_ilp",
    "table_5",
    "theta",
    "union_of_two",
]
