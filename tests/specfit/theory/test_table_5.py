"""Table 5 from records, and the arithmetic of overlap."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specfit.objective import CostModel, CycleState, evaluate
from specfit.records import CycleRecord, ForwardCounts, RequestRecord, RunRecord, StageTimes, Truth
from specfit.select import select_exact
from specfit.theory import (
    chance_share,
    committed_by,
    neighbour_share,
    one_draft_speedup,
    proposition_1,
    recorded_states,
    render_table_5,
    table_5,
    union_of_two,
)
from specfit.tree import DraftPool
from tests.pools import small_grown_state, small_state

COST = CostModel((8.0, 8.4, 8.5, 9.4, 9.1, 9.6, 9.5, 10.2), 0.31)


def cycle_of(index: int, state: CycleState, *, estimated: bool = True, truth: bool = True) -> CycleRecord:
    """A cycle whose target follows the first child wherever there is one."""
    first = state.pool.children()
    says = tuple(state.pool.tokens[first[node][0]] if node in first else -1 for node in range(-1, len(state.pool)))
    chosen = select_exact(state, COST)
    return CycleRecord(
        index=index,
        prefix_length=10,
        root=1,
        pool=state.pool,
        estimate=state.routes if estimated else None,
        truth=Truth(state.routes, says) if truth else None,
        selection=evaluate(state, chosen.nodes, COST),
        verified=state.routes.prefix(0),
        accepted=(),
        committed_tokens=(1,),
        counts=ForwardCounts(),
        times=StageTimes(),
    )


def run_of(cycles: list[CycleRecord]) -> RunRecord:
    request = RequestRecord("toy-1", 1, "toy", (1,), (1,), "", "limit", 1.0, 0.5, ForwardCounts(), tuple(cycles))
    return RunRecord({"method": "specfit", "max_nodes": 7}, {}, (request,), 6, 16)


def test_table_5_rows_are_those_of_the_theory() -> None:
    states = [small_grown_state(seed) for seed in range(20)]
    rows = {row.quantity: row for row in table_5(run_of([cycle_of(i, s) for i, s in enumerate(states)]), COST)}
    theory = proposition_1(states, COST)
    percent = 100 / float(theory.lambda_star)
    assert len(rows) == 10
    assert rows["Cycles"].ours == (20,)
    assert rows["lambda* - Theta (% of lambda*)"].ours == pytest.approx((percent * float(theory.gap),))
    assert rows["Bound of Equation 7 (% of lambda*)"].ours == pytest.approx((percent * float(theory.bound()),))
    assert rows["Cycles with S* != S^ (%)"].ours == (100 * theory.differing / 20,)
    assert rows["Mean drafted levels"].ours == (5,)
    assert rows["Cycles stopped before level 5 (%)"].ours == (0,)
    demand, demand_at_double = rows["Mean F(S^)/R(S^) at beta / 2 beta"].ours
    assert demand_at_double <= demand
    doubled = replace(COST, expert_ms=2 * COST.expert_ms)
    nodes = [[len(select_exact(s, cost).nodes) for s in states] for cost in (COST, doubled)]
    assert rows["Mean selected nodes at beta / 2 beta"].ours == pytest.approx([sum(n) / 20 for n in nodes])


def test_the_gain_counts_the_targets_own_tokens() -> None:
    states = [small_grown_state(seed) for seed in range(20)]
    cycles = [cycle_of(i, s) for i, s in enumerate(states)]
    theory = proposition_1(states, COST)
    rates = [
        sum(
            committed_by(c.pool, c.truth.next_tokens, tree.nodes)
            for c, tree in zip(cycles, trees, strict=True)
            if c.truth
        )
        / float(sum(tree.ms for tree in trees))
        for trees in (theory.chosen, theory.optimal)
    ]
    gain = next(row for row in table_5(run_of(cycles), COST) if row.quantity.startswith("Gain"))
    assert gain.ours == pytest.approx((100 * (rates[1] / rates[0] - 1),))


def test_committed_by_follows_selected_nodes_only() -> None:
    pool = DraftPool((5, 6, 7, 8), (-1, -1, 0, 2), (0.5, 0.4, 0.4, 0.3))
    says = (5, 7, 9, 8, 1)  # after the root 5, after node 0 7, after node 1 9, after node 2 8
    assert [committed_by(pool, says, nodes) for nodes in [(), (1,), (0,), (0, 1), (0, 2), (0, 1, 2, 3)]] == [
        1,
        1,
        2,
        2,
        3,
        4,
    ]
    with pytest.raises(ValueError, match="4 next tokens are given"):
        committed_by(pool, says[:4], ())


def test_the_text_has_ours_beside_the_papers() -> None:
    text = render_table_5(table_5(run_of([cycle_of(0, small_grown_state(0))]), COST))
    assert "0.74" in text
    assert "365.5 / 351.5" in text
    assert "4,407" in text
    assert "nan" not in text
    assert max(map(len, text.splitlines())) <= 120


def test_without_an_atlas_the_gain_is_not_known() -> None:
    text = render_table_5(table_5(run_of([cycle_of(0, small_grown_state(0), truth=False)]), COST))
    assert "n/a: no cycle records the target's next token" in text


def test_an_atlas_stands_in_for_an_estimate() -> None:
    state = small_grown_state(0)
    assert recorded_states(run_of([cycle_of(0, state, estimated=False)])) == [state]


def test_without_routes_or_cycles_there_is_no_table() -> None:
    bare = cycle_of(3, small_grown_state(0), estimated=False, truth=False)
    with pytest.raises(ValueError, match="cycle 3 of request toy-1 records no routes"):
        table_5(run_of([bare]), COST)
    with pytest.raises(ValueError, match="no cycles yet"):
        table_5(run_of([]), COST)


def test_case_i3_expected_gain_of_one_draft() -> None:
    assert union_of_two(4, 0.257) == pytest.approx(6.972)
    assert union_of_two(4, 0.257) / 4 == pytest.approx(1.743)
    assert one_draft_speedup(0.77, 1.59) == pytest.approx(1.113, abs=5e-4)
    assert chance_share(4, 64) == 0.0625


def test_the_measured_share_of_neighbours() -> None:
    state = small_state([(-1, 4, 0b11), (0, 4, 0b110)], root=0b01)
    assert neighbour_share(state.pool, state.routes) == 0.5
    assert neighbour_share(DraftPool((), (), ()), state.routes.prefix(0)) is None


@pytest.mark.parametrize(
    "call", [lambda: union_of_two(4, 1.2), lambda: chance_share(5, 4), lambda: one_draft_speedup(0.5, 0)]
)
def test_overlap_refuses_what_is_no_share(call: object) -> None:
    with pytest.raises(ValueError, match="expected"):
        call()  # type: ignore[operator]
