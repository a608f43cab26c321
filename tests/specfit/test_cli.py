"""The command line as a user types it: what works ends with a folder, what does not with one sentence and code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from specfit.cli import main


@pytest.fixture
def configuration(tiny) -> list[str]:
    return ["--target", str(tiny.target), "--drafter", str(tiny.drafter), "--raw", "--max-new-tokens", "12"]


def said(capsys: pytest.CaptureFixture) -> str:
    """The one sentence on stderr, progress bars apart."""
    lines = [line for line in capsys.readouterr().err.replace("\r", "\n").splitlines() if line.startswith("specfit: ")]
    assert len(lines) == 1, lines
    return lines[0]


def test_run_and_report(tiny, configuration, tmp_path: Path, capsys) -> None:
    questions = ["--workload", str(tiny.questions), "--calibration-questions", str(tiny.questions)]
    out = tmp_path / "run"
    command = ["run", *configuration, *questions, "--slots", "4", "--link-ms", "0.01", "--out", str(out)]
    assert main([*command, "--category", "one"]) == 0
    printed = capsys.readouterr().out
    assert "EMULATED LINK" in printed and "specfit" in printed and printed.rstrip().endswith(str(out))
    assert {path.name for path in out.iterdir()} >= {"ar", "eagle3", "specfit", "calibration.json", "report.md"}
    assert main([*command, "--category", "one"]) == 0  # finished already: nothing is decoded again
    capsys.readouterr()
    assert main(["report", str(out)]) == 0
    assert "H2D/token" in capsys.readouterr().out
    assert main(["report", str(out), "--theory"]) == 0
    assert "lambda" in capsys.readouterr().out.lower()
    assert main([*command, "--category", "two"]) == 2  # the folder holds other questions
    assert "another configuration" in said(capsys)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "--method", "magic"], "magic"),
        (["run", "--slots", "0"], "no whole number of 1 or more"),
        (["run", "--slot", "3"], "unrecognized arguments"),
        (["run", "--routes", "1.5"], "share between 0 and 1"),
        (["dance"], "dance"),
        ([], "COMMAND"),
        (["demo", "--count", "x"], "no whole number"),
    ],
)
def test_unknown_words_and_options(arguments: list[str], sentence: str, capsys) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2 and sentence in said(capsys)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--workload", "poems"], "poems"),
        (["--workload", "QUESTIONS", "--category", "three"], "no category 'three'"),
        (["--workload", "QUESTIONS", "--ids", "1,99"], "99"),
        (["--workload", "problems", "--ids", "1"], "question file"),
        (["--workload", "QUESTIONS", "--slots", "9"], "between 1 and the target's 8 experts"),
        (["--workload", "QUESTIONS", "--cost", "nothing.json"], "nothing.json"),
        (["--workload", "QUESTIONS", "--link-ms", "-1"], "0 or more"),
        (["--workload", "QUESTIONS", "--method", "specfit"], "--calibration-questions"),
    ],
)
def test_bad_input_of_a_run(tiny, configuration, tmp_path: Path, arguments: list[str], sentence: str, capsys) -> None:
    given = [str(tiny.questions) if word == "QUESTIONS" else word for word in arguments]
    assert main(["run", *configuration, *given, "--out", str(tmp_path / "run")]) == 2
    assert sentence in said(capsys)


def test_a_file_where_a_folder_is_needed(tiny, configuration, tmp_path: Path, capsys) -> None:
    (tmp_path / "file").write_text("")
    arguments = ["--workload", str(tiny.questions), "--method", "ar", "--out", str(tmp_path / "file")]
    assert main(["run", *configuration, *arguments]) == 2
    assert "is a file where a folder is needed" in said(capsys)


def test_report_of_what_is_no_run(tmp_path: Path, capsys) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "no run folder" in said(capsys)


def test_a_missing_target_is_one_sentence(tiny, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)  # runs go to ./runs
    assert main(["run", "--target", str(tmp_path), "--workload", str(tiny.questions), "--method", "ar"]) == 2
    assert "config.json" in said(capsys)
