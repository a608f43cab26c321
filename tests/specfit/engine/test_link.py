"""The emulated link keeps its deadlines: on an injected clock exactly, on the real one never early."""

from __future__ import annotations

import time

import pytest
import torch

from specfit.engine.link import EmulatedLink, InstantLink


class FakeClock:
    """Time that passes by sleeping, by computing (`pass_ms`), and by a microsecond at every look."""

    def __init__(self) -> None:
        self.now, self.slept, self.looks = 100.0, [], 0

    def __call__(self) -> float:
        self.looks += 1
        self.now += 1e-6
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.slept.append(seconds)
        self.now += seconds

    def pass_ms(self, ms: float) -> None:
        self.now += ms / 1e3


def pairs(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.full((4,), float(i + 1)), torch.zeros(4)) for i in range(count)]


def link(expert_ms: float, latency_ms: float = 0.0) -> tuple[EmulatedLink, FakeClock]:
    clock = FakeClock()
    return EmulatedLink(expert_ms, latency_ms=latency_ms, clock=clock, sleep=clock.sleep), clock


def test_the_bytes_arrive_and_the_wait_is_counted() -> None:
    wire, clock = link(2.0, latency_ms=0.5)
    batch, start = pairs(3), clock.now
    wire.fetch(batch)
    wire.wait()
    for source, target in batch:
        assert torch.equal(source, target)
    assert clock.now - start >= 3 * 2.5e-3  # the latency precedes every copy
    assert clock.now - start == pytest.approx(3 * 2.5e-3, abs=1e-4)
    assert wire.waited_ms == pytest.approx(7.5, abs=0.1)
    assert clock.slept  # most of it asleep, the rest spun
    assert sum(clock.slept) < 7.5e-3


def test_computing_meanwhile_overlaps() -> None:
    wire, clock = link(2.0)
    wire.fetch(pairs(2))
    clock.pass_ms(3.0)
    wire.wait()
    assert wire.waited_ms == pytest.approx(1.0, abs=0.1)
    wire.fetch(pairs(1))
    clock.pass_ms(5.0)
    looks = clock.looks
    wire.wait()
    assert wire.waited_ms == pytest.approx(1.0, abs=0.1)  # already there
    assert clock.looks == looks + 1


def test_copies_queue_behind_those_on_their_way() -> None:
    wire, clock = link(4.0)
    start = clock.now
    wire.fetch(pairs(1))
    clock.pass_ms(1.0)
    wire.fetch(pairs(1))  # the link is busy for 3 ms more
    wire.wait()
    assert 8e-3 <= clock.now - start < 8.2e-3


def test_an_idle_link_starts_now_and_not_in_the_past() -> None:
    wire, clock = link(4.0)
    wire.fetch(pairs(1))
    wire.wait()
    clock.pass_ms(50.0)
    start = clock.now
    wire.fetch(pairs(1))
    wire.wait()
    assert clock.now - start >= 4e-3


def test_nothing_to_wait_for_costs_nothing() -> None:
    wire, clock = link(4.0)
    wire.wait()
    wire.fetch([])
    wire.wait()
    assert wire.waited_ms == 0
    assert not clock.slept


@pytest.mark.parametrize("count", [1, 3])
def test_the_real_clock_is_never_early(count: int) -> None:
    wire = EmulatedLink(1.5, latency_ms=0.25)
    for _ in range(3):
        start = time.perf_counter()
        wire.fetch(pairs(count))
        wire.wait()
        assert time.perf_counter() - start >= count * 1.75e-3
    assert wire.waited_ms > 0


@pytest.mark.parametrize(("expert_ms", "latency_ms"), [(-1, 0), (1, -0.1), (float("nan"), 0), (float("inf"), 0)])
def test_times_that_no_link_has_are_refused(expert_ms: float, latency_ms: float) -> None:
    with pytest.raises(ValueError, match="link times are milliseconds, 0 or more"):
        EmulatedLink(expert_ms, latency_ms=latency_ms)


def test_links_name_themselves() -> None:
    assert InstantLink().describe() == {"kind": "none"}
    assert EmulatedLink(2).describe() == {"kind": "emulated", "expert_ms": 2.0, "latency_ms": 0.0}


def test_the_instant_link_copies() -> None:
    batch, wire = pairs(2), InstantLink()
    wire.fetch(batch)
    wire.wait()
    assert all(torch.equal(source, target) for source, target in batch)
    assert wire.waited_ms == 0


def test_off_the_clock_the_link_only_copies_and_owes_nothing_afterwards() -> None:
    wire, clock = link(2.0)
    wire.fetch(pairs(1))
    batch = pairs(3)
    with wire.off_the_clock():  # what was on its way arrives first, at the link's pace
        assert wire.waited_ms == pytest.approx(2.0, abs=0.1)
        start = clock.now
        wire.fetch(batch)
        wire.wait()
    wire.wait()
    assert clock.now - start < 1e-4
    assert all(torch.equal(source, target) for source, target in batch)
    assert wire.waited_ms == pytest.approx(2.0, abs=0.1)
    wire.fetch(pairs(1))
    wire.wait()
    assert wire.waited_ms == pytest.approx(4.0, abs=0.2)
