"""What was in the cache before a cycle: as recorded, nothing after clearing, and unknown where nothing is said."""

from __future__ import annotations

from dataclasses import replace

from tests.toys import toy_run
from workbench.residency import UNKNOWN, Residency, residency_in


def test_recorded_residents_tell_every_miss() -> None:
    run = toy_run(slots=6)
    for request in run.requests:
        for index, cycle in enumerate(request.cycles):
            executed = cycle.verified.root
            for bitmap in cycle.verified.nodes:
                executed |= bitmap
            assert residency_in(run, request, index).misses(executed) == (cycle.counts.misses, cycle.counts.misses)


def test_records_that_do_not_say_leave_it_unknown_unless_the_cache_was_cleared() -> None:
    run = toy_run()
    request = replace(run.requests[0], cycles=tuple(replace(c, resident=None) for c in run.requests[0].cycles))
    assert residency_in(run, request, 0) == UNKNOWN
    assert UNKNOWN.misses(0b101) == (0, 2)
    cleared = replace(run, settings={**run.settings, "cleared": True})
    assert residency_in(cleared, request, 0) == Residency(0, 0)
