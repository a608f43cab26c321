"""The notebooks as files: numbered, small, told what they need, with outputs and without widget state.

That they run and give what they show is nbval's business (`make test-notebooks`).
"""

import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def test_the_chapters_are_numbered_one_to_nine():
    assert [path.name[:2] for path in NOTEBOOKS] == [f"{number:02d}" for number in range(1, 10)]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_title_cell_says_what_it_shows_needs_and_takes(path):
    first = read(path)["cells"][0]
    text = "".join(first["source"])
    assert first["cell_type"] == "markdown" and text.startswith(f"# {int(path.name[:2])}. ")
    for words in ("**You will see**", "**It needs**", "**It takes**"):
        assert words in text


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_small_was_run_in_order_and_holds_no_widget_state(path):
    notebook = read(path)
    assert path.stat().st_size < 600_000
    assert "widgets" not in notebook["metadata"]
    codes = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in codes] == list(range(1, len(codes) + 1))
    for cell in codes:
        assert len("".join(cell["source"]).splitlines()) <= 14
        for output in cell["outputs"]:
            assert output["output_type"] != "error"
            assert "application/vnd.jupyter.widget-view+json" not in output.get("data", {})
            assert not any("plotly.js" in str(value)[:200_000] for value in output.get("data", {}).values())


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_holds_no_path_of_the_machine_that_ran_it(path):
    text = path.read_text(encoding="utf-8")
    for part in ("/home/", "/root/", "/Users/", str(FOLDER.parent), ".venv"):
        assert part not in text


def test_the_recorded_runs_are_small_complete_and_modelled():
    from specfit.run_folder import load_run

    folders = sorted((FOLDER / "runs").iterdir())
    assert len(folders) == 21
    assert sum(file.stat().st_size for file in (FOLDER / "runs").rglob("*")) < 3_000_000
    for folder in folders:
        run = load_run(folder)
        assert run.complete and run.settings["link"]["kind"] == "modelled"
