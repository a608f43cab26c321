"""`specfit chat` with piped input on a tiny pair, and in a terminal of its own with a real Ctrl-C."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specfit.calibrate import Calibration
from specfit.cli import main
from specfit.engine.engine import load_engine
from specfit.objective import CostModel

TEMPLATE = (
    "{% for m in messages %}{{ m['content'] }} {% if m['role'] == 'user' %}t0 {% else %}t1 {% endif %}{% endfor %}"
)


@pytest.fixture(scope="module")
def target(tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny target with a chat template."""
    folder = tmp_path_factory.mktemp("chat") / "target"
    folder.mkdir()
    for path in tiny.target.iterdir():
        (folder / path.name).symlink_to(path)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def chat(target: Path, tiny, monkeypatch: pytest.MonkeyPatch, typed: str, *options: str) -> int:
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    pair = ["--target", str(target), "--drafter", str(tiny.drafter)]
    return main(["chat", *pair, "--max-new-tokens", "12", *options])


def test_a_scheduler_ends_a_chat_in_the_midst_of_an_answer(target: Path, tiny, monkeypatch, capsys) -> None:
    def terminated(piece: str) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("the signal should have arrived")

    monkeypatch.setattr("specfit.commands.chat._say", terminated)
    monkeypatch.setattr(sys, "stdin", io.StringIO("t5 t6\nt7\n"))
    monkeypatch.setattr(sys, "argv", ["specfit", "chat", "--target", str(target), "--drafter", str(tiny.drafter)])
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert main() == 128 + signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "[" not in capsys.readouterr().out  # no answer was summed up, and the next line not asked


def test_two_turns_a_reset_and_the_end(target: Path, tiny, monkeypatch, capsys) -> None:
    typed = "t5 t6\n\nt7\n/reset\nt5 t6\n/what\n/quit\nt9\n"
    assert chat(target, tiny, monkeypatch, typed) == 0
    lines = capsys.readouterr().out.splitlines()
    summaries = [line for line in lines if line.startswith("[")]
    assert len(summaries) == 3  # nothing after /quit
    form = r"\[12 tokens, [\d.]+ tokens/s, \d\.\d\d committed a cycle; eagle3; prompt of (\d+) tokens, (\d+) of them"
    (first, none), (second, some), (third, all_but_one) = (re.match(form, line).groups() for line in summaries)
    assert (first, none, third, all_but_one) == ("3", "0", "3", "2")
    assert (int(second), int(some)) == (3 + 12 + 3, 3 + 11 - 1)  # the answer's last token never ran, one runs again
    answers = [lines[lines.index(line) - 1] for line in summaries]
    assert len(answers[0].split()) == 12 and answers[0] == answers[2] != answers[1]
    assert "(a new chat)" in lines and sum("/reset forgets" in line for line in lines) == 2


def test_settings_reach_the_answer(target: Path, tiny, monkeypatch, capsys) -> None:
    def answer(*options: str) -> tuple[list[str], str, str]:
        """Words of the answer, its summary, and what was said before it."""
        assert chat(target, tiny, monkeypatch, "t5 t6\n", *options) == 0
        *before, words, summary, _ = capsys.readouterr().out.splitlines()
        return words.split(), summary, " ".join(before)

    plain, summary, _ = answer("--method", "ar")
    assert len(plain) == 12 and summary.startswith("[12 tokens") and "; ar;" in summary
    stop = f"{plain[4]} {plain[5]}"
    stopped, summary, _ = answer("--stop", stop)
    assert " ".join(stopped) == " ".join(plain).partition(stop)[0].strip() and f"stopped at '{stop}'" in summary
    drawn = ["--temperature", "3", "--sample-top-k", "40", "--seed", "5"]
    assert answer(*drawn)[0] == answer(*drawn, "--method", "ar")[0] != plain
    same, summary, before = answer("--link-ms", "0.01", "--system", "t9")
    assert "EMULATED LINK, 0.01 ms per expert" in before and "prompt of 5 tokens" in summary and same != plain


def test_specfit_is_what_coefficients_ask_for(target: Path, tiny, monkeypatch, capsys, tmp_path: Path) -> None:
    with load_engine(target, drafter=tiny.drafter, device="cpu", self_test=False) as engine:
        settings = engine.settings
    path = tmp_path / "cost.json"
    fit = {"protocol": "paper", "r2": 1.0, "rms_ms": 0.0, "worst_ms": 0.0, "condition": 1.0, "probes": 9}
    about = {"warnings": (), "machine": {}, "date": "", "prompts": (), "settings": settings}
    Calibration(cost=CostModel.affine(1.0, 0.1, expert_ms=0.1), **fit, **about).save(path)
    given = ["--cost", str(path), "--routes", "last-token", "--device", "cpu"]
    assert chat(target, tiny, monkeypatch, "t5 t6\n", *given) == 0
    assert "; specfit; prompt of 3 tokens" in capsys.readouterr().out
    assert chat(target, tiny, monkeypatch, "t5 t6\n", *given, "--slots", "3") == 2
    assert "slots_per_layer 8 then, 3 now" in capsys.readouterr().err
    assert chat(target, tiny, monkeypatch, "t5 t6\n", *given, "--slots", "3", "--force-cost") == 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--temperature", "0"], "temperature is 0.0"),
        (["--sample-top-p", "1.5"], "top_p is 1.5"),
        (["--method", "specfit"], "--method specfit needs --cost FILE"),
        (["--method", "ar", "--cost", "c.json"], "ar reads none"),
        (["--stop", ""], "a stop string is ''"),
    ],
)
def test_bad_options_are_one_sentence(target: Path, tiny, monkeypatch, capsys, options: list, sentence: str) -> None:
    code = chat(target, tiny, monkeypatch, "t5\n", *options)
    error = capsys.readouterr().err
    assert sentence in error and code in (0, 2)
    assert len([line for line in error.splitlines() if line.startswith("specfit: ")]) == 1


def test_without_a_template_every_message_is_a_sentence_and_the_chat_goes_on(tiny, monkeypatch, capsys) -> None:
    assert chat(tiny.target, tiny, monkeypatch, "t5\nt6\n") == 0
    captured = capsys.readouterr()
    assert captured.err.count("specfit: this model's tokenizer has no chat template") == 2
    assert "[" not in captured.out


def test_model_text_cannot_drive_the_terminal(capsys) -> None:
    from specfit.commands.chat import _say

    _say("a\x1b[2Jb\u202ec\r\n\td")
    assert capsys.readouterr().out == "a\\x1b[2Jb\\u202ec\\r\n\td"


def test_ctrl_c_stops_the_answer_and_keeps_the_chat(target: Path, tiny) -> None:
    """A real terminal, a real process and a real signal; a slow link makes the answer long enough to stop."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "specfit.cli", "chat", "--target", str(target), "--drafter", str(tiny.drafter)]
    command += ["--link-ms", "4", "--slots", "1", "--max-new-tokens", "200", "--method", "ar"]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    seen = ""

    def wait_for(pattern: str, since: int = 0) -> int:
        nonlocal seen
        deadline = time.monotonic() + 120
        while not (found := re.compile(pattern).search(seen, since)):
            assert time.monotonic() < deadline, seen
            if select.select([ours], [], [], 1.0)[0]:
                seen += os.read(ours, 4096).decode()
        return found.end()

    try:
        at = wait_for("> $")
        os.write(ours, b"t5 t6\n")
        at = wait_for(r"(t\d+ ){3}", wait_for("t5 t6\r\n", at))
        process.send_signal(signal.SIGINT)
        at = wait_for(r" \.\.\.\r\n\[\d+ tokens, .*, interrupted\]\r\n> ", at)
        os.write(ours, b"t7\n")
        at = wait_for(r"(t\d+ ){3}", wait_for("t7\r\n", at))
        process.send_signal(signal.SIGINT)
        at = wait_for(r"\[\d+ tokens, .* [1-9]\d* of them reused, interrupted\]\r\n> ", at)
        os.write(ours, b"/quit\n")
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
