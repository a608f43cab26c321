"""What groups runs: the workload they decoded and the cache they had."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specfit.records import RunRecord
from specfit.report import cache_name, printable


def workload_of(run: RunRecord) -> str:
    """The workload's name, safe to show."""
    workload = run.settings.get("workload", "unnamed workload")
    return printable(str(workload.get("name", workload)) if isinstance(workload, Mapping) else str(workload))


def cache_of(run: RunRecord) -> str:
    """ "24 slots", or "cleared" for a cache that is emptied before every forward."""
    return printable(cache_name(run))


def by_workload(runs: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
    """The runs of every workload, in order."""
    groups: dict[str, list[RunRecord]] = {}
    for run in runs:
        groups.setdefault(workload_of(run), []).append(run)
    return groups
