"""What groups and names runs in figures: the workload they decoded, the cache they had, the method and its colour."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from specfit.records import RunRecord
from specfit.report import cache_name, printable, told_apart
from workbench.run_facts import run_of
from workbench.theme import method_colour, method_words

PAPER_METHODS = ("ar", "eagle3", "specfit")  # in the order of its tables


def runs_of(runs: Any) -> list[RunRecord]:
    """Records of one run or several, each a record or a folder, named so that no two are taken for one.

    Raises ValueError for none.
    """
    if isinstance(runs, RunRecord | str) or not isinstance(runs, Iterable):
        runs = [runs]
    found = [run_of(run) for run in runs]
    if not found:
        raise ValueError("figures are made of runs, and none is given")
    return told_apart(found)


def workload_of(run: RunRecord) -> str:
    """The workload's name, safe to show."""
    workload = run.settings.get("workload", "unnamed workload")
    return printable(str(workload.get("name", workload)) if isinstance(workload, Mapping) else str(workload))


def cache_of(run: RunRecord) -> str:
    """ "24 slots", or "cleared" for a cache that is emptied before every forward."""
    return printable(cache_name(run))


def slots_of(run: RunRecord) -> int:
    """Expert slots a layer; 0 for a cleared cache."""
    return 0 if run.settings.get("cleared") else int(run.settings.get("slots_per_layer") or 0)


def by_workload(runs: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
    """The runs of every workload, in order."""
    groups: dict[str, list[RunRecord]] = {}
    for run in runs:
        groups.setdefault(workload_of(run), []).append(run)
    return groups


def methods_of(runs: Sequence[RunRecord]) -> list[str]:
    """The methods in the paper's order, others behind in the order of the runs."""
    found = list(dict.fromkeys(run.method for run in runs))
    return sorted(found, key=lambda method: PAPER_METHODS.index(method) if method in PAPER_METHODS else 3)


def rule_of(run: RunRecord) -> str:
    """The method itself, without what `told_apart` added to its name."""
    return run.method.partition(", ")[0]


def colour_of(method: str, runs: Sequence[RunRecord]) -> str:
    """The method's colour among these runs."""
    return method_colour(method, tuple(other for other in methods_of(runs) if other not in PAPER_METHODS))


def name_among(run: RunRecord, runs: Sequence[RunRecord]) -> str:
    """The method, and what tells this run from the others of its method."""
    parts = [method_words(run.method)]
    for tell in (workload_of, cache_of):
        if len({tell(other) for other in runs}) > 1:
            parts.append(tell(run))
    return ", ".join(parts)


def timing_notes(runs: Sequence[RunRecord]) -> tuple[str, ...]:
    """What a reader must know of the times of these runs."""
    links = [run.settings.get("link") for run in runs]
    kinds = {str(link.get("kind")) for link in links if isinstance(link, Mapping)}
    notes = []
    if "emulated" in kinds:
        notes.append("Emulated link: copies wait for the deadlines of a described host-to-device link.")
    if "modelled" in kinds:
        notes.append("Modelled times: computed from counts for a described machine, not measured.")
    if not all(run.complete for run in runs):
        notes.append("A run here is not complete; its finished requests are drawn.")
    for run in runs:
        if not run.cycles():
            notes.append(f"{name_among(run, runs)} has no decode cycle, so nothing of it can be drawn.")
    return tuple(notes)
