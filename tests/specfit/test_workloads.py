"""Question files as they come, and the paper's choice of questions."""

from __future__ import annotations

import codecs
import json
from pathlib import Path
from typing import Any

import pytest

from specfit.workloads import (
    Limits,
    Question,
    Workload,
    WorkloadError,
    embedded_workload,
    paper_ids,
    read_questions,
    spec_bench,
)


def row(ident: Any = 1, category: Any = "math", turns: Any = ("a?",), **more: Any) -> str:
    return json.dumps(
        {"question_id": ident, "category": category, "turns": list(turns) if isinstance(turns, tuple) else turns}
        | more,
        ensure_ascii=False,
    )


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def to_file(*lines: str, end: str = "\n") -> Path:
        path = tmp_path / "question.jsonl"
        path.write_bytes("".join(line + end for line in lines).encode())
        return path

    return to_file


def test_rows_are_read_as_they_are(write: Any) -> None:
    long = "x" * 6847
    path = write(
        row(103, "reasoning", ("one", "two"), reference=["first", ""]),
        row(133, "coding", ("one", "two"), reference=["", "second"]),
        row(321, "qa", ("who\u00a0was it?",)),
        row(5, "math", (long,), reference="no list"),
    )
    questions = read_questions(path)
    assert questions[0] == Question(103, "reasoning", ("one", "two"), ("first", ""))
    assert questions[1].reference == ("", "second")
    assert questions[2].reference is None and questions[2].turns == ("who\u00a0was it?",)
    assert questions[3].turns == (long,) and questions[3].reference == "no list"


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\u0085", "\x0b", "\x0c", "\x1c", "\r\n"])
def test_only_lf_ends_a_line(write: Any, mark: str) -> None:
    raw = mark if mark > "\x1f" else json.dumps(mark)[1:-1]
    path = write(row(1, turns=("a@b",)).replace("@", raw), row(2, turns=("c@d",)).replace("@", raw))
    assert [question.turns for question in read_questions(path)] == [(f"a{mark}b",), (f"c{mark}d",)]


def test_crlf_blank_lines_and_a_byte_order_mark_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    lines = [row(1), "", "   ", row(2), "\t", row("q3")]
    path.write_bytes(codecs.BOM_UTF8 + "\r\n".join(lines).encode())
    assert [question.id for question in read_questions(path)] == [1, 2, "q3"]


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ("{", "line 4 of .* is not JSON"),
        ("[1]", "line 4 of .* is no question: it is a JSON list"),
        ('{"question_id": 3}', "line 4 .* has no category and no turns"),
        (row(3, turns="text"), r"line 4 .* turns is 'text'"),
        (row(3, turns=()), r"line 4 .* turns is \[\]"),
        (row(3, turns=(1,)), r"line 4 .* turns is \[1\]"),
        (row(3, turns=("a", " ")), "line 4 .* turn 2 is empty"),
        (row(3, category=7), "line 4 .* category is 7"),
        (row(True), "line 4 .* question_id is True"),
        (row(1.5), "line 4 .* question_id is 1.5"),
        (row(1), "line 4 .* question 1 is on line 1 already"),
        (row("1"), "line 4 .* question '1' is on line 1 already"),
        (row(3, reference=float("nan")), "line 4 .* NaN"),
        (row(3, reference=0.5).replace("0.5", "1e999"), "line 4 .* '1e999', which is too large"),
        (row(3, reference=0.5).replace("0.5", "[" * 9999 + "]" * 9999), "line 4 .* nested too deeply"),
    ],
)
def test_a_bad_row_is_named_by_its_line_in_the_file(write: Any, bad: str, named: str) -> None:
    for end in ("\n", "\r\n"):
        with pytest.raises(WorkloadError, match=named):
            read_questions(write(row(1), "", row(2), bad, end=end))


def test_files_that_are_no_question_files(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="cannot be read: No such file"):
        read_questions(tmp_path / "none.jsonl")
    path = tmp_path / "q.jsonl"
    path.write_bytes(row(1).encode("utf-16"))
    with pytest.raises(WorkloadError, match=r"line 1 of .* is not UTF-8"):
        read_questions(path)
    path.write_text(json.dumps([{"question_id": 1}], indent=1))
    with pytest.raises(WorkloadError, match=r"line 1 of .* is not JSON"):
        read_questions(path)
    path.write_bytes(b"\n \n")
    with pytest.raises(WorkloadError, match="holds no questions"):
        read_questions(path)


def test_categories_are_exact_texts(write: Any) -> None:
    names = ["math", "math_reasoning", "", "Math", "a/b"]
    path = write(*(row(number, name) for number, name in enumerate(names)))
    for number, name in enumerate(names):
        assert [question.id for question in spec_bench(path, category=name).questions] == [number]
    with pytest.raises(WorkloadError, match="no category 'mat'; it has 'math', 'math_reasoning', '', 'Math', 'a/b'"):
        spec_bench(path, category="mat")


def test_ids_are_chosen_in_the_order_of_the_file_and_absent_ones_named(write: Any) -> None:
    path = write(*(row(number, "odd" if number % 2 else "even") for number in range(10, 20)), row("x"))
    assert [q.id for q in spec_bench(path, ids=[15, "12", "x"]).questions] == [12, 15, "x"]
    with pytest.raises(WorkloadError, match=r"has no question 3, 'y'; its ids are 10..19, 'x' \(11 in all\)"):
        spec_bench(path, ids=[3, 12, "y"])
    with pytest.raises(WorkloadError, match=r"category 'odd' of .* has no question 12"):
        spec_bench(path, category="odd", ids=[12])
    with pytest.raises(WorkloadError, match="has no questions"):
        spec_bench(path, ids=[])
    assert len(spec_bench(path, limit=3).questions) == 3
    with pytest.raises(WorkloadError, match="limit = 0"):
        spec_bench(path, limit=0)


def test_names_limits_and_request_ids(write: Any) -> None:
    workload = spec_bench(write(row(7)), category="math")
    assert workload.name == "spec-bench-math" and workload.limits == Limits(max_new_tokens=1024)
    assert workload.request_id(workload.questions[0], 1) == "spec-bench-math/7/1"
    assert spec_bench(write(row(7)), name="mine", limits=Limits(max_total_tokens=9)).limits.new_tokens(4) == 5


def test_limits() -> None:
    assert Limits(max_new_tokens=10, max_total_tokens=20).new_tokens(5) == 10
    assert Limits(max_new_tokens=10, max_total_tokens=20).new_tokens(15) == 5
    with pytest.raises(WorkloadError, match="prompt has 20 tokens and the limit is 20"):
        Limits(max_total_tokens=20).new_tokens(20)
    for wrong in ({}, {"max_new_tokens": 0}, {"max_total_tokens": -1}):
        with pytest.raises(WorkloadError, match="1 or more"):
            Limits(**wrong)


def test_the_papers_questions() -> None:
    ids, limits = paper_ids("summarization")
    assert (ids[:2], ids[-1], len(ids), limits.max_total_tokens) == ((242, 244), 320, 40, 2048)
    ids, limits = paper_ids("gsm8k")
    assert (ids[0], ids[-1], len(ids), limits.max_total_tokens) == (401, 480, 80, 512)
    ids, limits = paper_ids("gsm8k-4090")
    assert (ids[:2], ids[-1], len(ids), limits.max_total_tokens) == ((401, 403), 479, 40, 512)
    with pytest.raises(WorkloadError, match="'summarization', 'gsm8k', 'gsm8k-4090'"):
        paper_ids("math")


def test_calibration_questions_inside_the_test_set_are_said(write: Any) -> None:
    path = write(row(401), row(404))
    assert "401-403" in spec_bench(path).notes[0]
    assert spec_bench(path, ids=[404]).notes == ()


@pytest.mark.parametrize("kind", ["problems", "news"])
def test_the_embedded_workloads(kind: str) -> None:
    workload = embedded_workload(kind, count=3)
    assert workload == embedded_workload(kind, count=3)
    assert [question.id for question in workload.questions] == [0, 1, 2]
    assert all(question.turns[0] and question.reference for question in workload.questions)
    assert all((question.number is not None) is (kind == "problems") for question in workload.questions)
    assert embedded_workload(kind, count=2, first=1).questions == workload.questions[1:]
    assert embedded_workload(kind, split="tune", count=1).name == f"{kind}-tune"


def test_embedded_workloads_that_do_not_exist() -> None:
    with pytest.raises(WorkloadError, match="'poems'; choose one of 'problems', 'news'"):
        embedded_workload("poems")
    with pytest.raises(WorkloadError, match="split 'exam'"):
        embedded_workload("news", split="exam")
    with pytest.raises(WorkloadError, match="count = 0"):
        embedded_workload("news", count=0)


def test_a_workload_has_questions_and_each_once() -> None:
    with pytest.raises(WorkloadError, match="question '1' twice"):
        Workload("w", (Question(1, "", ("a",)), Question("1", "", ("a",))), Limits(1))
