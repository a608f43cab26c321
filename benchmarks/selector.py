"""How long does a selection take, and how do the solvers compare?

    python benchmarks/selector.py            # about a minute
    python benchmarks/selector.py --quick    # fewer pools, no minimum cuts and integer programs

Times are medians over seeded pools of this process's own CPU time, so that other jobs on the machine matter less (the
integer program's solver is another process: wall time there); all solvers take turns on the same pools. The first
column is each one's time over that of Algorithm 1 on the paper's pool (18 nodes, K = 7): compare that between machines.
"cycle" is a search after every drafted level, each seeded with the choice before,
until the choice takes no node of the newest level; "5 levels" never stops early. Building states is not timed.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from time import perf_counter, process_time

from specfit.objective import CostModel, CycleState
from specfit.select import algorithm_1, count_subtrees, min_union_tree, penalized, select_exact, upper_envelope
from specfit.theory import min_cut, nested_cuts, sample_state, solve_ilp

# One machine's published intercepts and beta, for a cost of a real shape.
COST = CostModel((142.214, 147.532, 150.522, 152.269, 152.743, 163.204, 155.175, 156.068), 0.210715513)
LONG_COST = CostModel.affine(142.0, 2.0, expert_ms=0.21, max_nodes=200)
LIMIT_MS = {"200 nodes, K = 7": 1.0, "60 nodes, K = 16": 5.0}  # what the search is held to

Case = tuple[str, str, Callable[[int], object], int]  # solver, pool, work on pool number i, pools


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer pools, no minimum cuts and integer programs")
    parser.add_argument("--pools", type=int, default=40, help="pools of each size")
    quick, pools = (options := parser.parse_args()).quick, options.pools
    if quick:
        pools = min(pools, 10)
    results = measure(cases(pools, slow=not quick), rounds=3 if quick else 5)
    base = results["Algorithm 1", "18 nodes, K = 7"]
    print(f"{'solver':<32}{'pool':<20}{'ratio':>8}{'median ms':>11}{'slowest':>9}")
    for (solver, pool), times in results.items():
        median = statistics.median(times)
        ratio = median / statistics.median(base)
        note = ""
        if solver == "branch and bound" and pool in LIMIT_MS:
            note = f"   limit {LIMIT_MS[pool]:g} ms: {'kept' if median <= LIMIT_MS[pool] else 'MISSED'}"
        print(f"{solver:<32}{pool:<20}{ratio:>8.2f}{median:>11.3f}{max(times):>9.2f}{note}")


def cases(pools: int, *, slow: bool) -> list[Case]:
    """Every solver with the pools it is timed on."""
    paper = [sample_state(seed) for seed in range(pools)]
    levels = [levels_of(state) for state in paper]
    few = max(3, pools // 10)
    found: list[Case] = [
        ("Algorithm 1", "18 nodes, K = 7", lambda i: algorithm_1(paper[i], COST), pools),
        ("branch and bound", "18 nodes, K = 7", lambda i: select_exact(paper[i], COST), pools),
        ("cycle, stops as it should", "18 nodes, K = 7", lambda i: cycle(levels[i], stop=True), pools),
        ("cycle, all 5 levels", "18 nodes, K = 7", lambda i: cycle(levels[i], stop=False), pools),
        ("R - lambda T", "18 nodes, K = 7", lambda i: penalized(paper[i], COST, 0.009), pools),
        ("upper envelope", "18 nodes, K = 7", lambda i: upper_envelope(paper[i], COST), pools),
        ("count of subtrees", "18 nodes, K = 7", lambda i: count_subtrees(paper[i].pool, max_nodes=7), pools),
        ("min-union probe tree", "18 nodes, K = 7", lambda i: min_union_tree(paper[i], 7), pools),
    ]
    shapes = [(60, 4, 5, 7), (200, 10, 3, 7), (60, 4, 5, 10), (60, 4, 5, 16), (60, 10, 3, 16)]
    for nodes, width, depth, limit in shapes:
        states = [sample_state(s, width=width, levels=depth, max_pool=nodes) for s in range(max(few, pools // 2))]
        shape = f"{nodes} nodes, K = {limit}" + (" wide" if (nodes, width, limit) == (60, 10, 16) else "")
        cost = COST if limit == 7 else LONG_COST
        found.append(
            (
                "branch and bound",
                shape,
                lambda i, states=states, cost=cost, limit=limit: select_exact(states[i], cost, limit),  # type: ignore[misc]
                len(states),
            )
        )
    if slow:
        found += [
            ("minimum cut, grouped", "18 nodes, no K", lambda i: min_cut(paper[i], LONG_COST), few),
            ("minimum cut, ungrouped", "18 nodes, no K", lambda i: min_cut(paper[i], LONG_COST, grouped=False), few),
            ("all nested cuts", "18 nodes, no K", lambda i: nested_cuts(paper[i], LONG_COST), few),
            ("integer program", "18 nodes, K = 7", lambda i: solve_ilp(paper[i], COST), few),
        ]
    return found


def measure(work: Sequence[Case], *, rounds: int) -> dict[tuple[str, str], list[float]]:
    """Milliseconds by solver and pool: of every pool, the median over the rounds."""
    taken: dict[tuple[str, str], list[list[float]]] = {}
    for _ in range(rounds):
        for solver, pool, run, pools in work:
            slow = solver.startswith(("minimum", "all", "integer"))
            if slow and taken.get((solver, pool)):
                continue  # once is enough of what takes a second
            clock = perf_counter if solver.startswith("integer") else process_time
            rows = taken.setdefault((solver, pool), [[] for _ in range(pools)])
            for i in range(pools):
                start = clock()
                run(i)
                rows[i].append(1e3 * (clock() - start))
    return {key: [statistics.median(row) for row in rows] for key, rows in taken.items()}


def cycle(levels: Sequence[CycleState], *, stop: bool) -> tuple[int, ...]:
    """The searches of one decode cycle."""
    chosen: tuple[int, ...] = ()
    for level, state in enumerate(levels, 1):
        chosen = select_exact(state, COST, seed=chosen).nodes
        if stop and not any(state.pool.depths[node] == level for node in chosen):
            break
    return chosen


def levels_of(state: CycleState) -> list[CycleState]:
    """The states after each drafted level."""
    ends = [sum(depth <= level for depth in state.pool.depths) for level in range(1, state.pool.levels + 1)]
    return [CycleState(state.pool.prefix(end), state.routes.prefix(end)) for end in ends]


if __name__ == "__main__":
    main()
