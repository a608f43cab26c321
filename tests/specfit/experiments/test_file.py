"""Experiment files: what is read, and what is refused by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from specfit.experiments.file import read_experiment
from specfit.experiments.plan import Timetable, cell_state, choose, in_time, plan_cells
from specfit.experiments.toml_values import ExperimentError
from specfit.workloads import PAPER_WORKLOADS
from tests.specfit.experiments.toy_experiments import toy_cost, toy_experiment, toy_file

SHIPPED = Path(__file__).parents[3] / "experiments"
EMBEDDED = """
name = "e"
slots = [8]
[[workload]]
name = "w"
embedded = "news"
count = 1
"""


def read(folder: Path, text: str):
    path = folder / "experiment.toml"
    path.write_text(text)
    return read_experiment(path)


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    """The shipped files beside a question file with the paper's ids."""
    rows = [{"question_id": n, "category": "summarization", "turns": [f"Summarize: {n}"]} for n in range(241, 321)]
    rows += [{"question_id": n, "category": "math_reasoning", "turns": [f"{n}?"]} for n in range(401, 481)]
    (tmp_path / "question.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for path in SHIPPED.glob("*.toml"):
        shutil.copy(path, tmp_path)
    return tmp_path


def test_shipped_files_are_read_and_have_the_papers_ids_and_limits(shipped: Path) -> None:
    read_all = {path.stem: read_experiment(path) for path in sorted(shipped.glob("*.toml"))}
    assert set(read_all) == {"ablations", "embedded", "slots", "paper-a100", "paper-4090"}
    for file, names in {"paper-a100": ("summarization", "gsm8k"), "paper-4090": ("gsm8k-4090",)}.items():
        experiment = read_all[file]
        assert experiment.calibration.protocol == "paper" and experiment.order == "method" and experiment.cleared
        assert [q.id for q in experiment.calibration.questions.workload.questions] == [401, 402, 403]
        for part, name in zip(experiment.workloads, names, strict=True):
            ids, limit = PAPER_WORKLOADS[name]
            assert part.paper == name
            assert tuple(question.id for question in part.workload.questions) == ids
            assert part.workload.limits.max_total_tokens == limit and part.workload.limits.max_new_tokens is None
    assert read_all["paper-a100"].slots == (48,) and read_all["paper-4090"].slots == (32,)
    assert len(plan_cells(read_all["paper-a100"])) == 12


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('name = "e"', 'name = "e"\nslot = 3', "unknown key 'slot'"),
        ('name = "e"\n', "", "name is missing"),
        ("slots = [8]", "slots = []", "at least one entry"),
        ("slots = [8]", "slots = [8, 8]", "8 twice"),
        ("slots = [8]", "slots = [true]", "whole number"),
        ("slots = [8]", 'slots = [8]\nmethods = ["magic"]', "no method 'magic'"),
        ("slots = [8]", 'slots = [8]\nmethods = ["chain:9"]', "1 to max_nodes, which is 7"),
        ("slots = [8]", 'slots = [8]\nroutes = ["noisy:2"]', "no route source 'noisy:2'"),
        ("slots = [8]", 'slots = [8]\norder = "random"', "method, interleaved"),
        ("slots = [8]", 'slots = [8]\ndrafter = "x/y"', "brings its own"),
        ("slots = [8]", "slots = [8]\n[draft]\nbreadth = 2", "table 'draft' has an unknown key 'breadth'"),
        ("slots = [8]", "slots = [8]\n[link]\nexpert_ms = nan", "milliseconds, 0 or more"),
        ("slots = [8]", "slots = [8]\n[link]\nlatency_ms = 1", "link.expert_ms is missing"),
        ("slots = [8]", 'slots = [8]\n[calibration]\ncost = "c"\nfile = "f"', "calibration.file does not fit"),
        ("count = 1", "count = 0", "whole number of 1 or more"),
        ("count = 1", "ids = [3]", "the embedded corpus has none"),
        ("count = 1", 'file = "f"', "one of the two"),
        ("embedded", "embeded", "unknown key 'embeded'"),
        ('embedded = "news"\ncount = 1', 'file = "nothing.jsonl"', "nothing.jsonl"),
        ("slots = [8]", "slots = [8", "is not TOML"),
        ("slots = [8]", 'slots = [8]\ntarget = "x/y"', "calibration.file is missing"),
        ("slots = [8]", 'slots = [8]\nroutes = ["head"]\nhead = "nowhere.safetensors"', "there is no file"),
        ("slots = [8]", 'slots = [8]\nhead = "nowhere.safetensors"', "routes has none of head, prior"),
        ("slots = [8]", "slots = [8]\nthreads = 100000", "from 1 to 1024"),
        ("slots = [8]", f"slots = [8]\nseeds = [{1 << 40}]", "whole number from 0 to"),
        ("slots = [8]", f"slots = {'[' * 5000}", "nested too deeply"),
        ("slots = [8]", 'slots = [8]\ntuning = "news"', "methods has none of size-only, lambda-offline"),
        ("slots = [8]", 'slots = [8]\nmethods = ["size-only"]\ntuning = "nws"', "there is no file"),
        (
            "slots = [8]",
            'slots = [8]\nmethods = ["lambda-offline"]\n[draft]\ndepth = 4',
            "another draft (draft.depth: there 5, here 4)",
        ),
        (
            "slots = [8]",
            'slots = [8]\nmethods = ["ar", "size-only"]\nmax_nodes = 19\norder = "interleaved"',
            "the largest pool of tuning (calibration) has 18 nodes",
        ),
        ('[[workload]]\nname = "w"', '[workload]\nname = "w"', "[[workload]]"),
    ],
)
def test_what_is_wrong_is_refused_by_its_name(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    assert old in EMBEDDED
    with pytest.raises(ExperimentError, match=r"experiment\.toml") as refused:
        read(tmp_path, EMBEDDED.replace(old, new, 1))
    assert sentence in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"more": 'routes = ["atlas", "prior"]'}, "head is missing: routes 'prior' need a file"),
        ({"replaced": ("drafter = ", "device = ")}, "drafter is missing: method 'eagle3' drafts"),
        ({"more": 'methods = ["size-only"]'}, "tuning is missing: method 'size-only' is tuned on a world"),
        (
            {"more": 'methods = ["size-only"]\ntuning = "news"'},
            "news does not fit: it was recorded with target 'embedded'",
        ),
        ({"more": "max_nodes = 9"}, "calibration.cost has coefficients for up to 7 nodes, and max_nodes is 9"),
        ({"more": "cleared = true"}, "calibration.cost serves one cache"),
        (
            {"replaced": ("[calibration]", '[calibration]\nprotocol = "paper"')},
            "calibration.protocol does not fit here",
        ),
    ],
)
def test_what_a_cell_would_lack_is_refused_before_any_runs(tiny, tmp_path: Path, changes: dict, sentence: str) -> None:
    with pytest.raises(ExperimentError) as refused:
        toy_experiment(tiny, tmp_path, **changes)
    assert sentence in str(refused.value)


def test_a_given_cost_brings_its_protocol(tiny, tmp_path: Path) -> None:
    made = json.loads(toy_cost(tiny).read_text())
    (tmp_path / "cost.json").write_text(json.dumps({**made, "protocol": "paper"}))
    changed = (str(toy_cost(tiny)), "cost.json")
    assert toy_experiment(tiny, tmp_path, replaced=changed).describe()["calibration"]["protocol"] == "paper"


def test_missing_and_undecodable_files(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="cannot be read"):
        read_experiment(tmp_path / "nothing.toml")
    (tmp_path / "bad.toml").write_bytes(b'name = "\xff"')
    with pytest.raises(ExperimentError, match="not UTF-8"):
        read_experiment(tmp_path / "bad.toml")


def test_a_changed_question_changes_the_description(tiny, tmp_path: Path) -> None:
    before = toy_experiment(tiny, tmp_path).describe()
    copy = tmp_path / "questions.jsonl"
    copy.write_text(tiny.questions.read_text().replace("t2 t7 t9 t41", "t2 t7 t9 t42"))
    moved = read_experiment(toy_file(tiny, tmp_path, replaced=(str(tiny.questions), str(copy)))).describe()
    assert before["workloads"]["ones"].pop("texts") != moved["workloads"]["ones"].pop("texts")
    assert before["workloads"] == moved["workloads"]


def test_cells_their_names_and_their_choice(tiny, tmp_path: Path) -> None:
    more = 'cleared = true\nroutes = ["atlas", "noisy:0.6"]\nmethods = ["ar", "specfit", "chain:2"]\nseeds = [0, 3]'
    cells = plan_cells(toy_experiment(tiny, tmp_path, more=more, fitted="raw = true"))
    names = [cell.name for cell in cells]
    assert len(set(names)) == len(names) == 2 * 2 * 4
    assert names[:4] == [
        "ones-cleared-ar", "ones-cleared-specfit", "ones-cleared-specfit-noisy-0_6", "ones-cleared-chain-2"
    ]  # fmt: skip
    fewer = {cell.name for cell in plan_cells(toy_experiment(tiny, tmp_path))}
    assert fewer - {"ones-4-slots-eagle3"} < set(names)  # a file that grows finds its cells again
    assert {cell.name for cell in choose(cells, "*noisy*")} == {name for name in names if "noisy" in name}
    with pytest.raises(ExperimentError, match="no cell fits"):
        choose(cells, "nothing*")


def test_times_are_estimated_from_what_is_most_alike(tiny, tmp_path: Path) -> None:
    cells = plan_cells(toy_experiment(tiny, tmp_path, more="cleared = true", fitted="raw = true"))
    timetable = Timetable(cells)
    blank = cell_state(toy_experiment(tiny, tmp_path), cells[0], tmp_path)
    for cell in cells:
        timetable.note(cell, blank)
    assert timetable.total() is None and in_time(None) == "unknown"
    done = type(blank)(3, 3, (), True, 6.0)
    timetable.note(cells[0], done)
    assert timetable.seconds(cells[0]) == 0 and timetable.seconds(cells[1]) == 6
    timetable.note(cells[1], type(blank)(3, 1, (), False, 1.0))
    assert timetable.seconds(cells[1]) == 2
    assert timetable.seconds(cells[4]) == 3  # eagle3 with the other cache, by its own method's rate
    assert in_time(100) == "about 2 min" and in_time(20_000) == "about 5.6 h"
