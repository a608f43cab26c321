"""The first chapter as a reader runs it: every cell in a fresh kernel, widgets alive, and its HTML export static."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


@pytest.mark.parametrize("lab", [4200], indirect=True)  # cells below the fold are not drawn at all
def test_the_first_chapter_runs(lab, folder, shots):
    shutil.copy(NOTEBOOKS / "01_one_decode_cycle.ipynb", folder)
    shutil.copytree(NOTEBOOKS / "runs", folder / "runs", dirs_exist_ok=True)
    lab.open("01_one_decode_cycle.ipynb").run_all()
    lab.theme("Light")
    lab.page.wait_for_selector(".sf-node")
    lab.page.wait_for_selector(".js-plotly-plot .point")
    assert lab.page.locator(".sf-strip").count() == 3  # the player, and two runs side by side
    assert lab.page.locator(".jp-RenderedText[data-mime-type='application/vnd.jupyter.stderr']").count() == 0
    before = lab.value("player.view.nodes")
    held = lab.value("2 in player.view.nodes")
    lab.page.locator('.sf-node[data-node="2"]').first.click()
    for _ in range(60):
        if lab.value("player.view.nodes") != before:
            break
        lab.page.wait_for_timeout(50)
    assert lab.value("player.view.nodes") != before
    assert {held, lab.value("2 in player.view.nodes")} == {"True", "False"}


def test_its_export_shows_tree_and_map_without_a_kernel(folder):
    command = [sys.executable, "-m", "nbconvert", "--to", "html", "--output-dir", str(folder)]
    subprocess.run([*command, str(NOTEBOOKS / "01_one_decode_cycle.ipynb")], check=True, capture_output=True)
    html = (folder / "01_one_decode_cycle.html").read_text()
    assert len(re.findall(r'<img[^>]*src="data:image/svg\+xml;base64,', html)) == 3
