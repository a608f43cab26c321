"""Where the paper shows a workload, and its printed numbers as rows to stand beside ours.

Ours is another model on another machine, so the rows are for the shape (who leads, by how much), never to be mixed:
each row says its source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from specfit.paper import FIGURE_4, FIGURE_4_SLOTS, TABLE_2, TABLE_3, TABLE_4, PaperRow
from specfit.records import RunRecord
from specfit.workloads import paper_ids
from workbench.run_table import workload_of
from workbench.theme import method_words

OURS = "this run"
BESIDE = "Rows of the paper are Qwen3-30B-A3B on other hardware: compare ratios, not absolute numbers."
WORDS = {2: ({"news"}, {"summarization"}), 3: ({"problems"}, {"gsm8k"}, {"math", "reasoning"})}  # of names, by table
IDS = {4: "gsm8k-4090", 2: "summarization", 3: "gsm8k"}  # of paper_ids, by table


@dataclass(frozen=True, slots=True)
class PaperPlace:
    """One workload of the paper on one machine."""

    setting: str  # in words
    figure: int | None  # of its throughput
    table: int
    rows: tuple[PaperRow, ...]


PLACES = {
    2: PaperPlace("CNN/DailyMail summarization, A100", 2, 2, TABLE_2),
    3: PaperPlace("GSM8K, A100", 3, 3, TABLE_3),
    4: PaperPlace("GSM8K (40 odd ids), RTX 4090", None, 4, TABLE_4),
}


def place_of(run: RunRecord) -> PaperPlace | None:
    """The paper's workload that this run's stands for, by its question ids or its name; None for any other.

    The embedded `news` and `problems` stand for summarization and GSM8K.
    """
    asked = run.settings.get("questions")
    ids = {int(i) for i in asked if str(i).isdigit()} if isinstance(asked, list | tuple) else set()
    for table, paper in IDS.items():
        if ids == set(paper_ids(paper)[0]):
            return PLACES[table]
    words = set(re.split("[^a-z0-9]+", workload_of(run).lower()))
    for table in (2, 3):  # some of a table's questions, by the numbers that they have in Spec-Bench
        if words & {"spec", "specbench"} and ids and ids <= set(paper_ids(IDS[table])[0]):
            return PLACES[table]
    return next((PLACES[table] for table, names in WORDS.items() if any(name <= words for name in names)), None)


def table_rows(place: PaperPlace) -> list[dict[str, Any]]:
    """The rows of the place's table, with the keys of `tables.RUN_COLUMNS` and their source.

    Speed-ups are over AR with the same cache, as ours are; those that Table 4 prints are over AR without one.
    """
    ar = {row.cache: row.decode_tps for row in place.rows if row.method == "ar"}
    return [
        {
            "source": f"paper, Table {place.table}",
            "method": method_words(row.method),
            "cache": "yes" if row.cache else "no",
            "decode_tps": row.decode_tps,
            "speedup": row.decode_tps / ar[row.cache],
            "draft_nodes": row.draft_nodes,
            "committed": row.committed,
            "cycles": row.cycles,
            "cycle_ms": row.cycle_ms,
            "h2d_per_token": row.h2d_per_token,
        }
        for row in place.rows
    ]


def throughput_rows(place: PaperPlace) -> Iterator[Mapping[str, Any]]:
    """Decode tokens per second of Figure 2 or 3 (Table 4 for the second machine)."""
    source = f"paper, Figure {place.figure}" if place.figure else f"paper, Table {place.table}"
    for row in place.rows:
        cache = "with cache" if row.cache else "cleared"
        yield {
            "source": source,
            "workload": place.setting,
            "cache": cache,
            "method": row.method,
            "decode_tps": row.decode_tps,
        }


def pressure_rows() -> Iterator[Mapping[str, Any]]:
    """Figures 4a and 4b."""
    for at, slots in enumerate(FIGURE_4_SLOTS):
        for method in ("eagle3", "specfit"):
            values = {key: of_methods[method][at] for key, of_methods in FIGURE_4.items()}
            yield {
                "source": "paper, Figure 4",
                "workload": PLACES[2].setting,
                "slots": slots,
                "method": method,
                **values,
            }
