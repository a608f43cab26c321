"""The command line as a user types it: what works ends with a folder, what does not with one sentence and code 2."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from specfit.cli import main
from specfit.run_folder import load_run, save_run
from tests.specfit.run_records import dice_run


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
    assert main([*command, "--category", "one", "--method", "ar"]) == 0  # with the coefficients that it was begun with
    capsys.readouterr()
    assert main([*command, "--category", "one", "--protocol", "paper"]) == 2
    assert "comes too late: " in (late := said(capsys)) and "fitted with the consecutive protocol" in late
    assert main([*command, "--category", "one", "--max-nodes", "9"]) == 2
    assert "coefficients for up to 7 nodes" in said(capsys)
    other = tmp_path / "other.jsonl"
    other.write_text('{"question_id": 9, "category": "one", "turns": ["t1"]}')
    assert main([*command, "--category", "one", "--calibration-questions", str(other)]) == 2
    assert "fitted with prompts 1, 2, 3, and the file's are 9" in said(capsys)


def test_coefficients_in_the_folder_bind_only_what_they_fit(tiny, configuration, tmp_path: Path, capsys) -> None:
    out, cost = tmp_path / "run", tmp_path / "run" / "calibration.json"
    command = ["run", *configuration, "--workload", str(tiny.questions), "--ids", "3", "--out", str(out)]
    few = ["--max-nodes", "3", "--slots", "4"]
    fitting = ["--calibration-questions", str(tiny.questions)]
    assert main([*command, *few, "--method", "specfit", *fitting]) == 0
    assert main([*command, *few, "--method", "ar"]) == 0
    assert load_run(out / "ar").settings["cost"] is not None
    capsys.readouterr()
    assert main([*command, "--method", "ar", "--slots", "8"]) == 2  # begun with them, so it is another run
    assert "slots_per_layer 4 then, 8 now" in said(capsys)
    assert main([*command, "--method", "eagle3", "--slots", "4", *fitting]) == 2
    assert "coefficients for up to 3 nodes, and --max-nodes is 7" in said(capsys)
    assert main([*command, "--method", "eagle3", "--slots", "4", "--cost", str(cost)]) == 2
    assert "coefficients for up to 3 nodes, and --max-nodes is 7" in said(capsys) and not (out / "eagle3").exists()
    assert main([*command, "--method", "eagle3", "--slots", "4"]) == 0
    assert "left aside, and no time is predicted: it has coefficients for up to 3 nodes" in capsys.readouterr().out
    assert load_run(out / "eagle3").settings["cost"] is None
    (out / "ar").rename(tmp_path / "ar")
    assert main([*command, "--method", "ar", "--slots", "8"]) == 0
    assert "left aside, and no time is predicted: the coefficients were fitted with" in capsys.readouterr().out


def test_experts_may_stay_in_their_files(tiny, configuration, tmp_path: Path) -> None:
    asked = ["--workload", str(tiny.questions), "--category", "one", "--method", "eagle3", "--slots", "4"]
    answers = []
    for experts in ("memory", "mapped"):
        out = tmp_path / experts
        assert main(["run", *configuration, *asked, "--experts", experts, "--out", str(out)]) == 0
        run = load_run(out / "eagle3")
        assert run.settings.get("experts", "memory") == experts
        answers.append([request.output_tokens for request in run.requests])
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "--method", "magic"], "magic"),
        (["run", "--slots", "0"], "no whole number of 1 or more"),
        (["run", "--slot", "3"], "unrecognized arguments"),
        (["run", "--routes", "1.5"], "share between 0 and 1"),
        (["run", "--link-ms", "-1"], "0 or more"),
        (["replay", "news", "--miss-ms", "nan"], "0 or more"),
        (["run", "--seed", "-1"], "from 0 to"),
        (["run", "--threads", "100000"], "up to 1024"),
        (["atlas", "--slots", "3"], "unrecognized arguments"),  # an atlas is recorded with all experts resident
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
        (["--workload", "QUESTIONS", "--ids", "1,1"], "an empty id or one twice"),
        (["--workload", "QUESTIONS", "--method", "ar", "--device", "banana"], "no device 'banana'"),
        (["--workload", "QUESTIONS", "--method", "ar", "--routes", "head"], "--method ar reads no routes"),
        (["--workload", "QUESTIONS", "--method", "ar", "--force-cost"], "needs no coefficients"),
        (["--workload", "QUESTIONS", "--cost", "x", "--protocol", "paper"], "so none are fitted"),
        (["--workload", "QUESTIONS", "--method", "ar", "--slots", "9"], "between 1 and the target's 8 experts"),
        (["--workload", "QUESTIONS", "--cost", "nothing.json"], "nothing.json"),
        (["--workload", "QUESTIONS", "--method", "specfit"], "--calibration-questions"),
    ],
)
def test_bad_input_of_a_run(tiny, configuration, tmp_path: Path, arguments: list[str], sentence: str, capsys) -> None:
    given = [str(tiny.questions) if word == "QUESTIONS" else word for word in arguments]
    assert main(["run", *configuration, *given, "--out", str(tmp_path / "run")]) == 2
    assert sentence in said(capsys)
    assert not list(tmp_path.iterdir())  # no empty folder is left


def test_a_question_that_does_not_fit_is_named_and_the_others_are_done(
    tiny, configuration, tmp_path: Path, capsys
) -> None:
    questions, long = tmp_path / "q.jsonl", " ".join(["t1"] * 300)
    rows = [f'{{"question_id": {n}, "category": "a", "turns": ["{turn}"]}}' for n, turn in enumerate((long, "t1"))]
    questions.write_text("\n".join(rows))
    command = ["run", *configuration, "--workload", str(questions), "--method", "ar", "--out", str(tmp_path / "run")]
    assert main(command) == 2
    printed = capsys.readouterr()
    assert "not done by ar: spec-bench/0/0: the prompt has 300 tokens" in printed.out
    assert "one request was not done" in printed.err and "1 requests are finished" in printed.out


def test_a_file_where_a_folder_is_needed(tiny, configuration, tmp_path: Path, capsys) -> None:
    (tmp_path / "file").write_text("")
    arguments = ["--workload", str(tiny.questions), "--method", "ar", "--out", str(tmp_path / "file")]
    assert main(["run", *configuration, *arguments]) == 2
    assert "is a file where a folder is needed" in said(capsys)


def test_report_of_what_is_no_run(tmp_path: Path, capsys) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "no run folder" in said(capsys)


def test_json_that_is_nested_too_deeply_is_one_sentence(tmp_path: Path, capsys) -> None:
    deep = tmp_path / "deep.json"
    for place in (deep, tmp_path / "run" / "run.json", tmp_path / "experiment" / "experiment.json"):
        place.parent.mkdir(exist_ok=True)
        place.write_text("[" * 99_999)
    for arguments, sentence in (
        (["report", str(tmp_path / "run")], "it is no run header"),
        (["report", str(tmp_path / "experiment")], "experiment.json is missing or damaged"),
        (["replay", "problems", "--cost", str(deep)], "deep.json holds no cost coefficients: it is nested too deeply"),
    ):
        assert main(arguments) == 2
        assert sentence in said(capsys)


def test_a_missing_target_is_one_sentence(tiny, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)  # runs go to ./runs
    assert main(["run", "--target", str(tmp_path), "--workload", str(tiny.questions), "--method", "ar"]) == 2
    assert "config.json" in said(capsys)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["inspect", "embedded", "--slots", "3"], "without --target nothing is decoded"),
        (["report", "RUN", "--theory"], "none of these is one"),
        (["report", "RUN", "--theory", "--markdown"], "Table 5 is text"),
        (["calibrate", "--out", "RUN"], "is a folder; give the name of a file"),
        (["record", "--target", "x", "--drafter", "y", "--out", "new/folder/world.npz"], "a hub id looks like"),
        (["record", "--target", "x"], "`specfit record` drafts"),
        (["demo", "--slots", "65"], "has 64 experts a layer"),
        (["train-embedded", "--out", "RUN/.."], "holds 'target' already"),
        (["chat", "--method", "ar", "--cost", "x"], "method ar reads none"),
        (["chat", "--target", "x", "--method", "eagle3"], "method eagle3 drafts"),
    ],
)
def test_what_would_go_unheard_or_fail_late_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], sentence: str, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    save_run("run", dice_run(1))
    Path("target").mkdir()
    before = sorted(tmp_path.rglob("*"))
    assert main([word.replace("RUN", "run") for word in arguments]) == 2
    assert sentence in said(capsys)
    assert sorted(tmp_path.rglob("*")) == before


def specfit(*arguments: str, **more) -> subprocess.CompletedProcess:
    """The program itself, which owns its streams and signals."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "LC_ALL": "C", "PYTHONUTF8": "0"}
    command = [sys.executable, "-m", "specfit.cli", *arguments]
    return subprocess.run(command, env=environment, stderr=subprocess.PIPE, timeout=60, check=False, **more)


@pytest.mark.skipif(sys.platform == "win32", reason="pipes, signals and /dev/full")
def test_who_reads_no_further_and_a_full_disk_behind_stdout(tmp_path: Path) -> None:
    save_run(tmp_path / "run", dice_run(1))
    reading, writing = os.pipe()
    os.close(reading)
    ended = specfit("report", str(tmp_path / "run"), stdout=writing)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, b"")  # as `specfit report RUN | head` has it
    with open("/dev/full", "wb") as full:
        ended = specfit("report", str(tmp_path / "run"), stdout=full)
    assert (ended.returncode, ended.stderr) == (2, b"specfit: the disk is full\n")


def test_a_terminal_that_lacks_characters_shows_their_numbers(tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text('{"question_id": 1, "category": "\\u4e2d", "turns": ["t1"]}')
    ended = specfit("run", "--workload", str(tmp_path / "q.jsonl"), "--category", "x", stdout=subprocess.PIPE)
    assert ended.returncode == 2 and rb"it has '\u4e2d'" in ended.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="SIGTERM")
def test_a_scheduler_that_ends_the_program_is_answered_like_ctrl_c(tmp_path: Path, monkeypatch, capsys) -> None:
    def terminated(*arguments: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("the signal should have arrived")

    monkeypatch.setattr("specfit.commands.report.find_runs", terminated)
    monkeypatch.setattr(sys, "argv", ["specfit", "report", str(tmp_path)])
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert main() == 128 + signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "what is finished is kept" in said(capsys)
