"""The published numbers beside a run's, and what each difference can come from.

A difference is never explained away: it is said which of model, link, hardware and protocol differ from the paper's,
and which of them a column depends on. Where none of those differ, the difference is called unexplained.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from specfit.experiments.document import Column
from specfit.paper import A100, FIGURE_4, FIGURE_4_SLOTS, RTX4090, TABLE_2, TABLE_3, TABLE_4, PaperRow
from specfit.records import RunRecord
from specfit.workloads import PAPER_WORKLOADS

PAPER_TARGET, PAPER_DTYPE = "qwen3-30b-a3b-instruct-2507", "bfloat16"
PAPER_DRAFT = {"top_k": 2, "depth": 5, "max_pool": 18}
PAPER_EXPERTS = 128
# the paper's name of a workload -> (number of its table, rows, machine, slots a layer)
TABLES: Mapping[str, tuple[int, tuple[PaperRow, ...], str, int]] = {
    "summarization": (2, TABLE_2, A100, 48),
    "gsm8k": (3, TABLE_3, A100, 48),
    "gsm8k-4090": (4, TABLE_4, RTX4090, 32),
}
STANDS_FOR = {"news": "summarization", "problems": "gsm8k"}  # of the embedded corpus
GPU_NAMES = {A100: re.compile("A100-PCIE-40GB"), RTX4090: re.compile("RTX 4090$")}  # as they name themselves
# key, heading, format
COMPARED: tuple[Column, ...] = (
    ("draft_nodes", "nodes", "{:.2f}"),
    ("committed", "committed", "{:.2f}"),
    ("cycles", "cycles", "{}"),
    ("cycle_ms", "ms/cycle", "{:.1f}"),
    ("h2d_per_token", "H2D/token", "{:.1f}"),
    ("decode_tps", "TPS", "{:.2f}"),
    ("speedup", "speed-up", "{:.2f}x"),
)
COLUMNS: tuple[Column, ...] = (
    ("source", "source", "{}"),
    ("label", "method", "{}"),
    ("cache", "cache", "{}"),
    *COMPARED,
)
FIXED_TREES = ("ar", "eagle3")  # what these verify depends on no time, so neither do their counts
COUNTED = ("draft_nodes", "committed", "cycles", "h2d_per_token")
LETTERS = {"model": "M", "link": "L", "hardware": "H", "protocol": "P"}


def exact_routes(run: RunRecord) -> bool:
    """Whether a run's method, if it reads routes at all, read the atlas's own: the paper's tables have no other."""
    routes = run.settings.get("routes")
    return not isinstance(routes, Mapping) or (
        routes.get("source") in ("atlas", "target") and routes.get("accuracy", 1.0) == 1.0
    )


def paper_name(workload: Mapping[str, Any]) -> str | None:
    """Which of the paper's workloads an experiment's workload is, or stands for."""
    return workload.get("paper") or STANDS_FOR.get(str(workload.get("embedded")))


def beside_paper(
    rows: Sequence[tuple[RunRecord, Mapping[str, Any]]], workload: Mapping[str, Any], calibration: str
) -> tuple[list[dict[str, Any]], list[str]]:
    """Table rows, ours with the paper's and the difference below each, and notes that attribute the differences.

    rows: runs with their rows of `summary_rows` (and a "label"); workload: as in experiment.json; calibration: its
    protocol. Runs whose cache the paper does not have stand alone.
    """
    name = paper_name(workload)
    shown: list[dict[str, Any]] = []
    found: dict[str, dict[str, None]] = {}
    for run, row in rows:
        shown.append({**row, "source": "this run"})
        published = None if name is None else _published(run, name)
        if published is None or name is None:
            continue
        why = causes(run, workload, calibration, name)
        for cause, sentences in why.items():
            found.setdefault(cause, {}).update(dict.fromkeys(sentences))
        shown += [
            {**published, "source": f"paper, Table {TABLES[name][0]}", "label": row["label"], "cache": row["cache"]},
            {
                **_difference(run, row, published, why),
                "source": "difference",
                "label": row["label"],
                "cache": row["cache"],
            },
        ]
    notes = [f"{LETTERS[cause]} ({cause}): {'; '.join(found[cause])}" for cause in LETTERS if cause in found]
    if len(shown) > len(rows):
        notes.append(
            "Letters after a difference name what it can come from: whatever differs from the paper there and can "
            "reach that column. '?' marks a difference with none of these causes: unexplained."
        )
    return shown, notes


def causes(run: RunRecord, workload: Mapping[str, Any], calibration: str, name: str) -> dict[str, list[str]]:
    """What of a run differs from the paper's setting, by cause, in words."""
    settings = run.settings
    found: dict[str, list[str]] = {cause: [] for cause in LETTERS}
    _, _, machine, slots = TABLES[name]
    target = str(settings.get("target"))
    if target.rsplit("/", 1)[-1].lower() != PAPER_TARGET:
        found["model"].append(f"target {target} in place of Qwen3-30B-A3B-Instruct-2507, with its own drafter")
    if settings.get("dtype") != PAPER_DTYPE:
        found["model"].append(f"{settings.get('dtype')} in place of {PAPER_DTYPE}")
    link = settings.get("link")
    if not isinstance(link, Mapping) or link.get("kind") != "cuda":
        kind = link.get("kind") if isinstance(link, Mapping) else "unknown"
        found["link"].append(f"{kind} link in place of CUDA copies over PCIe")
    gpu = run.machine.get("gpu")
    if not GPU_NAMES[machine].search(str(gpu)):
        found["hardware"].append(f"{gpu or run.machine.get('processor') or 'another machine'} in place of {machine}")
    ids, limit = PAPER_WORKLOADS[name]
    if list(workload.get("questions", ())) != list(ids):
        found["protocol"].append(f"{len(workload.get('questions', ()))} other questions than the paper's {len(ids)}")
    if workload.get("limits") != {"max_new_tokens": None, "max_total_tokens": limit}:
        found["protocol"].append(f"other limits than {limit} tokens of input and output")
    if not settings.get("cleared") and (settings.get("slots_per_layer"), run.experts) != (slots, PAPER_EXPERTS):
        ours = f"{settings.get('slots_per_layer')} of {run.experts}"
        found["protocol"].append(f"{ours} slots a layer in place of {slots} of {PAPER_EXPERTS}")
    if settings.get("draft") != PAPER_DRAFT or settings.get("max_nodes", 7) not in (0, 7):
        found["protocol"].append("other draft settings than top-2, depth 5, 18 nodes, K = 7")
    if calibration != "paper":
        found["protocol"].append(f"calibration by {calibration} cycles in place of the paper's repeated probes")
    if settings.get("order") == "interleaved":
        found["protocol"].append("methods take turns on every question in place of one after the other")
    if not run.complete:
        asked = len(workload.get("questions", ()))
        found["protocol"].append(f"only {len(run.requests)} of {asked} requests are finished")
    return {cause: sentences for cause, sentences in found.items() if sentences}


def figure_4(rows: Sequence[tuple[RunRecord, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Figure 4's numbers: every run by its share of experts in slots, the paper's beside it where the share is one of
    its own (48, 24 and 12 of 128, and none)."""
    found = []
    for run, row in rows:
        slots = 0 if run.settings.get("cleared") else int(run.settings.get("slots_per_layer") or run.experts)
        share = slots / run.experts
        place = next(
            (at for at, paper in enumerate(FIGURE_4_SLOTS) if abs(paper / PAPER_EXPERTS - share) < 0.005), None
        )
        line: dict[str, Any] = {"label": row["label"], "cache": row["cache"], "share": share}
        for key in FIGURE_4:
            line[key] = row[key]
            published = FIGURE_4[key].get(run.method)
            if place is not None and published is not None and exact_routes(run):
                line[f"paper_{key}"] = published[place]
        found.append(line)
    return found


FIGURE_4_COLUMNS: tuple[Column, ...] = (
    ("label", "method", "{}"),
    ("cache", "cache", "{}"),
    ("share", "share of experts", "{:.0%}"),
    ("decode_tps", "TPS", "{:.2f}"),
    ("paper_decode_tps", "paper", "{:.2f}"),
    ("cycle_ms", "ms/cycle", "{:.1f}"),
    ("paper_cycle_ms", "paper", "{:.1f}"),
    ("h2d_per_token", "H2D/token", "{:.1f}"),
    ("paper_h2d_per_token", "paper", "{:.1f}"),
)


def _published(run: RunRecord, name: str) -> dict[str, Any] | None:
    """The paper's row for this run: its method with exact routes, without the cache or with the same share of slots."""
    _, published, _, slots = TABLES[name]
    cleared = bool(run.settings.get("cleared"))
    share = int(run.settings.get("slots_per_layer") or run.experts) / run.experts
    if not exact_routes(run) or not (cleared or abs(share - slots / PAPER_EXPERTS) < 0.005):
        return None
    for candidate in published:
        if (candidate.method, candidate.cache) == (run.method, not cleared):
            baseline = next(other for other in published if (other.method, other.cache) == ("ar", not cleared))
            return {**asdict(candidate), "speedup": candidate.decode_tps / baseline.decode_tps}
    return None


def _difference(
    run: RunRecord, row: Mapping[str, Any], published: Mapping[str, Any], why: Mapping[str, Sequence[str]]
) -> dict[str, str]:
    found = {}
    for key, _, _ in COMPARED:
        ours, theirs = row.get(key), published.get(key)
        if ours is None or not theirs:
            continue
        counted = run.method in FIXED_TREES and key in COUNTED
        change = ours / theirs - 1
        letters = ",".join(
            letter
            for cause, letter in LETTERS.items()
            if cause in why and not (counted and cause in ("link", "hardware"))
        )
        found[key] = f"{change:+.0%} {letters or '?'}" if abs(change) >= 0.005 else "same"
    return found
