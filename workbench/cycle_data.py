"""A cycle as the plain values that its pictures are drawn from: the widget, the static SVG and the tests read these.

`cycle_data` gives what depends on the cycle alone, `shown_data` what depends on the subtree that is looked at (the one
that was verified, or one that the person clicked together).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from specfit.objective import CostModel
from specfit.records import CycleRecord
from specfit.routes import pack_bitmaps
from specfit.tree import ROOT, DraftPool
from workbench.choices import Choice, ar_choice, choice, eagle3_choice, goes_on, node_rows, true_path
from workbench.residency import UNKNOWN, Residency
from workbench.theme import CELLS
from workbench.token_text import LABEL, token_text, visible
from workbench.tree_layout import tree_layout


def cycle_data(
    cycle: CycleRecord,
    *,
    tokens: Mapping[int, str],
    title: str = "",
    full_pool: DraftPool | None = None,
) -> dict[str, Any]:
    """The tree with texts, probabilities, states and positions, and the numbers that were recorded; JSON values only.

    full_pool: what a drafter that did not stop would have drafted; its further nodes show as never drafted. Ignored
    where it does not begin with the cycle's own pool.
    """
    pool = full_pool if full_pool is not None and goes_on(cycle.pool, full_pool) else cycle.pool
    layout = tree_layout(pool)
    states = node_states(cycle, pool)
    nodes = [
        {
            "id": node,
            "parent": pool.parents[node],
            "level": pool.depths[node],
            "x": layout.x[1 + node],
            "y": layout.y[1 + node],
            "p": finite(pool.path_probs[node]),
            "text": token_text(pool.tokens[node], tokens, limit=LABEL),
            "whole": token_text(pool.tokens[node], tokens),
            "state": states[node],
        }
        for node in range(len(pool))
    ]
    root = {
        "x": layout.x[0],
        "y": layout.y[0],
        "text": token_text(cycle.root, tokens, limit=LABEL),
        "whole": token_text(cycle.root, tokens),
    }
    return {
        "title": visible(title) if title else "",
        "root": root,
        "nodes": nodes,
        "drafted": len(cycle.pool),
        "chosen": list(cycle.selection.nodes),
        "committed": [token_text(token, tokens, limit=40) for token in cycle.committed_tokens],
        "width": layout.width,
        "height": layout.height,
        "pill": layout.pill_height,
        "layers": cycle.verified.layers,
        "experts": cycle.verified.experts,
        "summary": summary(cycle),
        "routes": routes_note(cycle),
    }


def node_states(cycle: CycleRecord, pool: DraftPool) -> list[str]:
    """Of every node of `pool`: accepted, rejected (selected, not accepted), left_out, or undrafted."""
    accepted, selected = set(cycle.accepted), set(cycle.selection.nodes)
    return [
        "accepted"
        if node in accepted
        else "rejected"
        if node in selected
        else "left_out"
        if node < len(cycle.pool)
        else "undrafted"
        for node in range(len(pool))
    ]


def summary(cycle: CycleRecord) -> list[list[str]]:
    """What the cycle was expected to do and what it did, as (name, value) pairs."""
    selection, counts, times = cycle.selection, cycle.counts, cycle.times
    measured = times.total_ms - times.select_ms
    predicted = number(selection.predicted_ms, 1) if selection.predicted_ms else "n/a"
    union = number(selection.union) if selection.union else "n/a"  # 0: a record whose maker knew no routes
    return [
        ["committed", f"{cycle.committed} = 1 + {len(cycle.accepted)}" if cycle.committed else "0"],
        ["drafted", f"{len(cycle.pool)} nodes, {cycle.drafted_levels} levels"],
        ["R expected", number(selection.reward, 2)],
        ["T predicted", f"{predicted} ms"],
        ["T measured", f"{number(measured, 1)} ms, selector apart"],
        ["F estimated", union],
        ["D executed", number(counts.demand)],
        ["hits", number(counts.hits)],
        ["misses", number(counts.misses)],
        ["link wait", f"{number(counts.wait_ms, 1)} ms"],
        ["draft", f"{number(times.draft_ms, 1)} ms"],
        ["select", f"{number(times.select_ms, 2)} ms"],
        ["verify", f"{number(times.verify_ms, 1)} ms"],
        ["commit", f"{number(times.commit_ms, 1)} ms"],
    ]


def routes_note(cycle: CycleRecord) -> str:
    """Where the map's routes come from, one sentence."""
    if cycle.truth is not None:
        return "Routes of all drafted nodes are the target's own (atlas)."
    if cycle.estimate is not None:
        return "Routes of verified nodes are the target's own, those of left-out nodes estimated."
    return "Only verified nodes have routes; this run kept none for the nodes left out."


def shown_data(
    cycle: CycleRecord,
    nodes: Sequence[int],
    *,
    cost: CostModel | None,
    residency: Residency = UNKNOWN,
    max_nodes: int | None = None,
    fuller: CycleRecord | None = None,
    full_levels: int | None = None,
) -> dict[str, Any]:
    """The comparison table for the subtree `nodes`, and how many experts of each kind the map shows.

    fuller: a record of the same place that drafted more levels; EAGLE-3's row is made from it. full_levels: how many
    a draft that does not stop has, if known.
    """
    chosen = cycle.selection.nodes
    if max_nodes is None:
        max_nodes = 7 if cost is None else cost.max_nodes
    eagle3 = eagle3_choice(cycle, cost, max_nodes, residency, fuller)
    rows = [
        ar_choice(cycle, cost, residency),
        eagle3,
        replace(
            choice("this run", cycle, chosen, cost, residency),
            misses=(cycle.counts.misses, cycle.counts.misses),  # recorded, so not inferred
        ),
    ]
    edited = tuple(nodes) != chosen
    if edited:
        rows.append(choice("your tree", cycle, nodes, cost, residency))
    codes = np.bincount(cell_codes(cycle, nodes, residency), minlength=len(CELLS))
    return {
        "edited": edited,
        "rows": [row_words(row) for row in rows],
        "counts": {name: int(count) for name, count in zip(CELLS, codes, strict=True)},
        "path": list(true_path(cycle, tuple(nodes))),
        "note": table_note(
            cycle, eagle3=len(eagle3.nodes), fuller=fuller, full_levels=full_levels, known=cost is not None
        ),
    }


def table_note(
    cycle: CycleRecord, *, eagle3: int, fuller: CycleRecord | None, full_levels: int | None, known: bool
) -> str:
    """In which time the rows are compared, and from which pool EAGLE-3's `eagle3` nodes are."""
    time = (
        "T and R/T are predicted by the cost model, also for this run's own tree."
        if known
        else "This run has no cost coefficients, so T and R/T are not known."
    )
    if not cycle.pool:
        return time
    if fuller is None:
        levels = f"{cycle.drafted_levels} level{'s' * (cycle.drafted_levels != 1)}"
        pool = f"{len(cycle.pool)} nodes drafted here"
        if full_levels is None or cycle.drafted_levels < full_levels:
            pool += f", as if it, too, had stopped after {levels}"
    else:
        pool = f"{len(fuller.pool)} nodes that the other run drafted at this place"
    return f"{time} AR: one token, nothing drafted. EAGLE-3: the {eagle3} most probable of the {pool}."


def row_words(row: Choice) -> list[str]:
    """name, nodes, R, T, R/T, F, misses, committed; "n/a" where the record cannot tell."""
    ratio = None if row.ratio is None else 1e3 * row.ratio
    if row.misses is None:
        misses = "n/a"
    elif row.misses[0] == row.misses[1]:
        misses = number(row.misses[0])
    else:
        misses = f"{number(row.misses[0])}–{number(row.misses[1])}"
    committed = "n/a"
    if row.committed is not None:
        committed = f"{'' if row.committed[1] else '≥ '}{row.committed[0]}"
    return [
        row.name,
        str(len(row.nodes)),
        number(row.reward, 2),
        number(row.predicted_ms, 1),
        number(ratio, 2),
        number(row.union),
        misses,
        committed,
    ]


COLUMNS = ("", "nodes", "R", "T ms", "R/T per s", "F", "misses", "commits")


def cell_codes(cycle: CycleRecord, nodes: Sequence[int], residency: Residency = UNKNOWN) -> np.ndarray:
    """What each expert did, (layers * experts,) uint8 codes of `theme.CELLS`, if `nodes` had been verified."""
    nodes = tuple(nodes)
    size = cycle.verified.layers * cycle.verified.experts
    rows = node_rows(cycle, true=True)
    if not size or any(node not in rows for node in nodes):
        return np.zeros(size, np.uint8)
    executed = _union(rows[node] for node in (ROOT, *nodes))
    kept = _union(rows[node] for node in (ROOT, *true_path(cycle, nodes)))
    everything = _union(rows.values())
    rejected = 3 * _bits(executed & ~kept, size)
    unknown, resident = residency.unknown & executed, residency.resident & executed
    codes = _bits(resident & ~unknown, size) + 2 * _bits(executed & ~resident & ~unknown, size)
    codes = codes + 3 * _bits(unknown, size) + rejected
    return (codes + 7 * _bits(everything & ~executed, size)).astype(np.uint8)


def route_rows(cycle: CycleRecord) -> bytes:
    """Expert bitmaps for hovering, root first then drafted nodes, ceil(layers * experts / 8) bytes each, little bit
    order; all zero for a node whose routes are not known."""
    rows = node_rows(cycle, true=True)
    bitmaps = [rows.get(node, 0) for node in range(ROOT, len(cycle.pool))]
    return pack_bitmaps(bitmaps, layers=cycle.verified.layers, experts=cycle.verified.experts).tobytes()


def number(value: float | None, digits: int = 0) -> str:
    """A number for people; "n/a" for None, NaN and infinity."""
    return "n/a" if value is None or not math.isfinite(value) else f"{value:,.{digits}f}"


def finite(value: float | None) -> float | None:
    """A float that JSON can carry, rounded to what a screen shows; None for NaN and infinity."""
    return None if value is None or not math.isfinite(value) else round(float(value), 6)


def _union(rows: Iterable[int]) -> int:
    bitmap = 0
    for row in rows:
        bitmap |= row
    return bitmap


def _bits(bitmap: int, size: int) -> np.ndarray:
    packed = np.frombuffer(bitmap.to_bytes((size + 7) // 8, "little"), np.uint8)
    return np.unpackbits(packed, bitorder="little", count=size)
