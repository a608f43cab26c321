"""Table 5 from any run's records: the selection theory on the pools that were really drafted, beside the paper's.

Every cycle's pool, its estimated routes and the coefficients give the choice S^, the throughput-optimal S*, the gap
between their throughputs and the bound of Equation 7. Where the records hold the target's own next token at every
pool node, the tokens that any other subtree would have committed in that cycle are known, and the gain of S* is
counted with them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, pstdev

from specfit.objective import CostModel, CycleState
from specfit.paper import TABLE_5
from specfit.records import CycleRecord, RunRecord
from specfit.select.envelope import Corner, corner
from specfit.select.exact import select_exact
from specfit.theory.throughput import Proposition1, envelopes, proposition_1_of
from specfit.tree import ROOT, DraftPool


@dataclass(frozen=True, slots=True)
class Row:
    """One row of Table 5. Empty `ours` means that the records do not tell; `note` then says why."""

    quantity: str
    ours: tuple[float, ...]
    summarization: tuple[float, ...]  # the paper's
    gsm8k: tuple[float, ...]  # the paper's
    digits: int  # after the point
    note: str = ""


def table_5(run: RunRecord, cost: CostModel, *, max_nodes: int | None = None, max_levels: int = 5) -> list[Row]:
    """All rows of Table 5 over the run's cycles, with these coefficients.

    max_nodes: K; None takes the run's own, or 7 for a run that verified no drafts (AR).
    Raises ValueError for a run without cycles, or a cycle whose records hold no routes over its pool (the message
    names it): neither those that the selection read nor those of an atlas.
    """
    if max_nodes is None:
        max_nodes = int(run.settings.get("max_nodes") or 7)
    states, cycles = recorded_states(run), [cycle for _, cycle in run.cycles()]
    theory = proposition_1_of(envelopes(states, cost, max_nodes=max_nodes))
    doubled = replace(cost, expert_ms=2 * cost.expert_ms)
    at_double = [corner(s, select_exact(s, doubled, max_nodes).nodes, doubled) for s in states]
    best = float(theory.lambda_star)
    ratios = [float(rho) for rho in theory.ratios]
    gain = acceptance_gain(cycles, theory)
    share = 100 / len(states)
    return [
        _row("Cycles", 0, {"cycles": len(states)}),
        _row("lambda* - Theta (% of lambda*)", 2, {"gap_percent": 100 * float(theory.gap) / best}),
        _row("Bound of Equation 7 (% of lambda*)", 2, {"bound_percent": 100 * theory.bound_float / best}),
        _row("Cycles with S* != S^ (%)", 1, {"different_choice_percent": share * theory.differing}),
        _row("Coefficient of variation of rho", 2, {"ratio_cv": pstdev(ratios) / fmean(ratios)}),
        _row(
            "Gain of S* with recorded acceptances (%)",
            2,
            {"recorded_gain_percent": None if gain is None else 100 * gain},
            note="no cycle records the target's next token at every pool node; that takes an atlas",
        ),
        _row(
            "Mean F(S^)/R(S^) at beta / 2 beta",
            1,
            {
                "union_per_reward": fmean(map(_demand, theory.chosen)),
                "union_per_reward_2_beta": fmean(map(_demand, at_double)),
            },
        ),
        _row(
            "Mean selected nodes at beta / 2 beta",
            2,
            {
                "selected": fmean(len(tree.nodes) for tree in theory.chosen),
                "selected_2_beta": fmean(len(tree.nodes) for tree in at_double),
            },
        ),
        _row("Mean drafted levels", 2, {"drafted_levels": fmean(cycle.drafted_levels for cycle in cycles)}),
        _row(
            f"Cycles stopped before level {max_levels} (%)",
            1,
            {"stopped_before_5_percent": share * sum(cycle.drafted_levels < max_levels for cycle in cycles)},
        ),
    ]


def render_table_5(rows: Iterable[Row]) -> str:
    """The rows as text, ours beside the paper's two workloads, notes below."""
    lines = [("", "this run", "paper, summ.", "paper, GSM8K")]
    notes = []
    for row in rows:
        shown = _numbers(row.ours, row.digits) if row.ours else "n/a"
        if row.note:
            notes.append(f"n/a: {row.note}")
        summarization, gsm8k = (_numbers(values, row.digits) for values in (row.summarization, row.gsm8k))
        lines.append((row.quantity, shown, summarization, gsm8k))
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    text = [
        "  ".join([line[0].ljust(widths[0]), *(line[c].rjust(widths[c]) for c in (1, 2, 3))]).rstrip() for line in lines
    ]
    return "\n".join([*text, *notes])


def recorded_states(run: RunRecord) -> list[CycleState]:
    """The cycle states of a run: each drafted pool with the routes that its selection read, or else the atlas's."""
    states = []
    for request, cycle in run.cycles():
        routes = cycle.estimate or (cycle.truth.routes if cycle.truth else None)
        if routes is None:
            raise ValueError(
                f"cycle {cycle.index} of request {request.request_id} records no routes over its pool ({run.method} "
                "reads none and no atlas was used); take a run of SpecFit, or one recorded with an atlas"
            )
        states.append(CycleState(cycle.pool, routes))
    if not states:
        raise ValueError("this run has no cycles yet, so there is nothing to evaluate")
    return states


def committed_by(pool: DraftPool, next_tokens: Sequence[int], nodes: Iterable[int]) -> int:
    """Tokens that verifying `nodes` would have committed: 1 + the longest selected path of the target's own tokens.

    next_tokens: (1 + n,) the target's next token after the root, then after each pool node.
    Raises ValueError for another length.
    """
    if len(next_tokens) != len(pool) + 1:
        raise ValueError(f"{len(next_tokens)} next tokens are given for the root and a pool of {len(pool)} nodes")
    children: dict[tuple[int, int], int] = {}
    for node in sorted(nodes):
        children.setdefault((pool.parents[node], pool.tokens[node]), node)
    at, committed = ROOT, 1
    while (at, next_tokens[at + 1]) in children:
        at = children[at, next_tokens[at + 1]]
        committed += 1
    return committed


def acceptance_gain(cycles: Sequence[CycleRecord], theory: Proposition1) -> float | None:
    """How many more tokens S* commits than S^ per unit of predicted time, with the target's recorded tokens.

    Over the cycles that record them at every pool node; None if there are none.
    """
    totals = {"chosen": [0, 0.0], "optimal": [0, 0.0]}
    for cycle, chosen, optimal in zip(cycles, theory.chosen, theory.optimal, strict=True):
        if cycle.truth is not None:
            for name, tree in (("chosen", chosen), ("optimal", optimal)):
                totals[name][0] += committed_by(cycle.pool, cycle.truth.next_tokens, tree.nodes)
                totals[name][1] += float(tree.ms)
    if not totals["chosen"][0]:
        return None
    rates = {name: tokens / ms for name, (tokens, ms) in totals.items()}
    return rates["optimal"] / rates["chosen"] - 1


def _row(quantity: str, digits: int, ours: Mapping[str, float | None], *, note: str = "") -> Row:
    """Our values, by the names under which `specfit.paper` has the paper's; None where the records do not tell."""
    summarization, gsm8k = zip(*(TABLE_5[name] for name in ours), strict=True)
    known = tuple(value for value in ours.values() if value is not None)
    whole = len(known) == len(ours)
    return Row(quantity, known if whole else (), summarization, gsm8k, digits, "" if whole else note)


def _demand(tree: Corner) -> float:
    return float(tree.union / tree.reward)


def _numbers(values: Sequence[float], digits: int) -> str:
    return " / ".join(f"{value:,.{digits}f}" if math.isfinite(value) else "n/a" for value in values)
