"""A live run in a real JupyterLab: start, follow, stop, errors; and the same with the keyboard alone."""

import pytest

from tests.browser.lab import contrast

SETUP = """from tests.workbench.test_live import ToyEngine
from tests.toys import TOY_COST
from workbench import LiveRun
engine = ToyEngine(pause=0.05)
live = LiveRun(engine, [("first question", (1, 2, 3)), ("second", (4, 5))], cost=TOY_COST, max_new_tokens=20_000)"""
CLICKED = "clicked = []; live.controls.stop_button.on_click(lambda _: clicked.append(engine.decoding.begun))"


@pytest.fixture
def page(lab):
    lab.open("live.ipynb", SETUP, CLICKED, "live").run_all()
    lab.theme("Light")
    lab.page.get_by_role("button", name="Start", exact=True).wait_for()
    return lab


def wait_for(page, expression, expected="True"):
    for _ in range(200):
        if page.value(expression) == expected:
            return
        page.page.wait_for_timeout(50)
    assert page.value(expression) == expected


def test_start_follow_and_stop(page, shots):
    page.page.get_by_role("button", name="Start", exact=True).click()
    page.page.wait_for_selector(".sf-node")
    wait_for(page, "live.drawings >= 3")
    page.page.wait_for_timeout(300)
    page.page.screenshot(path=shots / "live-running.png")
    assert "tokens" in page.page.locator(".widget-label", has_text="cycles").first.inner_text()
    page.page.get_by_role("button", name="Stop", exact=True).click()
    wait_for(page, "live.running", "False")
    ended = int(page.value("engine.decoding.begun"))
    assert ended <= int(page.value("clicked[0]")) + 2  # counted from when the kernel had the click
    page.page.get_by_text("Stopped after").first.wait_for()
    assert page.value("live.run.complete") == "False"


def test_the_keyboard_alone_starts_and_stops(page):
    page.page.get_by_role("button", name="Start", exact=True).focus()
    page.page.keyboard.press("Enter")
    wait_for(page, "live.running")
    page.page.keyboard.press("Tab")
    page.page.keyboard.press("Space")
    wait_for(page, "live.running", "False")


def test_walking_back_stays_where_the_person_is(page):
    page.page.get_by_role("button", name="Start", exact=True).click()
    wait_for(page, "live.drawings >= 2")
    page.page.get_by_role("button", name="first cycle").click()
    wait_for(page, "live.controls.follow.value", "False")
    page.page.wait_for_timeout(600)
    assert page.value("live.side.strip.at") == "0"
    page.page.get_by_role("button", name="Stop", exact=True).click()
    wait_for(page, "live.running", "False")


def test_an_error_is_a_sentence(lab):
    lab.open(
        "live_error.ipynb",
        SETUP.rpartition("\n")[0],
        "live = LiveRun(ToyEngine(fails=ValueError('the prompt is <b>too</b> long')), ['x'], cost=TOY_COST)\nlive",
    ).run_all()
    lab.page.get_by_role("button", name="Start", exact=True).click()
    said = lab.page.get_by_text("The run ended with an error: the prompt is <b>too</b> long")
    said.wait_for()
    grounds = {}
    for theme in ("Light", "Dark"):
        lab.theme(theme)
        grounds[theme] = said.evaluate(
            """label => {
              let box = label;
              while (getComputedStyle(box).backgroundColor === "rgba(0, 0, 0, 0)") box = box.parentElement;
              return [getComputedStyle(label).color, getComputedStyle(box).backgroundColor];
            }"""
        )
        assert contrast(*grounds[theme]) > 4.5, grounds
    assert grounds["Light"][0] != grounds["Dark"][0]


def test_the_kernel_restarts_in_the_middle_of_a_run(page):
    page.page.get_by_role("button", name="Start", exact=True).click()
    wait_for(page, "live.drawings >= 2")
    page.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    page.page.wait_for_timeout(1500)
    page.run_all()
    page.page.get_by_role("button", name="Start", exact=True).click()
    wait_for(page, "live.drawings >= 2")
    page.page.get_by_role("button", name="Stop", exact=True).click()
    wait_for(page, "live.running", "False")


def test_a_live_run_that_was_never_shown_is_replaced_without_an_error(lab):
    again = SETUP.rpartition("\n")[2]
    below = "print('\\n' * 120)"  # the next cell is out of sight, so its widget is drawn when it is gone already
    lab.open("live_again.ipynb", SETUP, again, f"{again}\nlive", below, f"{again}\nlive", f"{again}\nlive").run_all()
    button = lab.page.get_by_role("button", name="Start", exact=True)
    button.last.wait_for()
    lab.page.wait_for_timeout(1500)  # a closed widget that a page still loads would complain now
    button.last.click()
    wait_for(lab, "live.drawings >= 2")
    lab.page.get_by_role("button", name="Stop", exact=True).last.click()
    wait_for(lab, "live.running", "False")
