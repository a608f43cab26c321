"""Figures of the chapter on selection and its theory: from states, costs and theory's records to plotly figures.

`..._data` gives the plain values that the figure of the same name draws, so that they can be tested and tabled. Colours
are those of `workbench.theme` that read on a light and a dark page; grounds are transparent.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from statistics import fmean
from typing import Any

from specfit.objective import CostModel, CycleState
from specfit.select import PrefixPolicy, corner, count_subtrees, legal_subtrees, select_exact, upper_envelope
from specfit.theory import NestedCuts, Proposition1, envelopes, find_clique
from specfit.tree import DraftPool
from workbench.plotly_still import pictured
from workbench.plotly_theme import GREY, axes
from workbench.theme import METHOD_COLOURS

FAINT = "rgba(138,144,153,0.55)"
CHOSEN = "#2a80c7"  # SpecFit's blue, a shade lighter: thin lines of it must show on a dark page as well
OTHER, PLAIN = METHOD_COLOURS["eagle3"], METHOD_COLOURS["ar"]
MARKS = {"AR": ("square", PLAIN), "EAGLE-3": ("diamond", OTHER), "SpecFit": ("circle", CHOSEN)}


def frontier_data(state: CycleState, cost: CostModel, *, max_nodes: int = 7) -> dict[str, Any]:
    """(T, R) of every legal subtree, the corners of their upper envelope, and where AR, EAGLE-3 and SpecFit stand.

    Times are milliseconds. Raises ValueError for a pool of more than 50,000 legal subtrees.
    """
    total = count_subtrees(state.pool, max_nodes=max_nodes)
    if total > 50_000:
        raise ValueError(f"this pool has {total:,} legal subtrees, too many to draw; lower max_nodes")
    points = [corner(state, nodes, cost) for nodes, _, _ in legal_subtrees(state, max_nodes=max_nodes)]
    picks = {
        "AR": (),
        "EAGLE-3": PrefixPolicy(max_nodes)(state, cost).nodes,
        "SpecFit": select_exact(state, cost, max_nodes).nodes,
    }
    chosen = {name: corner(state, nodes, cost) for name, nodes in picks.items()}
    envelope = upper_envelope(state, cost, max_nodes=max_nodes)
    return {
        "subtrees": total,
        "time_ms": [float(p.ms) for p in points],
        "reward": [float(p.reward) for p in points],
        "nodes": [len(p.nodes) for p in points],
        "envelope": [(float(p.ms), float(p.reward)) for p in envelope],
        "picks": {name: (float(p.ms), float(p.reward), list(p.nodes)) for name, p in chosen.items()},
        "best": float(chosen["SpecFit"].ratio),
    }


def frontier(state: CycleState, cost: CostModel, *, max_nodes: int = 7) -> Any:
    """Every legal subtree as a point; the tangent from the origin touches Equation 5's choice, and nothing is above."""
    import plotly.graph_objects as go

    data = frontier_data(state, cost, max_nodes=max_nodes)
    reach = 1.05 * max(data["time_ms"])
    figure = go.Figure()
    figure.add_scatter(
        x=_short(data["time_ms"]),
        y=_short(data["reward"]),
        mode="markers",
        name=f"{data['subtrees']} legal subtrees",
        marker={"size": 5, "color": FAINT},
    )
    figure.add_scatter(
        x=_short(ms for ms, _ in data["envelope"]),
        y=_short(reward for _, reward in data["envelope"]),
        mode="lines+markers",
        name="best for some price of time",
        line={"color": GREY, "width": 1.5},
        marker={"size": 6},
    )
    start = 0.9 * min(data["time_ms"])
    figure.add_scatter(
        x=_short([start, reach]),
        y=_short([start * data["best"], reach * data["best"]]),
        mode="lines",
        name="tangent from the origin",
        line={"color": CHOSEN, "dash": "dot"},
    )
    for name, (ms, reward, nodes) in data["picks"].items():
        symbol, colour = MARKS[name]
        figure.add_scatter(
            x=_short([ms]),
            y=_short([reward]),
            mode="markers",
            name=f"{name}: {len(nodes)} nodes, {1000 * reward / ms:.2f} tokens/s",
            marker={"size": 13, "symbol": symbol, "color": colour, "line": {"width": 1.5, "color": GREY}},
        )
    figure.update_layout(_layout("cycle time T, ms", "expected tokens R", height=430))
    figure.update_yaxes(range=[0.95 * min(data["reward"]), 1.06 * max(data["reward"])])
    return pictured(
        figure, f"Frontier({data['subtrees']} legal subtrees, SpecFit takes {len(data['picks']['SpecFit'][2])} nodes)"
    )


def leaving_prices(cuts: NestedCuts, pool: DraftPool) -> list[float | None]:
    """Of every pool node, the price of time (tokens per second) above which no minimum cut holds it; None: never held.

    The cuts are nested, so one price a node tells all of them; infinite for a node that costs nothing.
    """
    prices: list[float | None] = [None] * len(pool)
    for index, cut in enumerate(cuts.cuts):
        above = math.inf if index == 0 else 1000 * float(cuts.prices[index - 1])
        for node in cut.nodes:
            if prices[node] is None:
                prices[node] = above
    return prices


def nested_cuts_figure(cuts: NestedCuts, pool: DraftPool) -> Any:
    """A bar for every node, as long as the price of time at which it leaves the cut; a parent never leaves first."""
    import plotly.graph_objects as go

    best = 1000 * float(max(cut.ratio for cut in cuts.cuts))
    finite = [price for price in leaving_prices(cuts, pool) if price is not None and price < math.inf]
    reach = 1.15 * max([*finite, best])
    lengths = [0.0 if price is None else min(price, reach) for price in leaving_prices(cuts, pool)]
    order = sorted(range(len(pool)), key=lambda node: (lengths[node], -node))
    figure = go.Figure()
    figure.add_bar(
        x=_short(lengths[node] for node in order),
        y=[f"node {node}, depth {pool.depths[node]}, p = {pool.path_probs[node]:.2f}" for node in order],
        orientation="h",
        marker={"color": [CHOSEN if lengths[node] >= best else FAINT for node in order]},
        showlegend=False,
    )
    figure.add_vline(
        x=float(f"{best:.6g}"),
        line={"color": OTHER, "dash": "dot"},
        annotation_text="largest R/T",
        annotation_position="bottom right",
        annotation_xshift=4,
    )
    figure.update_layout(_layout("in the cut up to this price of time, tokens per second", "", height=460))
    figure.update_layout(margin={"l": 200, "r": 20, "t": 40, "b": 50})
    return pictured(figure, f"NestedCuts({len(cuts.cuts)} cuts of {len(pool)} nodes)")


def bound_data(theory: Proposition1) -> dict[str, Any]:
    """Every cycle's ratio over lambda*, T(S*) - T(S^) in ms, and both sides of Equation 7 in percent of lambda*."""
    best = float(theory.lambda_star)
    pairs = list(zip(theory.optimal, theory.chosen, strict=True))
    return {
        "ratio": [float(rho) / best for rho in theory.ratios],
        "extra_ms": [float(optimal.ms - chosen.ms) for optimal, chosen in pairs],
        "gap_percent": 100 * float(theory.gap) / best,
        "bound_percent": 100 * theory.bound_float / best,
        "differing_percent": 100 * theory.differing / len(theory.terms),
    }


def bound_figure(theory: Proposition1) -> Any:
    """Lemma 1 and Equation 7: poor cycles are cut shorter, rich ones longer; no term of the bound is negative."""
    import plotly.graph_objects as go

    data = bound_data(theory)
    figure = go.Figure()
    figure.add_scatter(
        x=_short(data["ratio"]),
        y=_short(data["extra_ms"]),
        mode="markers",
        name="one cycle",
        marker={"size": 7, "color": [CHOSEN if ms else FAINT for ms in data["extra_ms"]]},
        showlegend=False,
    )
    figure.add_vline(x=1, line={"color": OTHER, "dash": "dot"})
    figure.add_hline(y=0, line={"color": GREY, "width": 1})
    figure.update_layout(_layout("the cycle's largest ratio / lambda*", "T(S*) - T(S^), extra ms", height=360))
    figure.update_layout(
        title={
            "text": f"gap {data['gap_percent']:.2f} %, bound {data['bound_percent']:.2f} % of lambda*; "
            f"S* differs in {data['differing_percent']:.0f} % of cycles (blue)",
            "font": {"size": 14},
            "x": 0.02,
            "xanchor": "left",
        },
        margin={"l": 60, "r": 20, "t": 50, "b": 50},
    )
    gaps = f"gap {data['gap_percent']:.2f} %, bound {data['bound_percent']:.2f} %"
    return pictured(figure, f"Proposition1({len(theory.terms)} cycles, {gaps})")


def h_figure(states: Iterable[CycleState], cost: CostModel, *, points: int = 41) -> Any:
    """h(lambda), Equation 9: the mean best of R - lambda T falls through zero at lambda*, the best throughput."""
    import plotly.graph_objects as go

    from specfit.theory.throughput import dinkelbach

    corners = envelopes(states, cost)
    best = float(dinkelbach(corners)[0])
    prices = [2 * best * step / (points - 1) for step in range(points)]
    drawn = [[(float(c.reward), float(c.ms)) for c in one] for one in corners]  # floats do for a curve
    figure = go.Figure()
    figure.add_scatter(
        x=_short(1000 * price for price in prices),
        y=_short(fmean(max(reward - price * ms for reward, ms in one) for one in drawn) for price in prices),
        mode="lines",
        line={"color": CHOSEN, "width": 2.5},
        showlegend=False,
    )
    shown = float(f"{1000 * best:.6g}")
    figure.add_vline(
        x=shown,
        line={"color": OTHER, "dash": "dot"},
        annotation_text=f"lambda* = {shown:.2f} tokens/s",
        annotation_xshift=4,
    )
    figure.add_hline(y=0, line={"color": GREY, "width": 1})
    figure.update_layout(_layout("price of time lambda, tokens per second", "h(lambda), tokens", height=340))
    return pictured(figure, f"H(lambda* = {shown:.2f} tokens/s)")


def clique_figure(vertices: Sequence[Hashable], edges: Sequence[tuple[Hashable, Hashable]], r: int) -> Any:
    """The graph on a circle; edges that the exact selection picks are heavy, and form an r-clique if there is one."""
    import plotly.graph_objects as go

    found = find_clique(vertices, edges, r) or ()
    turn = 2 * math.pi / max(1, len(vertices))
    at = {vertex: (math.cos(i * turn), math.sin(i * turn)) for i, vertex in enumerate(vertices)}
    figure = go.Figure()
    for heavy in (False, True):
        xs: list[float | None] = []
        ys: list[float | None] = []
        for a, b in edges:
            if (a in found and b in found) == heavy:
                xs += [*_short([at[a][0], at[b][0]]), None]
                ys += [*_short([at[a][1], at[b][1]]), None]
        figure.add_scatter(
            x=xs, y=ys, mode="lines", line={"color": CHOSEN if heavy else FAINT, "width": 4 if heavy else 1.5}
        )
    figure.add_scatter(
        x=_short(at[v][0] for v in vertices),
        y=_short(at[v][1] for v in vertices),
        mode="markers+text",
        text=[str(v) for v in vertices],
        textfont={"color": "#ffffff"},
        marker={"size": 30, "color": [CHOSEN if v in found else "#6b7280" for v in vertices]},
    )
    said = f"{r} vertices, pairwise adjacent: {', '.join(map(str, found))}" if found else f"no {r}-clique"
    figure.update_layout(
        _layout("", "", height=360),
        showlegend=False,
        title={"text": said, "font": {"size": 14}, "x": 0.02, "xanchor": "left"},
    )
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False, scaleanchor="x")
    return pictured(figure, f"Clique({said})")


def _layout(x: str, y: str, *, height: int) -> dict[str, Any]:
    layout = axes(x, y, height=height)
    layout["legend"] = {"orientation": "v", "x": 1.02, "y": 1}
    return layout


def _short(values: Iterable[float]) -> list[float]:
    """Six digits: enough for any eye, and a third of the notebook's bytes."""
    return [float(f"{value:.6g}") for value in values]
