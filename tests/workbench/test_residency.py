"""Inferred residency against a real LRU cache that is asked before every forward."""

import pytest

from specfit.methods import AR, EAGLE3, SPECFIT
from tests.toys import EXPERTS, LAYERS, ToyTarget, ToyWorld, toy_decoding, toy_request, toy_run
from workbench.residency import Residency, residency_before, residency_in


def resident_bitmap(target: ToyTarget) -> int:
    return sum(1 << (layer * EXPERTS + expert) for layer, cache in enumerate(target.caches) for expert in cache.slot_of)


@pytest.mark.parametrize("method", [AR, EAGLE3, SPECFIT], ids=lambda method: method.name)
@pytest.mark.parametrize("slots", [1, 2, 4, 6, 7, 8])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_what_is_called_certain_is_so(method, slots, seed):
    world = ToyWorld(seed)
    target = ToyTarget(world, slots=slots)
    decoding = toy_decoding(world, (seed, 1, 2, 3), method=method, target=target, max_new_tokens=40)
    before: list[int] = []
    verify = target.verify

    def spying(*arguments):
        before.append(resident_bitmap(target))
        return verify(*arguments)

    target.verify = spying
    cycles = toy_request(0, decoding).cycles
    known = 0
    for at, truth in enumerate(before):
        found = residency_before(cycles, at, slots=slots, cleared=False)
        certain = ~found.unknown & ((1 << LAYERS * EXPERTS) - 1)
        assert found.resident & certain == truth & certain, f"cycle {at}"
        known += certain.bit_count()
    if method is AR and slots > 1:
        assert known > len(before) * LAYERS * EXPERTS / 2  # and most is known


def test_recorded_misses_lie_in_the_inferred_range():
    run = toy_run(SPECFIT, slots=6)
    for request, cycle in run.cycles():
        executed = cycle.verified.root
        for row in cycle.verified.nodes:
            executed |= row
        least, most = residency_in(run, request, cycle.index).misses(executed)
        assert least <= cycle.counts.misses <= most


def test_a_cleared_cache_misses_everything():
    cycles = toy_run(SPECFIT).requests[0].cycles
    assert residency_before(cycles, 2, slots=4, cleared=True) == Residency(0, 0)


def test_without_slots_nothing_is_known():
    cycles = toy_run(SPECFIT).requests[0].cycles
    assert residency_before(cycles, 2, slots=None, cleared=False).misses(0b101) == (0, 2)
