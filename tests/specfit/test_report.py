"""Reports: the paper's columns, what a reader must know, and names of models and files shown as data."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from specfit.methods import AR, EAGLE3, SPECFIT
from specfit.records import RunRecord
from specfit.report import clip, escape_markdown, printable, report, summary_rows, table, text_width
from tests.specfit.run_records import dice_run
from tests.toys import toy_run


def slowed(run: RunRecord, factor: float, **settings: object) -> RunRecord:
    """The run with its request times multiplied, and other settings."""
    requests = tuple(
        replace(r, request_ms=factor * r.request_ms, prefill_ms=factor * r.prefill_ms) for r in run.requests
    )
    return replace(run, requests=requests, settings={**run.settings, **settings})


@pytest.fixture(scope="module")
def runs() -> list[RunRecord]:
    return [toy_run(method, slots=slots) for method in (AR, EAGLE3, SPECFIT) for slots in (2, 4)]


def test_rows_have_the_columns_of_tables_2_and_3(runs: list[RunRecord]) -> None:
    rows = summary_rows(runs)
    assert [(row["method"], row["cache"]) for row in rows][:2] == [("ar", "2 slots"), ("ar", "4 slots")]
    for row, run in zip(rows, runs, strict=True):
        assert row["cycles"] == len(run.cycles()) and row["committed"] >= 1
        assert {"decode_tps", "draft_nodes", "cycle_ms", "draft_ms", "h2d_per_token", "hit_rate"} <= set(row)
    json.dumps(rows, allow_nan=False)


def test_speedup_is_over_ar_with_the_same_cache_workload_and_link(runs: list[RunRecord]) -> None:
    ar, fast = runs[0], slowed(runs[0], 0.5, method="specfit")
    other_slots = slowed(ar, 7, slots_per_layer=3)
    assert [row["speedup"] for row in summary_rows([other_slots, ar, fast])] == pytest.approx([1, 1, 2])
    for key, value in [("slots_per_layer", 9), ("cleared", True), ("workload", "x"), ("link", {"kind": "cuda"})]:
        (_, row) = summary_rows([ar, slowed(fast, 1, **{key: value})])
        assert row["speedup"] is None and "no AR run with the same" in row["notes"][0]


def test_runs_of_one_method_are_told_apart(runs: list[RunRecord]) -> None:
    noisy = slowed(runs[5], 1, routes={"source": "world", "accuracy": 0.6})
    for style in ("text", "markdown"):
        assert "specfit, 60% right routes" in report([runs[5], noisy], style=style)
        assert "specfit, run 2" in report([runs[5], runs[5]], style=style)
        assert "60%" not in report([noisy], style=style)


def test_slower_than_ar_is_said(runs: list[RunRecord]) -> None:
    rows = summary_rows([runs[0], slowed(runs[0], 2, method="mine")])
    assert [row["slower_than_ar"] for row in rows] == [False, True]
    assert "mine, 2 slots: SLOWER THAN AR (0.50x)" in report([runs[0], slowed(runs[0], 2, method="mine")])


def test_what_is_emulated_says_so(runs: list[RunRecord]) -> None:
    link = {"kind": "emulated", "gb_per_s": 2.5, "latency_us": 20}
    for style in ("text", "markdown"):
        assert "EMULATED LINK" in report([slowed(runs[0], 1, link=link)], style=style)
        assert "EMULATED" not in report([slowed(runs[0], 1, link={"kind": "cuda"})], style=style)
    assert "2.5" in report([slowed(runs[0], 1, link=link)])


def test_predicted_and_measured_times_are_printed_with_a_warning_when_they_differ(runs: list[RunRecord]) -> None:
    text = " ".join(report([runs[0]]).split())
    assert "predicted" in text and "WARNING: more than 10% apart" in text


def test_a_cut_run_and_a_changed_machine_are_said(runs: list[RunRecord]) -> None:
    run = replace(runs[0], complete=False, machine={"other_machines": [{}]})
    text = " ".join(report([run]).split())
    assert "not complete, 3 requests are finished" in text and "another machine" in text


def test_undefined_values_are_marked_and_explained(runs: list[RunRecord]) -> None:
    text = " ".join(report([replace(runs[0], requests=())]).split())
    assert "n/a" in text and "no TPS, " in text and "because no request is finished" in text
    assert report([]) == "No runs to report.\n"


@pytest.mark.parametrize("style", ["text", "markdown"])
def test_text_fits_a_terminal_and_its_columns_line_up(runs: list[RunRecord], style: str) -> None:
    big = slowed(runs[1], 1e-4, method="\u4e2d\u6587-a-very-long-name-of-a-policy", slots_per_layer=128)
    lines = table(summary_rows([*runs, big, slowed(big, 1e9)]), style=style).splitlines()
    if style == "markdown":
        assert len({line.count("|") for line in lines}) == 1
        return
    assert len({text_width(line) for line in lines[:-1]}) == 1
    assert max(map(text_width, report([*runs, big]).splitlines())) <= 120


def test_names_are_shown_as_data() -> None:
    evil = "<b>|x`\n\u202e\x1b[31m\u2028*"
    run = dice_run(2, method=evil, workload=evil, link={"kind": "emulated", "note": evil})
    for style in ("text", "markdown"):
        text = report([run], style=style)
        assert not {"\u202e", "\x1b", "\u2028"} & set(text)
    assert "<b>" not in text and "&lt;b&gt;\\|x\\`" in text
    assert printable("a\n\t\u200b\ud800\U000e0001") == r"a\n\t\u200b\ud800\U000e0001"
    assert printable("\u4e2d\u00e9 ok") == "\u4e2d\u00e9 ok"
    assert escape_markdown("a|b_c<d>&") == r"a\|b\_c&lt;d&gt;&amp;"
    assert [clip("abcdef", 4), clip("\u4e2d\u6587\u4e2d", 5), clip("abc", 3)] == [
        "abc\u2026",
        "\u4e2d\u6587\u2026",
        "abc",
    ]


def test_an_unknown_style_is_refused() -> None:
    with pytest.raises(ValueError, match="'text' or 'markdown'; got 'html'"):
        report([], style="html")


def test_opening_and_reporting_runs_needs_no_torch() -> None:
    names = "run_folder metrics workloads prompts report paper"
    code = (
        "import sys\n"
        + "".join(f"import specfit.{name}\n" for name in names.split())
        + "print([name for name in ('torch', 'transformers', 'tokenizers', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
