"""The cycle view in a real JupyterLab: pointing, clicking, keys, themes."""

import json

import pytest

from tests.browser.lab import contrast

SETUP = """from tests.toys import *
from tests.workbench.worlds import *
from workbench.cycle_view import CycleView
from workbench.residency import residency_in
run = toy_run(SPECFIT)
request, cycle = run.cycles()[4]
view = CycleView(cycle, tokens=run.tokens, cost=TOY_COST, residency=residency_in(run, request, 4), title="cycle 5")"""


@pytest.fixture
def page(lab):
    lab.open("view.ipynb", SETUP, "view").run_all()
    lab.theme("Light")
    lab.page.wait_for_selector(".sf-node")
    return lab


def node(page, number):
    return page.page.locator(f'.sf-node[data-node="{number}"]')


def table(page):
    return page.page.locator(".sf-table tbody tr").all_inner_texts()


def wait_value(page, expression, expected):
    for _ in range(40):
        if page.value(expression) == expected:
            return
        page.page.wait_for_timeout(50)
    assert page.value(expression) == expected


def test_pointing_lights_both_ways(page, shots):
    node(page, 2).hover()
    readout = page.page.locator(".sf-readout")
    assert "node 2" in readout.inner_text() and "experts" in readout.inner_text()
    page.page.screenshot(path=shots / "pointing-at-a-node.png")
    box = page.page.locator(".sf-map").bounding_box()
    page.page.mouse.move(box["x"] + 34 + 3, box["y"] + 6 + 3)
    assert "layer 0, expert 0" in readout.inner_text()
    lit = {int(n.get_attribute("data-node")) for n in page.page.locator(".sf-node.lit").all()}
    needing = page.value(
        "[n for n in range(-1, 18) if (cycle.truth.routes.root if n < 0 else cycle.truth.routes.nodes[n]) & 1]"
    )
    assert lit == set(json.loads(needing))
    page.page.mouse.move(box["x"] + 10, box["y"] + 6 + 20)
    assert readout.inner_text().startswith("layer 1:")
    page.page.mouse.move(5, 5)
    page.page.wait_for_timeout(100)
    assert page.page.locator(".sf-node.lit").count() == 0


def test_clicking_builds_a_legal_tree_and_comes_back(page, shots):
    assert len(table(page)) == 3
    node(page, 3).click()
    wait_value(page, "view.nodes", "(0, 2, 3, 6, 10, 14)")
    page.page.wait_for_selector(".sf-yours")
    yours = page.page.locator(".sf-yours td").all_inner_texts()
    assert float(yours[1]) == pytest.approx(float(page.value("view.selection.reward")), abs=0.006)
    node(page, 2).click()  # its descendants leave with it
    wait_value(page, "view.nodes", "(0, 3)")
    node(page, 17).click()  # its ancestors come along
    page.page.wait_for_timeout(300)
    assert page.value("set(cycle.pool.path(17)) <= set(view.nodes)") == "True"
    page.page.screenshot(path=shots / "what-if.png")
    page.page.get_by_role("button", name="Back to this run's choice").click()
    wait_value(page, "view.nodes == cycle.selection.nodes", "True")
    assert len(table(page)) == 3


def test_a_tree_cannot_outgrow_its_limit(page):
    for leaf in (17, 16, 15, 12, 9):
        node(page, leaf).click()
        page.page.wait_for_timeout(120)
    assert int(page.value("len(view.nodes)")) <= 7
    assert "at most 7 nodes" in page.page.locator(".sf-readout").inner_text()


def test_no_click_is_lost_on_a_slow_kernel(page):
    wait_value(page, "view.observe(lambda _: __import__('time').sleep(1.5), 'asked')", "None")
    page.page.evaluate(  # at once, so that the second waits in the page until the kernel is idle
        """() => [14, 10].forEach((node) => document.querySelector(`.sf-node[data-node="${node}"]`)
                                            .dispatchEvent(new MouseEvent("click", { bubbles: true })))"""
    )
    page.page.wait_for_selector(".sf-yours")  # the first is answered
    node(page, 3).click()
    page.page.wait_for_timeout(4500)
    selected = page.page.locator('.sf-node[aria-selected="true"]').evaluate_all(
        "nodes => nodes.map(node => Number(node.dataset.node)).filter(node => node >= 0).sort((a, b) => a - b)"
    )
    assert str(tuple(selected)) == page.value("view.nodes")
    chosen = set(json.loads(page.value("list(cycle.selection.nodes)")))
    assert {3, 10, 14} ^ chosen & {3, 10, 14} == set(selected) & {3, 10, 14}


def test_keys_alone_suffice(page, shots):
    page.page.locator('.sf-node[data-node="-1"]').focus()
    keyboard = page.page.keyboard
    keyboard.press("ArrowRight")
    focused = "document.activeElement.getAttribute('data-node')"
    assert page.page.evaluate(focused) == "0"
    keyboard.press("ArrowDown")
    assert page.page.evaluate(focused) == "1"
    keyboard.press("Enter")
    wait_value(page, "1 in view.nodes", "True")
    page.page.screenshot(path=shots / "keyboard-focus.png")
    keyboard.press(" ")
    wait_value(page, "1 in view.nodes", "False")
    keyboard.press("ArrowLeft")
    assert page.page.evaluate(focused) == "-1"
    keyboard.press("ArrowRight")
    keyboard.press("Enter")
    wait_value(page, "view.nodes", "()")
    keyboard.press("Escape")
    wait_value(page, "view.nodes == cycle.selection.nodes", "True")
    keyboard.press("Tab")
    keyboard.press("ArrowRight")
    keyboard.press("ArrowRight")
    assert "layer 0, expert 1" in page.page.locator(".sf-readout").inner_text()
    keyboard.press("ArrowDown")
    assert "layer 1, expert 1" in page.page.locator(".sf-readout").inner_text()


def test_every_node_says_what_it_is(page):
    tree = page.page.get_by_role("tree")
    assert tree.get_by_role("treeitem").count() == 19
    label = node(page, 0).get_attribute("aria-label")
    assert "accepted" in label and "path probability" in label
    assert node(page, 0).get_attribute("aria-selected") == "true"


def test_it_is_legible_in_the_dark(page, shots):
    page.theme("Dark")
    ground = page.page.evaluate("getComputedStyle(document.querySelector('.sf-node.left_out .sf-pill')).fill")
    ink = page.page.evaluate("getComputedStyle(document.querySelector('.sf-node.left_out .sf-token')).fill")
    assert contrast(ground, ink) > 4.5
    assert (
        contrast(
            page.page.evaluate("getComputedStyle(document.querySelector('.sf-node.accepted .sf-pill')).fill"),
            page.page.evaluate("getComputedStyle(document.querySelector('.sf-node.accepted .sf-token')).fill"),
        )
        > 4.5
    )
    page.page.screenshot(path=shots / "cycle-dark.png")


def test_the_largest_cycle_draws_quickly_and_hostile_text_is_text(lab, shots):
    lab.open(
        "large.ipynb",
        SETUP,
        "big = [cycle_of(60, layers=94, seed=s) for s in (1, 2)]\n"
        "view = CycleView(big[0], tokens=ODD, cost=COST, title='<b>bold</b>')",
        "view",
    ).run_all()
    lab.theme("Light")
    lab.page.wait_for_selector(".sf-node")
    assert lab.page.locator(".sf-title").inner_text() == "<b>bold</b>"
    assert lab.page.locator(".sf-cycle img, .sf-cycle script, .sf-cycle b").count() == 0
    assert lab.page.locator(".sf-node").count() == 61
    lab.page.screenshot(path=shots / "largest-cycle.png")
    took = lab.page.evaluate(
        """() => {
          const nodes = [...document.querySelectorAll('.sf-node')].slice(1, 31), start = performance.now();
          for (const node of nodes) node.dispatchEvent(new PointerEvent('pointerenter'));
          return (performance.now() - start) / nodes.length;
        }"""
    )
    assert took < 60, f"{took:.1f} ms to light one node's experts"


def test_showing_it_again_and_again_leaves_no_listener(lab):
    lab.open("again.ipynb", SETUP, "view").run_all()
    lab.page.wait_for_selector(".sf-node")
    for _ in range(5):
        lab.command("notebook:run-all-cells")
        lab.page.wait_for_timeout(200)
    lab.page.wait_for_selector(".sf-node")
    assert lab.page.locator(".sf-cycle").count() == 1
    node_of = lab.page.locator('.sf-node[data-node="3"]')
    node_of.click()
    lab.page.wait_for_timeout(300)
    assert lab.value("view.nodes") == "(0, 2, 3, 6, 10, 14)"
