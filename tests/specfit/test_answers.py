"""Spec-Bench answer files: the fields its scripts read, whole questions only, and its ratio beside the paper's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from specfit.answers import answers_of, spec_bench_speedup, write_answers
from specfit.metrics import speedup
from specfit.records import RequestRecord, RunRecord
from specfit.run_folder import save_run
from tests.specfit.run_records import ODD_TEXT, dice_request, dice_run


def turn(
    question: int, number: int, *, turns: int = 2, text: str = "t", tokens: int = 11, ms: float = 1000.0
) -> RequestRecord:
    request = dice_request(7)
    return replace(
        request, request_id=f"toy/{question}/{number}", question_id=question, output_text=text, request_ms=ms,
        prefill_ms=0.0, output_tokens=tuple(range(tokens)), extra={"turns": turns},
    )  # fmt: skip


def run_of(*requests: RequestRecord, **settings: object) -> RunRecord:
    return replace(dice_run(0, workload="toy", **settings), requests=requests)


def test_a_line_has_what_speed_py_and_equal_py_read() -> None:
    run = run_of(turn(3, 0, text=f" {ODD_TEXT}"), turn(3, 1), questions=[3])
    answers = answers_of(run, tstamp=5.0)
    (line,) = map(json.loads, answers.jsonl().splitlines())
    assert set(line) == {"question_id", "category", "answer_id", "model_id", "choices", "tstamp"}
    choice = line["choices"][0]
    assert line["question_id"] == 3 and choice["index"] == 0 and line["tstamp"] == 5.0
    assert choice["turns"] == [ODD_TEXT.strip(), "t"] and choice["new_tokens"] == [11, 11]
    assert choice["wall_time"] == [1.0, 1.0]
    cycles = [cycle for request in run.requests for cycle in request.cycles]
    assert sum(choice["decoding_steps"]) == len(choice["accept_lengths"]) == len(cycles)
    assert choice["accept_lengths"] == [cycle.committed for cycle in cycles]
    assert not answers.notes and answers.jsonl() == answers_of(run, tstamp=5.0).jsonl()


def test_questions_that_are_not_whole_are_left_out_and_named() -> None:
    run = run_of(turn(1, 0), turn(1, 1), turn("a/b", 0), questions=[1, "a/b", 4, 5])
    answers = answers_of(run, failures={"toy/4/0": "too long"})
    assert [line["question_id"] for line in answers.lines] == [1]
    assert answers.notes == (
        "question a/b is left out: 1 of its 2 turns are answered (the run was cut short)",
        "question 4 is left out: too long",
        "question 5 is left out: it is not answered yet",
    )


def test_a_question_answered_on_resuming_is_in_its_place() -> None:
    run = run_of(turn(2, 0, turns=1), turn("x", 0, turns=1), turn(1, 0, turns=1), questions=[1, 2])
    assert [line["question_id"] for line in answers_of(run).lines] == [1, 2, "x"]


def test_the_file_of_a_folder_is_the_same_every_time(tmp_path: Path) -> None:
    save_run(tmp_path / "run", run_of(turn(1, 0, turns=1), questions=[1]))
    write_answers(tmp_path / "run", tmp_path / "a" / "one.jsonl")
    first = (tmp_path / "a" / "one.jsonl").read_bytes()
    write_answers(tmp_path / "run", tmp_path / "two.jsonl")
    assert first == (tmp_path / "two.jsonl").read_bytes() and json.loads(first)["tstamp"] > 1.7e9
    save_run(tmp_path / "none", run_of(questions=[1]))
    with pytest.raises(ValueError, match="nothing to write"):
        write_answers(tmp_path / "none", tmp_path / "none.jsonl")


def test_three_ratios_are_three_numbers() -> None:
    """Case D9: the baseline takes 2 and 100 s, the other 1 and 60 s, for as many tokens."""
    slow = run_of(turn(1, 0, turns=1, ms=2e3), turn(2, 0, turns=1, ms=100e3), method="ar")
    fast = run_of(turn(1, 0, turns=1, ms=1e3), turn(2, 0, turns=1, ms=60e3))
    gain = speedup(fast, slow)
    assert gain.ratio_of_sums == pytest.approx(102 / 61) and gain.mean_of_ratios == pytest.approx((2 + 100 / 60) / 2)
    assert spec_bench_speedup(fast, slow) == pytest.approx((1 / 1 + 1 / 60) / (1 / 2 + 1 / 100))
    assert spec_bench_speedup(run_of(), slow) is None
