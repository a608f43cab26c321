"""The chapter on live runs as a person uses it: the real embedded engine behind an emulated link, in a real JupyterLab.

Nothing is replaced: the notebook's own cells load the model, a click starts it, cycles come in, a click stops it within
a cycle, and a short run is left to finish; both are kept in run folders that open.
"""

import json
import shutil
from pathlib import Path

import pytest

from specfit.run_folder import load_run

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def wait_for(page, expression, expected="True", tries=300):
    for _ in range(tries):
        if page.value(expression) == expected:
            return
        page.page.wait_for_timeout(100)
    assert page.value(expression) == expected


def cells_until(notebook, marker):
    """Sources of the code cells up to and including the one that contains `marker`."""
    sources = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    (last,) = (at for at, source in enumerate(sources) if marker in source)
    return sources[: last + 1]


def button(page, name):
    return page.page.get_by_role("button", name=name, exact=True)


def fill(page, **values):
    for name, value in values.items():
        page.page.get_by_label(name.replace("_", " ")).fill(str(value))
        page.page.keyboard.press("Tab")


@pytest.fixture
def page(lab, folder):
    shutil.copytree(NOTEBOOKS / "runs", folder / "runs", dirs_exist_ok=True)
    notebook = json.loads((NOTEBOOKS / "07_live_run.ipynb").read_text(encoding="utf-8"))
    lab.open("07_live_run.ipynb", *cells_until(notebook, "workbench.LiveRun(")).run_all()
    lab.theme("Light")
    button(lab, "Start").wait_for()
    return lab


def test_a_run_of_the_real_engine_starts_stops_and_finishes(page, shots):
    assert page.value("(live.controls.slots.value, live.controls.link.value)") == "(24, 0.3)"
    # A token a cycle and a slow link: some thirty seconds of decoding, so that Stop comes in its midst on any machine.
    page.page.get_by_label("method").select_option("AR")
    fill(page, slots_per_layer=6, emulated_link=30, tokens_at_most=120)
    button(page, "Start").click()
    page.page.wait_for_selector(".sf-piece.now")
    wait_for(page, "len(live.run.cycles()) >= 4", tries=900)
    assert page.page.locator(".sf-cycle .sf-title").inner_text().startswith("question 0")
    asked = int(page.value("len(live.run.cycles())"))
    button(page, "Stop").click()
    wait_for(page, "live.running", "False")
    page.page.get_by_text("Stopped after").first.wait_for()
    stopped = load_run(eval_path(page))
    assert not stopped.complete and asked <= len(stopped.cycles())
    assert stopped.settings["slots_per_layer"] == 6 and stopped.settings["link"]["kind"] == "emulated"

    page.page.get_by_label("method").select_option("SpecFit")
    fill(page, slots_per_layer=24, emulated_link=0.3, tokens_at_most=24)
    button(page, "Start").click()
    page.page.get_by_text("Finished (limit): 24 tokens").wait_for()
    page.page.locator('.sf-piece[data-at="1"]').first.click()
    page.page.wait_for_selector(".sf-node.accepted")
    page.page.screenshot(path=shots / "live-real-engine.png")
    finished = load_run(eval_path(page))
    assert finished.complete and len(finished.requests[0].output_tokens) == 24
    pairs = zip(finished.requests[0].output_tokens, stopped.requests[0].output_tokens, strict=False)
    assert all(mine == plain for mine, plain in pairs)  # lossless, as far as both go
    assert page.value("live.error") == "None"
    page.theme("Dark")
    page.page.screenshot(path=shots / "live-real-engine-dark.png")


def test_running_the_cell_again_frees_the_old_engine(page):
    button(page, "Start").click()
    wait_for(page, "live.run is not None", tries=900)  # the engine loads, and an atlas is recorded
    page.value("globals().__setitem__('old', live) or globals().__setitem__('old_engine', live._engine)")
    page.page.evaluate(
        """() => { const panel = window.jupyterapp.shell.currentWidget;
                   panel.content.activeCellIndex = panel.content.widgets.length - 1; }"""
    )
    page.command("notebook:run-cell")
    wait_for(page, "live is not old")
    assert page.value("old.running, old._engine, live._engine") == "(False, None, None)"
    assert page.value("old_engine.target is None") == "True"
    button(page, "Start").wait_for()
    page.page.wait_for_timeout(1000)
    assert page.page.locator(".widget-button", has_text="Start").count() == 1


def eval_path(page):
    """The folder of the last run, as the kernel knows it."""
    return Path(page.value("str(live.saved)").strip("'"))
