"""The shipped experiments/embedded.toml, cut down to seconds: from the file to the paper's tables."""

from __future__ import annotations

from pathlib import Path

from specfit.cli import main

SHIPPED = Path(__file__).parents[3] / "experiments" / "embedded.toml"
CUTS = (
    ("count = 4\n", "count = 1\nmax_new_tokens = 10\n"),
    ('"consecutive"\n', '"consecutive"\nmax_new_tokens = 8\n'),
    ("expert_ms = 0.8\n", "expert_ms = 0.01\n"),
)


def test_the_shipped_experiment_cut_down(tmp_path: Path, capsys) -> None:
    text = SHIPPED.read_text()
    for old, new in CUTS:
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "embedded.toml").write_text(text)
    command = ["experiment", str(tmp_path / "embedded.toml"), "--out", str(tmp_path / "out")]
    assert main([*command, "--only", "problems-24-slots-*"]) == 0
    assert main(["report", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "4 of 4 cells are done" in printed and "paper, Table 3" in printed and "EMULATED LINK" in printed
    assert "selection theory (Table 5)" in printed and "this machine, consecutive" in printed
    assert "problems stands in for the paper's gsm8k" in printed and "missing: news-cleared-ar" in printed
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("data:image/svg+xml") >= 2 and len(page) < 1_000_000
