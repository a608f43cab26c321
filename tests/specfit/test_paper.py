"""The published numbers: consistent with each other, and read by nothing that could turn them into defaults."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import specfit
from specfit import paper

MAY_COMPARE = {"report.py", "theory/table_5.py", "experiments/published.py", "experiments/tables.py"}


def test_nothing_but_reports_reads_the_papers_numbers() -> None:
    root = Path(specfit.__file__).parent
    readers = set()
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module}", *(f"{node.module}.{alias.name}" for alias in node.names)]
                names += [f"specfit.{alias.name}" for alias in node.names if node.level]
            if "specfit.paper" in names:
                readers.add(path.relative_to(root).as_posix())
    assert readers <= MAY_COMPARE


@pytest.mark.parametrize("table", [paper.TABLE_2, paper.TABLE_3, paper.TABLE_4])
def test_throughput_is_tokens_over_time(table: tuple[paper.PaperRow, ...]) -> None:
    for row in table:
        assert row.decode_tps == pytest.approx(1e3 * row.committed / row.cycle_ms, rel=0.015)


def test_tokens_are_the_same_for_every_method() -> None:
    for table in (paper.TABLE_2, paper.TABLE_3, paper.TABLE_4):
        tokens = [row.committed * row.cycles for row in table]
        assert max(tokens) / min(tokens) < 1.02


def test_figure_4_ends_in_table_2() -> None:
    for column in ("decode_tps", "cycle_ms", "h2d_per_token"):
        for method in ("specfit", "eagle3"):
            values = paper.FIGURE_4[column][method]
            assert len(values) == len(paper.FIGURE_4_SLOTS)
            for cache, value in ((True, values[0]), (False, values[-1])):
                (row,) = [row for row in paper.TABLE_2 if (row.method, row.cache) == (method, cache)]
                assert getattr(row, column) == value


def test_table_4_speedups_are_over_ar_without_the_cache() -> None:
    base = paper.TABLE_4[0].decode_tps
    for row in paper.TABLE_4:
        assert row.speedup == pytest.approx(row.decode_tps / base, abs=0.01)


def test_coefficients_reach_seven_nodes_and_need_not_rise() -> None:
    assert [len(cost.intercepts_ms) for cost in paper.COEFFICIENTS] == [8] * 4
    assert list(paper.COEFFICIENTS[1].intercepts_ms) != sorted(paper.COEFFICIENTS[1].intercepts_ms)
