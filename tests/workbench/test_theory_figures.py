"""The chapter's figures: what they draw is what the theory says, and they are small enough to keep in a notebook."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any
from xml.etree import ElementTree

import pytest
from IPython.core.formatters import DisplayFormatter

from specfit.objective import CostModel
from specfit.theory import nested_cuts, proposition_1, sample_state
from specfit.tree import ROOT
from tests.pools import PAPER_COST, small_grown_state
from workbench import theory_figures as figures

COST = CostModel.affine(8.0, 0.3, expert_ms=0.25, max_nodes=18)


def size(figure: Any) -> int:
    return len(figure.to_json())


def test_no_legal_tree_lies_above_the_tangent() -> None:
    state = small_grown_state(1)
    data = figures.frontier_data(state, COST)
    assert len(data["reward"]) == data["subtrees"]
    assert max(r / t for r, t in zip(data["reward"], data["time_ms"], strict=True)) == pytest.approx(data["best"])
    ms, reward, _ = data["picks"]["SpecFit"]
    assert reward / ms == pytest.approx(data["best"])
    assert (ms, reward) in data["envelope"]
    assert len(data["picks"]["EAGLE-3"][2]) == 7
    assert size(figures.frontier(state, COST)) < 30_000


def test_a_pool_with_too_many_trees_is_not_drawn() -> None:
    state = sample_state(0, width=4, layers=1)  # 68 nodes
    with pytest.raises(ValueError, match="too many to draw; lower max_nodes"):
        figures.frontier_data(state, CostModel((1.0,) * 17, 0.1), max_nodes=16)


def test_a_parent_never_leaves_before_its_child() -> None:
    state = small_grown_state(2)
    cuts = nested_cuts(state, COST)
    prices = figures.leaving_prices(cuts, state.pool)
    known = [-1.0 if price is None else price for price in prices]
    for node, parent in enumerate(state.pool.parents):
        assert parent == ROOT or known[parent] >= known[node]
    for cut, price in zip(cuts.cuts[1:], cuts.prices, strict=True):
        held = {node for node, leaves in enumerate(known) if leaves >= 1000 * float(price)}
        assert held == set(cut.nodes)
    assert size(figures.nested_cuts_figure(cuts, state.pool)) < 10_000


def test_the_bound_is_drawn_from_its_terms() -> None:
    found = proposition_1([small_grown_state(seed) for seed in range(12)], COST)
    data = figures.bound_data(found)
    assert 0 <= data["gap_percent"] <= data["bound_percent"]
    for ratio, extra in zip(data["ratio"], data["extra_ms"], strict=True):
        assert (ratio - 1) * extra >= 0
    assert size(figures.bound_figure(found)) < 10_000


def test_h_passes_through_zero_in_the_middle() -> None:
    curve = figures.h_figure([small_grown_state(seed) for seed in range(5)], PAPER_COST, points=21).data[0]
    assert curve.y[10] == pytest.approx(0, abs=1e-5)
    assert curve.y[0] > 0 > curve.y[-1]


@pytest.mark.parametrize(("r", "said"), [(3, "3 vertices, pairwise adjacent: a, b, c"), (4, "no 4-clique")])
def test_the_clique_is_named(r: int, said: str) -> None:
    figure = figures.clique_figure("abcd", [("a", "b"), ("b", "c"), ("a", "c"), ("c", "d")], r)
    assert figure.layout.title.text == said
    assert not any(math.isinf(x) for trace in figure.data for x in trace.x if x is not None)


def test_a_page_without_plotly_gets_a_picture_and_nothing_from_the_network() -> None:
    state = small_grown_state(2)
    made = [
        figures.frontier(state, COST),
        figures.nested_cuts_figure(nested_cuts(state, COST), state.pool),
        figures.bound_figure(proposition_1([small_grown_state(seed) for seed in range(4)], COST)),
        figures.clique_figure("abc", [("a", "b"), ("b", "c")], 2),
    ]
    for figure in made:
        data, _ = DisplayFormatter().format(figure)
        assert set(data) == {"text/plain", "image/svg+xml", "application/vnd.plotly.v1+json"}
        assert data["text/plain"] == repr(figure) and "0x" not in repr(figure)
        ElementTree.fromstring(data["image/svg+xml"])
        assert data["image/svg+xml"] == figure._repr_mimebundle_()["image/svg+xml"]
        for again in (pickle.loads(pickle.dumps(figure)), copy.deepcopy(figure)):
            assert again == figure and again._repr_mimebundle_() == figure._repr_mimebundle_()
