"""Which experts sat in a slot before a cycle, as its record says; records that do not say leave it unknown."""

from __future__ import annotations

from dataclasses import dataclass

from specfit.records import RequestRecord, RunRecord


@dataclass(frozen=True, slots=True)
class Residency:
    """Bitmaps of the experts (bit layer * experts + expert) that were resident, or may have been, before a forward."""

    resident: int = 0  # in a slot for certain
    unknown: int = -1  # resident or not, the record does not tell; -1: every expert

    def misses(self, executed: int) -> tuple[int, int]:
        """The least and the most copies that executing these experts would have taken."""
        unknown = executed & self.unknown
        certain = executed & ~self.resident & ~self.unknown
        return certain.bit_count(), certain.bit_count() + unknown.bit_count()


UNKNOWN = Residency()


def residency_in(run: RunRecord, request: RequestRecord, index: int) -> Residency:
    """What was resident before cycle `index` of `request`; a cleared cache holds nothing, recorded or not."""
    recorded = request.cycles[index].resident
    if recorded is not None:
        return Residency(recorded, 0)
    return Residency(0, 0) if run.settings.get("cleared", False) else UNKNOWN
