"""Which experts sat in a slot before a cycle, as far as a run's records tell.

A record counts hits and misses but does not say which experts they were. An LRU cache of s slots holds the s experts
used last, so the routes of the cycles since a request's prefill tell most of it: an expert is resident for certain when
fewer than s others were used since, absent when at least s were, and unknown otherwise (its last use may lie in the
prefill, whose routes are not recorded, or the order within one token decides). Where the recorded counts settle the
unknown ones, they do; where they contradict the inference (another cache rule), everything is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specfit.records import CycleRecord, RequestRecord, RunRecord
from specfit.routes import Routes, pack_bitmaps, unpack_bitmaps


@dataclass(frozen=True, slots=True)
class Residency:
    """Bitmaps of the experts (bit layer * experts + expert) that were resident, or may have been, before a forward."""

    resident: int = 0  # in a slot for certain
    unknown: int = -1  # resident or not, the records do not tell; -1: every expert

    def misses(self, executed: int) -> tuple[int, int]:
        """The least and the most copies that executing these experts would have taken."""
        unknown = executed & self.unknown
        certain = executed & ~self.resident & ~self.unknown
        return certain.bit_count(), certain.bit_count() + unknown.bit_count()


UNKNOWN = Residency()


def residency_before(cycles: Sequence[CycleRecord], at: int, *, slots: int | None, cleared: bool) -> Residency:
    """What was resident before cycle `at` of a request's `cycles`.

    slots: per layer; None says nothing is known. cleared: the cache was emptied before every forward.
    """
    routes = cycles[at].verified
    if cleared:
        return Residency(0, 0)
    if slots is None or not routes.layers:
        return UNKNOWN
    if slots >= routes.experts:
        found = _everything_fits(cycles[:at], routes)
    else:
        found = _from_last_uses(last_uses(cycles[:at], slots, routes.layers, routes.experts), slots)
    return _settled(found, cycles[at])


def last_uses(cycles: Sequence[CycleRecord], slots: int, layers: int, experts: int) -> np.ndarray:
    """When each expert was last used, (layers, experts): rows counted from the request's first cycle, -1 for never.

    A forward that needs more experts of a layer than it has slots runs in waves; what it leaves behind is not told by
    last uses alone, so the layer starts anew.
    """
    last = np.full((layers, experts), -1)
    row = 0
    for cycle in cycles:
        used = _bits(cycle.verified).reshape(-1, layers, experts)
        for bits in used:
            last[bits] = row
            row += 1
        last[used.any(axis=0).sum(axis=1) > slots] = -1
    return last


def _from_last_uses(last: np.ndarray, slots: int) -> Residency:
    own, other = last[:, :, None], last[:, None, :]
    later = (other > own).sum(axis=2)  # (layers, experts) used since for certain
    as_late = ((other >= own) & (other >= 0)).sum(axis=2)  # with itself and those used by the same row
    resident = (last >= 0) & (as_late <= slots)
    unknown = ~resident & (later < slots)
    return Residency(_bitmap(resident), _bitmap(unknown))


def _everything_fits(cycles: Sequence[CycleRecord], routes: Routes) -> Residency:
    """Nothing is ever evicted: what was used is resident, what was not may have been loaded by a prefill."""
    used = 0
    for cycle in cycles:
        for bitmap in (cycle.verified.root, *cycle.verified.nodes):
            used |= bitmap
    return Residency(used, (1 << routes.layers * routes.experts) - 1 & ~used)


def _settled(found: Residency, cycle: CycleRecord) -> Residency:
    """Use the recorded counts: they may decide all executed experts that are unknown, or refute the inference."""
    executed = cycle.verified.root
    for bitmap in cycle.verified.nodes:
        executed |= bitmap
    least, most = found.misses(executed)
    if not least <= cycle.counts.misses <= most or executed.bit_count() != cycle.counts.demand:
        return UNKNOWN
    if cycle.counts.misses == least:
        return Residency(found.resident | executed & found.unknown, found.unknown & ~executed)
    if cycle.counts.misses == most:
        return Residency(found.resident, found.unknown & ~executed)
    return found


def _bits(routes: Routes) -> np.ndarray:
    packed = pack_bitmaps((routes.root, *routes.nodes), layers=routes.layers, experts=routes.experts)
    return np.unpackbits(packed, axis=1, bitorder="little", count=routes.layers * routes.experts).astype(bool)


def _bitmap(mask: np.ndarray) -> int:
    return unpack_bitmaps(np.packbits(mask.reshape(1, -1), axis=1, bitorder="little"))[0]


def residency_in(run: RunRecord, request: RequestRecord, index: int) -> Residency:
    """What was resident before cycle `index` of `request`, by the run's settings."""
    slots = run.settings.get("slots_per_layer")
    return residency_before(
        request.cycles,
        index,
        slots=slots if isinstance(slots, int) else None,
        cleared=bool(run.settings.get("cleared", False)),
    )
