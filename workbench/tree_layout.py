"""Where the nodes of a draft tree stand: levels from left to right, so that a path reads like text.

Leaves get a row each, parents the middle of their children; a pool of 60 nodes fits a screen because rows move closer
together. Pixels at 100 %; widget and static picture share them.
"""

from __future__ import annotations

from dataclasses import dataclass

from specfit.tree import ROOT, DraftPool

PITCH = 106  # from level to level
PILL = 86  # width of a node
MARGIN = 6


@dataclass(frozen=True, slots=True)
class Layout:
    """Positions of the root and the nodes: left edge and middle of each pill, pixels."""

    x: tuple[float, ...]  # (1 + n,) the root first
    y: tuple[float, ...]
    width: float
    height: float
    pill_height: float


def tree_layout(pool: DraftPool) -> Layout:
    """Positions for `pool`; an empty one is the root alone."""
    children = pool.children()
    rows: dict[int, float] = {}
    leaves = 0

    def place(node: int) -> float:
        nonlocal leaves
        below = [place(child) for child in children.get(node, ())]
        if not below:
            below = [leaves]
            leaves += 1
        rows[node] = (below[0] + below[-1]) / 2
        return rows[node]

    place(ROOT)
    row = max(18.0, min(30.0, 560.0 / leaves))
    pill = row - 5 if row < 24 else 21.0
    top = MARGIN + pill / 2
    nodes = (ROOT, *range(len(pool)))
    return Layout(
        x=tuple(float(MARGIN + PITCH * (0 if node == ROOT else pool.depths[node])) for node in nodes),
        y=tuple(round(top + row * rows[node], 1) for node in nodes),
        width=2 * MARGIN + PILL + PITCH * pool.levels,
        height=round(2 * top + row * (leaves - 1), 1),
        pill_height=pill,
    )
