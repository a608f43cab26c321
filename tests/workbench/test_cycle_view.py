"""The widget without a browser: what it would send, what it answers, what it leaves behind."""

import gc
import json
import re
import weakref
from dataclasses import replace
from xml.etree import ElementTree

import ipywidgets
import numpy as np
import pytest

from specfit.methods import SPECFIT
from specfit.records import ForwardCounts
from specfit.routes import bitmap_experts
from specfit.tree import EMPTY_POOL
from tests.toys import TOY_COST, toy_run
from tests.workbench.worlds import COST, ODD, cycle_of, word
from workbench.cycle_data import cell_codes, cycle_data, number, shown_data
from workbench.cycle_view import CycleView
from workbench.frontier import frontier_data
from workbench.mime import PAPER_PX
from workbench.residency import Residency, residency_in
from workbench.theme import CELLS

RUN = toy_run(SPECFIT)
REQUEST, CYCLE = RUN.cycles()[4]


def view_of(cycle=CYCLE, **more):
    return CycleView(cycle, **{"tokens": RUN.tokens, "cost": TOY_COST, **more})


def click(view, nodes, seq=None):
    """What the browser sends after a click."""
    asked = {"nodes": list(nodes), "seq": view.seq if seq is None else seq}
    view._handle_msg({"content": {"data": {"method": "update", "state": {"asked": asked}}}, "buffers": []})


def test_the_data_is_json_and_tells_the_states():
    data = cycle_data(CYCLE, tokens=RUN.tokens, title="a title")
    json.dumps(data, allow_nan=False)
    states = [node["state"] for node in data["nodes"]]
    assert {n for n, state in enumerate(states) if state == "accepted"} == set(CYCLE.accepted)
    assert {n for n, state in enumerate(states) if state in ("accepted", "rejected")} == set(CYCLE.selection.nodes)
    assert states.count("left_out") == len(CYCLE.pool) - len(CYCLE.selection.nodes)
    assert len({(node["x"], node["y"]) for node in data["nodes"]}) == len(states)  # no two on one place


def test_nodes_of_a_deeper_pool_show_as_never_drafted():
    short = replace(CYCLE, pool=CYCLE.pool.prefix(6), truth=None, estimate=CYCLE.estimate.prefix(6))
    short = replace(short, selection=replace(CYCLE.selection, nodes=(0, 2)), accepted=(0, 2))
    short = replace(short, verified=replace(CYCLE.verified, nodes=CYCLE.verified.nodes[:2]))
    data = cycle_data(short, tokens=RUN.tokens, full_pool=CYCLE.pool)
    assert [node["state"] for node in data["nodes"]][6:] == ["undrafted"] * 12
    assert data["drafted"] == 6
    other = replace(CYCLE.pool, tokens=tuple(reversed(CYCLE.pool.tokens)))
    assert len(cycle_data(short, tokens=RUN.tokens, full_pool=other)["nodes"]) == 6  # not the same draft


@pytest.mark.parametrize("nodes", [(), (0,), CYCLE.selection.nodes, (1,)])
def test_the_map_counts_what_the_routes_say(nodes):
    residency = Residency(CYCLE.verified.root, 0)
    codes = cell_codes(CYCLE, nodes, residency).reshape(RUN.layers, RUN.experts)
    executed = CYCLE.truth.routes.root
    for node in nodes:
        executed |= CYCLE.truth.routes.nodes[node]
    for layer, experts in enumerate(bitmap_experts(executed, layers=RUN.layers, experts=RUN.experts)):
        assert set(np.flatnonzero((codes[layer] > 0) & (codes[layer] < 7))) == set(experts)
    root = bitmap_experts(CYCLE.verified.root, layers=RUN.layers, experts=RUN.experts)
    assert all(CELLS[codes[layer, expert]] == "hit" for layer, ids in enumerate(root) for expert in ids)
    if not nodes:
        assert set(np.unique(codes)) <= {0, 1, 7}


def test_clicks_move_the_tree_and_its_numbers():
    view = view_of()
    click(view, [0, 2])
    assert view.nodes == (0, 2)
    assert view.selection.nodes == (0, 2)
    assert view.shown["edited"]
    assert [row[0] for row in view.shown["rows"]] == ["AR", "EAGLE-3", "this run", "your tree"]
    click(view, CYCLE.selection.nodes)
    assert not view.shown["edited"]


@pytest.mark.parametrize("nodes", [[5], [99], [-1], ["x"], [0, 0], list(range(12)), None, [0.5]])
def test_a_click_that_asks_for_no_legal_tree_changes_nothing(nodes):
    view = view_of()
    asked = {"nodes": nodes, "seq": view.seq}
    view._handle_msg({"content": {"data": {"method": "update", "state": {"asked": asked}}}, "buffers": []})
    assert view.nodes == CYCLE.selection.nodes
    assert view.seq == asked["seq"] + 1  # a refusal is an answer, or the page says that the kernel gives none


def test_the_runs_own_choice_comes_back_though_it_is_larger_than_a_what_if_tree_may_be():
    view = CycleView(CYCLE, tokens=RUN.tokens, cost=TOY_COST, max_nodes=len(CYCLE.selection.nodes) - 2)
    click(view, [0])
    click(view, CYCLE.selection.nodes)
    assert view.nodes == CYCLE.selection.nodes and not view.shown["edited"]


def test_a_click_meant_for_the_cycle_before_is_not_answered():
    view = view_of()
    old = view.seq
    view.show(RUN.requests[0].cycles[5])
    click(view, [0], seq=old)
    assert view.nodes == RUN.requests[0].cycles[5].selection.nodes


def test_setting_nodes_from_python_is_checked_in_a_sentence():
    view = view_of()
    view.nodes = (0, 2, 6)
    assert view.selection.committed == (4, True)
    with pytest.raises(ValueError, match="without its parent"):
        view.nodes = (17,)


class FakeComm:
    """Counts what a front end would get."""

    def __init__(self):
        self.sent = []
        self.comm_id = "x"

    def send(self, data=None, metadata=None, buffers=None):
        self.sent.append((data, buffers))

    def on_msg(self, callback):
        pass

    def close(self, *_, **__):
        pass


def test_one_change_is_one_small_message():
    cycle = cycle_of(60, layers=94)
    view = CycleView(cycle, cost=COST)
    view.comm = comm = FakeComm()
    view.show(cycle_of(60, layers=94, seed=2))
    assert len(comm.sent) == 1
    data, buffers = comm.sent[0]
    size = len(json.dumps(data, allow_nan=False)) + sum(map(len, map(bytes, buffers)))
    assert size < 150_000
    comm.sent.clear()
    click(view, [0])
    assert [data["method"] for data, _ in comm.sent] == ["echo_update", "update"]
    assert "cycle" not in comm.sent[-1][0]["state"]  # the tree is not sent again


def test_the_repr_is_stable_and_the_bundle_has_a_picture():
    view = view_of(title="question 0 · cycle 5 of 13")
    assert repr(view) == repr(view_of(title="question 0 · cycle 5 of 13"))
    assert "5 selected" in repr(view) and "0x" not in repr(view)
    data, _ = view._repr_mimebundle_()
    assert data["text/plain"] == repr(view)
    assert "application/vnd.jupyter.widget-view+json" in data
    ElementTree.fromstring(data["image/svg+xml"])
    assert view.svg() == view_of(title="question 0 · cycle 5 of 13").svg()


@pytest.mark.parametrize("atlas", [True, False])
def test_hostile_texts_are_text_in_the_picture(atlas):
    cycle = cycle_of(60, layers=4, atlas=atlas)
    view = CycleView(cycle, tokens=ODD, cost=COST, title='<script>"&\u202e\0')
    tree = ElementTree.fromstring(view.svg())
    tags = {element.tag.rpartition("}")[2] for element in tree.iter()}
    assert tags <= {"svg", "g", "rect", "path", "text", "title"}
    assert not any(name.startswith("on") or "href" in name for element in tree.iter() for name in element.attrib)
    json.dumps(view.cycle, allow_nan=False).encode("utf-8")


@pytest.mark.parametrize("nodes,layers", [(0, 1), (18, 12), (60, 94)])
def test_no_text_of_the_picture_leaves_it_and_a_page_shows_it_whole(nodes, layers):
    view = CycleView(cycle_of(nodes, layers=layers), cost=COST, title="a title " * 60)
    picture = ElementTree.fromstring(view.svg())
    left, _, wide, high = map(float, picture.get("viewBox").split())

    def check(element, x, y):
        move = re.match(r"translate\(([-\d.]+) ([-\d.]+)\)", element.get("transform", "")) or (0, 0, 0)
        x, y = x + float(move[1]), y + float(move[2])
        if element.tag.endswith("text"):
            start, size = x + float(element.get("x")), 0.55 * float(element.get("font-size")) * len(element.text or "")
            assert left <= start - (size if element.get("text-anchor") else 0)
            assert start + (0 if element.get("text-anchor") else size) <= left + wide
            assert y + float(element.get("y")) < high
        for child in element:
            check(child, x, y)

    check(picture, 0, 0)
    shown = ElementTree.fromstring(view._repr_mimebundle_()[0]["image/svg+xml"])
    assert float(shown.get("width")) <= PAPER_PX and shown.get("viewBox") == picture.get("viewBox")


def test_the_picture_of_a_large_cycle_is_small():
    view = CycleView(cycle_of(60, layers=94), tokens={i: word(i) for i in range(20)}, cost=COST)
    assert len(view.svg()) < 120_000


def test_an_ar_cycle_and_an_empty_view_draw():
    cycle = cycle_of(0)
    view = CycleView(cycle, cost=COST)
    assert cycle.pool == EMPTY_POOL and view.nodes == ()
    ElementTree.fromstring(view.svg())
    empty = CycleView()
    assert empty.notice and empty.selection is None and repr(empty) == "CycleView(empty)"
    assert "image/svg+xml" not in empty._repr_mimebundle_()[0]


def test_numbers_that_are_none_are_said_so():
    assert number(float("nan")) == number(float("inf")) == number(None) == "n/a"
    shown = shown_data(CYCLE, CYCLE.selection.nodes, cost=None)
    assert shown["note"] and shown["rows"][2][3] == "n/a"
    odd = replace(CYCLE, counts=ForwardCounts(5, 5, 0, float("nan")))
    json.dumps(cycle_data(odd, tokens={}), allow_nan=False)


def test_the_run_row_shows_recorded_misses():
    shown = shown_data(CYCLE, CYCLE.selection.nodes, cost=TOY_COST, residency=residency_in(RUN, REQUEST, CYCLE.index))
    assert shown["rows"][2][6] == str(CYCLE.counts.misses)


def test_closed_views_leave_nothing_behind():
    registry = ipywidgets.widgets.widget._instances
    before = len(registry)
    alive = []
    for _ in range(20):
        view = view_of()
        figure = view.frontier()
        alive.append(weakref.ref(view))  # plotly keeps its closed FigureWidgets; they must not keep our views
        figure.close()
        view.close()
        del view, figure
    gc.collect()
    assert not [ref for ref in alive if ref() is not None]
    assert len([w for w in registry.values() if isinstance(w, CycleView)]) <= before


def test_the_frontier_holds_every_legal_subtree_and_follows():
    view = view_of()
    data = frontier_data(CYCLE, TOY_COST)
    assert data["subtrees"] == len(data["time_ms"])
    best = (data["reward"] / data["time_ms"]).max()
    assert best == pytest.approx(CYCLE.selection.ratio)
    figure = view.frontier()
    view.nodes = (0,)
    assert figure.data[-1].x[0] == view.selection.predicted_ms
    view.show(RUN.requests[0].cycles[0])
    assert figure.data[-1].y[0] == pytest.approx(RUN.requests[0].cycles[0].selection.reward)
    with pytest.raises(ValueError, match="cost coefficients"):
        frontier_data(CYCLE, None)


def test_a_frontier_of_millions_is_cut_and_says_so():
    data = frontier_data(cycle_of(60), COST, limit=500)
    assert data["subtrees"] > 2_000 and data["note"].startswith("500 of")
    assert len(data["time_ms"]) <= 6_000


def test_twenty_views_leave_a_small_notebook():
    saved = 0
    for seed in range(20):
        data, _ = CycleView(
            cycle_of(18, seed=seed), tokens={i: word(i) for i in range(20)}, cost=COST
        )._repr_mimebundle_()
        saved += len(json.dumps(data))
    assert saved < 2_000_000


def test_in_colab_the_line_that_is_needed_is_said(monkeypatch):
    monkeypatch.setenv("COLAB_RELEASE_TAG", "release-colab")
    data, _ = view_of()._repr_mimebundle_()
    assert "enable_custom_widget_manager()" in data["text/plain"] and "image/svg+xml" in data


def test_eagle3_is_told_from_which_pool_it_chose():
    view = view_of()
    assert "of the 18 nodes drafted here, as if it, too, had stopped after 5 levels" in view.shown["note"]
    view.full_levels = 5
    view.show(CYCLE)
    assert "of the 18 nodes drafted here." in view.shown["note"] and "predicted by the cost model" in view.shown["note"]
    short = replace(CYCLE, pool=CYCLE.pool.prefix(6), truth=None, estimate=CYCLE.estimate.prefix(6))
    short = replace(short, selection=replace(CYCLE.selection, nodes=(0, 2)), accepted=(0, 2))
    short = replace(short, verified=replace(CYCLE.verified, nodes=CYCLE.verified.nodes[:2]))
    view.show(short, fuller=CYCLE)
    assert "of the 18 nodes that the other run drafted at this place" in view.shown["note"]
    assert view.shown["rows"][1] == view_of().shown["rows"][1]
