"""The player in a real JupyterLab: scrub, step, play, filter, text, two runs, and pages where no widget runs."""

import subprocess
import sys

import pytest

SETUP = """from tests.toys import *
from workbench.player import CyclePlayer
player = CyclePlayer(toy_run(SPECFIT), cost=TOY_COST)"""


@pytest.fixture
def page(lab):
    lab.open("player.ipynb", SETUP, "player").run_all()
    lab.theme("Light")
    lab.page.wait_for_selector(".sf-node")
    return lab


def wait_value(page, expression, expected):
    for _ in range(60):
        if page.value(expression) == expected:
            return
        page.page.wait_for_timeout(50)
    assert page.value(expression) == expected


def test_step_scrub_and_read(page, shots):
    page.page.get_by_role("button", name="one cycle on").click()
    wait_value(page, "player.cycle.index", "1")
    page.page.locator('.sf-piece[data-at="4"]').first.click()
    wait_value(page, "player.cycle.index", "4")
    assert page.page.locator(".sf-piece.now").count() == int(page.value("player.cycle.committed"))
    assert "cycle 5 of" in page.page.locator(".sf-cycle .sf-title").inner_text()
    box = page.page.locator(".sf-timeline").bounding_box()
    page.page.mouse.click(box["x"] + box["width"] - 3, box["y"] + 40)
    wait_value(page, "player.sides[0].strip.at", "38")
    page.page.locator(".sf-slider").fill("20")
    wait_value(page, "player.sides[0].strip.at", "20")
    page.page.screenshot(path=shots / "player.png")
    page.theme("Dark")
    page.page.screenshot(path=shots / "player-dark.png")


def test_play_and_pause(page):
    page.page.get_by_label("speed").select_option("5")
    page.page.get_by_role("button", name="play").click()
    page.page.wait_for_function("() => Number(document.querySelector('.sf-slider').value) >= 3")
    page.page.get_by_role("button", name="pause").click()
    page.page.wait_for_timeout(500)
    at = int(page.value("player.sides[0].strip.at"))
    assert 3 <= at < 38
    page.page.wait_for_timeout(700)
    assert int(page.value("player.sides[0].strip.at")) == at


def test_filters_and_keys(page):
    page.page.get_by_label("question").select_option("1")
    wait_value(page, "player.request.question_id", "1")
    page.page.get_by_label("which cycles").select_option("gap")
    wait_value(page, "player.sides[0].strip.order", "'gap'")
    page.page.get_by_label("question").select_option("-1")
    wait_value(page, "player.sides[0].strip.question", "-1")
    page.page.locator(".sf-timeline").focus()
    page.page.keyboard.press("ArrowRight")
    page.page.keyboard.press("ArrowRight")
    wait_value(page, "player.sides[0].strip.at", "2")
    page.page.keyboard.press("End")
    wait_value(page, "player.sides[0].strip.at == len(player.sides[0]._order) - 1", "True")
    page.page.keyboard.press("Home")
    wait_value(page, "player.sides[0].strip.at", "0")


@pytest.mark.parametrize("lab", [2400], indirect=True)  # cells below the fold are not drawn at all
def test_two_runs_and_a_frontier(lab, shots):
    lab.open(
        "two.ipynb",
        SETUP,
        "two = CyclePlayer(toy_run(SPECFIT), toy_run(EAGLE3), cost=TOY_COST)",
        "two",
        "two.view.frontier()",
    ).run_all()
    lab.theme("Light")
    lab.page.wait_for_selector(".sf-node")
    lab.page.wait_for_selector(".js-plotly-plot .point", timeout=60_000)
    lab.page.locator('.sf-piece[data-at="6"]').first.click()
    lab.page.wait_for_timeout(600)
    one, other = (int(lab.value(f"two.sides[{i}].here[2].prefix_length")) for i in (0, 1))
    assert other <= one < other + 8
    lab.page.locator('.sf-node[data-node="1"]').first.click()
    lab.page.wait_for_timeout(600)
    assert lab.page.locator(".js-plotly-plot").count() == 1
    lab.page.screenshot(path=shots / "two-runs.png")


def test_no_run_is_a_sentence_where_the_person_looks(lab):
    lab.open("norun.ipynb", "from workbench.player import CyclePlayer", "CyclePlayer('nowhere')").run_all()
    lab.page.wait_for_selector(".sf-notice")
    assert "no run folder" in lab.page.locator(".sf-strip .sf-notice").inner_text()


def test_a_kernel_that_was_restarted_is_a_sentence_and_not_a_view_out_of_step(page):
    page.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    page.page.wait_for_timeout(1000)
    page.page.get_by_role("button", name="play").click()
    page.page.locator(".sf-strip .sf-notice", has_text="The kernel does not answer").wait_for()
    assert page.page.locator(".sf-strip .sf-readout").inner_text().startswith("1 of ")
    assert page.page.locator(".sf-slider").input_value() == "0"
    assert page.page.get_by_role("button", name="pause").count() == 0
    page.page.get_by_label("which cycles").select_option("gap")
    page.page.wait_for_timeout(4500)
    assert page.page.get_by_label("which cycles").input_value() == "all"
    selected = '.sf-node[aria-selected="true"]'
    before = page.page.locator(selected).count()
    page.page.locator(selected).last.click()
    page.page.locator(".sf-cycle .sf-notice", has_text="The kernel does not answer").wait_for()
    assert page.page.locator(selected).count() == before


def test_a_saved_notebook_and_an_html_export_show_the_picture(page, folder):
    page.command("docmanager:save")
    page.page.wait_for_timeout(1000)
    saved = folder / "player.ipynb"
    assert saved.stat().st_size < 300_000
    command = [sys.executable, "-m", "nbconvert", "--to", "html", "--output", "export.html", str(saved)]
    subprocess.run(command, check=True, capture_output=True, cwd=folder)
    html = (folder / "export.html").read_text()
    assert "image/svg+xml;base64," in html
