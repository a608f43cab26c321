"""An experiment's report: the paper's numbers beside ours, differences attributed, one page that stands alone."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from specfit.experiments.document import Grid, Picture, Section, as_html, as_markdown, as_text
from specfit.experiments.folder import FORMAT
from specfit.experiments.published import beside_paper, causes, figure_4
from specfit.experiments.report import load_experiment, write_report
from specfit.experiments.tables import equation_8, speedups
from specfit.experiments.toml_values import ExperimentError
from specfit.methods import AR, EAGLE3, SPECFIT
from specfit.records import RunRecord
from specfit.report import label, summary_rows
from specfit.run_folder import save_run
from specfit.workloads import PAPER_WORKLOADS
from tests.toys import toy_run

NASTY = "<script>alert(1)</script> | \u202e$x$ `b`"
SUMMARIES = {
    "questions": list(PAPER_WORKLOADS["summarization"][0]),
    "limits": {"max_new_tokens": None, "max_total_tokens": 2048},
    "paper": "summarization",
    "embedded": None,
}


def papers_own(run: RunRecord, **settings: object) -> RunRecord:
    """A run that says of itself to be the paper's own in every setting."""
    own = {
        "target": "Qwen/Qwen3-30B-A3B-Instruct-2507", "dtype": "bfloat16", "link": {"kind": "cuda"}, "max_nodes": 7,
        "draft": {"top_k": 2, "depth": 5, "max_pool": 18}, "slots_per_layer": 48, "cleared": False, "workload": "w",
    }  # fmt: skip
    return replace(
        run, experts=128, settings={**run.settings, **own, **settings}, machine={"gpu": "NVIDIA A100-PCIE-40GB"}
    )


@pytest.fixture(scope="module")
def runs() -> list[RunRecord]:
    return [papers_own(toy_run(method, slots=4)) for method in (AR, EAGLE3, SPECFIT)]


def with_rows(runs: list[RunRecord]) -> list[tuple[RunRecord, dict]]:
    return [(run, {**row, "label": label(run)}) for run, row in zip(runs, summary_rows(runs), strict=True)]


def test_the_papers_own_setting_leaves_differences_unexplained(runs: list[RunRecord]) -> None:
    rows, notes = beside_paper(with_rows(runs), SUMMARIES, "paper")
    assert [row["source"] for row in rows] == ["this run", "paper, Table 2", "difference"] * 3
    assert [row["label"] for row in rows[::3]] == ["ar", "eagle3", "specfit"]
    assert rows[7]["decode_tps"] == 8.27 and rows[7]["speedup"] == pytest.approx(8.27 / 6.64)
    assert rows[8]["decode_tps"].endswith(" ?") and not any(note[:1] in "MLHP" and note[1:3] == " (" for note in notes)
    assert figure_4(with_rows(runs))[2]["paper_decode_tps"] == 8.27


@pytest.mark.parametrize(
    ("settings", "machine", "workload", "protocol", "cause", "words"),
    [
        ({"target": "embedded"}, {}, {}, "paper", "model", "target embedded"),
        ({"dtype": "float32"}, {}, {}, "paper", "model", "float32 in place of bfloat16"),
        ({"link": {"kind": "emulated"}}, {}, {}, "paper", "link", "emulated link"),
        ({}, {"gpu": "NVIDIA RTX A6000"}, {}, "paper", "hardware", "RTX A6000 in place of A100"),
        ({}, {"gpu": "NVIDIA A100-SXM4-80GB"}, {}, "paper", "hardware", "A100-SXM4-80GB in place of A100"),
        ({"slots_per_layer": 32}, {}, {}, "paper", "protocol", "32 of 128 slots"),
        ({}, {}, {}, "consecutive", "protocol", "consecutive cycles"),
        ({"order": "interleaved"}, {}, {}, "paper", "protocol", "take turns"),
        ({}, {}, {"questions": [1]}, "paper", "protocol", "1 other questions"),
        ({"draft": {"top_k": 4, "depth": 5, "max_pool": 18}}, {}, {}, "paper", "protocol", "draft settings"),
    ],
)
def test_each_difference_is_attributed(
    runs: list[RunRecord], settings: dict, machine: dict, workload: dict, protocol: str, cause: str, words: str
) -> None:
    run = replace(papers_own(runs[2], **settings), machine={"gpu": "NVIDIA A100-PCIE-40GB"} | machine)
    found = causes(run, SUMMARIES | workload, protocol, "summarization")
    assert set(found) == {cause} and words in " ".join(found[cause])


def test_a_run_that_is_cut_short_is_no_unexplained_difference(runs: list[RunRecord]) -> None:
    found = causes(replace(runs[2], complete=False), SUMMARIES, "paper", "summarization")
    assert found == {"protocol": [f"only {len(runs[2].requests)} of 40 requests are finished"]}


def test_another_seed_is_compared_as_the_first_is(runs: list[RunRecord]) -> None:
    first, second = (with_rows([papers_own(run, seed=seed) for run in runs]) for seed in (0, 3))
    both = speedups("w", [*first, *second]).grid.rows
    assert len(both) == 6 and [line["sums"] for line in both[:3]] == [line["sums"] for line in both[3:]]
    assert [line["label"] for line in both[3:]] == ["eagle3, seed 3", "specfit, seed 3", "specfit, seed 3"]
    assert len(beside_paper(second, SUMMARIES, "paper")[0]) == 9
    assert figure_4(second)[2]["paper_decode_tps"] == 8.27 and equation_8("w", second)
    noisy = papers_own(runs[2], routes={"source": "atlas", "accuracy": 0.6})
    assert len(beside_paper(with_rows([noisy]), SUMMARIES, "paper")[0]) == 1


def test_ratios_are_three_with_an_interval_and_the_flag(runs: list[RunRecord]) -> None:
    slow = replace(runs[2], requests=tuple(replace(r, request_ms=9 * r.request_ms) for r in runs[2].requests))
    section = speedups("w", with_rows([*runs[:2], slow]))
    lines = {(line["label"], line["over"]): line for line in section.grid.rows}
    assert set(lines) == {("eagle3", "ar"), ("specfit", "ar"), ("specfit", "eagle3")}
    line = lines["specfit", "ar"]
    assert line["flag"] == "SLOWER THAN AR" and line["low"] <= line["sums"] <= line["high"] < 1
    assert line["equal"] == line["questions"] == len(slow.requests)


def test_equation_8_adds_up(runs: list[RunRecord]) -> None:
    (section,) = equation_8("w", with_rows(runs))
    (line,) = section.grid.rows
    if line["tau"] is not None and line.get("ratio") is not None:
        assert line["ratio"] == pytest.approx((1 - line["w"]) * line["fixed"] + line["w"] * line["copies"])
    else:
        assert section.notes


def experiment_folder(folder: Path, runs: list[RunRecord]) -> Path:
    asked = {
        "name": NASTY, "target": "t", "drafter": None, "draft": {}, "max_nodes": 7, "order": "method",
        "calibration": {"protocol": "paper"}, "workloads": {"w": SUMMARIES},
    }  # fmt: skip
    for run in runs:
        save_run(folder / run.method, replace(run, experts=8))
    cells = [*(run.method for run in runs), "never-run"]
    (folder / "experiment.json").write_text(json.dumps(FORMAT | {"asked": asked, "cells": cells}))
    failure = {"what": "never-run", "reason": f"out of memory {NASTY}", "at": "2026-11-29"}
    (folder / "failures.jsonl").write_text(json.dumps(failure) + "\n" + '{"what": "torn')
    return folder


def test_the_page_stands_alone_and_shows_text_as_data(runs: list[RunRecord], tmp_path: Path) -> None:
    odd = [
        replace(run, requests=tuple(replace(r, extra={**r.extra, "prompt_text": NASTY}) for r in run.requests))
        for run in runs
    ]
    folder = experiment_folder(tmp_path, odd)
    for cell in ("ar", "eagle3"):
        (folder / cell / "failures.jsonl").write_text('{"request_id": "w/9/0", "reason": "too long"}\n')
    text, files = write_report(folder, lambda drawn: [Picture(NASTY, b"<svg xmlns='http://www.w3.org/2000/svg'/>")])
    page = (folder / "report.html").read_text()
    assert "<script" not in page and "\u202e" not in page and "default-src &#x27;none&#x27;" in page
    assert not re.search(r"""(?:src|href)\s*=\s*["'](?!data:)""", page) and "url(" not in page and "@import" not in page
    assert all(f"failed: {cell}, w/9/0: too long" in text for cell in ("ar", "eagle3"))
    assert "missing: never-run" in text and "failed: never-run: out of memory" in text
    marked = [line for line in (folder / "report.md").read_text().splitlines() if "<script" in line]
    assert marked and all(line.startswith("    ") for line in marked)  # in a code block, which shows it as it is
    assert {path.name for path in files} >= {"report.md", "report.html", "w_methods.csv", "w_speedups.csv"}
    before = page
    write_report(folder, lambda drawn: [Picture(NASTY, b"<svg xmlns='http://www.w3.org/2000/svg'/>")])
    assert (folder / "report.html").read_text() == before
    assert len(load_experiment(folder).runs) == 3
    with pytest.raises(ExperimentError, match="holds no experiment"):
        load_experiment(tmp_path / "nothing")


def test_a_table_in_every_form() -> None:
    grid = Grid(
        "g", (("a", "A", "{}"), ("b", "B", "{:.1f}")), ({"a": "=1+1", "b": 2.0}, {"a": NASTY, "b": None}, {"a": "x"})
    )
    section = [Section(NASTY, (NASTY,), grid, notes=(NASTY,), verbatim="one\n\x1b[31mtwo")]
    assert "2.0" in as_text(section) and "n/a" in as_text(section) and "\x1b" not in as_text(section)
    assert "<script" not in as_markdown(section, title=NASTY) + as_html(section, title=NASTY)
    assert grid.csv().splitlines()[1] == "'=1+1,2"
