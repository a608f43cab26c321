"""The expert cache against a naive LRU, and what every pass must keep to, however few the slots."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specfit.engine.expert_cache import ExpertCache, Wave

EXPERTS = 9
quick = settings(max_examples=60, deadline=None)
passes = st.lists(st.lists(st.integers(0, EXPERTS - 1), min_size=1, max_size=30), min_size=1, max_size=8)


class NaiveLru:
    """A list of residents, least recently used first; a pass is served expert by expert, by last use."""

    def __init__(self, slots: int) -> None:
        self.slots, self.residents = slots, []

    def serve(self, uses: list[int]) -> tuple[set[int], set[int]]:
        """(hits, misses) of a pass that fits."""
        needed = [expert for i, expert in enumerate(uses) if expert not in uses[i + 1 :]]
        hits, misses = set(needed) & set(self.residents), set(needed) - set(self.residents)
        self.residents = [expert for expert in self.residents if expert not in needed]
        while len(self.residents) + len(needed) > self.slots:
            self.residents.pop(0)
        self.residents += needed
        return hits, misses


def run(cache: ExpertCache, slot_memory: dict[int, int], uses: list[int]) -> list[Wave]:
    """Act a pass out with slots that hold expert ids, and check each promise on the way."""
    before = dict(cache.slot_of)
    waves = cache.serve(uses)
    needed, ran, loaded = set(uses), set(), []
    for number, wave in enumerate(waves):
        assert wave.hits or wave.loads
        assert number == 0 or not wave.hits
        assert len({slot for _, slot in wave.loads}) == len(wave.loads)
        for expert, slot in wave.loads:
            assert 0 <= slot < cache.slots
            old = slot_memory.get(slot)
            assert old not in needed or old in ran  # nothing is overwritten before it ran
            slot_memory[slot] = expert
            loaded.append(expert)
        for expert, slot in (*wave.hits, *wave.loads):
            assert slot_memory[slot] == expert
            assert expert not in ran
            ran.add(expert)
    assert ran == needed
    assert {expert for expert, _ in waves[0].hits} == needed & set(before)
    assert len(loaded) == len(set(loaded))  # copied at most once
    assert set(loaded) == needed - set(before)
    assert sorted(cache.slot_of.values()) == sorted(set(cache.slot_of.values()))
    for expert, slot in cache.slot_of.items():
        assert slot_memory[slot] == expert
    return waves


@quick
@given(st.integers(1, EXPERTS), passes)
def test_every_pass_runs_each_expert_once_from_its_slot(slots: int, sequence: list[list[int]]) -> None:
    cache, memory = ExpertCache(slots=slots, experts=EXPERTS), {}
    for uses in sequence:
        waves = run(cache, memory, uses)
        if len(set(uses)) <= slots:
            assert len(waves) == 1


@quick
@given(st.integers(1, EXPERTS), passes)
def test_passes_that_fit_are_a_plain_lru(slots: int, sequence: list[list[int]]) -> None:
    cache, naive = ExpertCache(slots=slots, experts=EXPERTS), NaiveLru(slots)
    for uses in sequence:
        uses = [expert for expert in uses if expert in set(uses[:slots])]  # at most as many as there are slots
        hits, misses = naive.serve(uses)
        (wave,) = cache.serve(uses)
        assert {expert for expert, _ in wave.hits} == hits
        assert {expert for expert, _ in wave.loads} == misses
        assert list(cache.slot_of) == naive.residents


@quick
@given(st.integers(1, EXPERTS), passes)
def test_a_pass_wider_than_the_slots_leaves_what_its_last_rows_used(slots: int, sequence: list[list[int]]) -> None:
    cache = ExpertCache(slots=slots, experts=EXPERTS)
    for uses in sequence:
        before = set(cache.slot_of)
        cache.serve(uses)
        needed = [expert for i, expert in enumerate(uses) if expert not in uses[i + 1 :]]  # last used last
        if len(needed) <= slots:
            continue
        last = needed[-slots:]
        if set(last) == before:  # every slot held one of them, and the others had to run somewhere
            assert set(last[1:]) <= set(cache.slot_of)
        else:
            assert list(cache.slot_of) == last


def test_a_decode_step_hits_after_a_wide_prefill() -> None:
    """Case I5: 60 of 128 experts pass through 8 slots, and the next step still finds the last token's experts."""
    cache = ExpertCache(slots=8, experts=128)
    for start in (0, 40):  # cold, then with the slots full of another prompt's experts
        prompt = [(start + 7 * row + step) % 60 for row in range(40) for step in range(8)]
        assert sum(len(wave.loads) for wave in cache.serve(prompt)) <= 60
        (wave,) = cache.serve(prompt[-8:])
        assert not wave.loads
        assert len(wave.hits) == 8


def test_a_hit_of_the_last_row_survives_the_waves_after_it() -> None:
    cache = ExpertCache(slots=2, experts=5)
    cache.serve([0, 1])
    cache.serve([2, 3, 4, 0])  # 0 is resident and used last
    assert list(cache.slot_of) == [4, 0]


def test_recency_is_by_the_last_row_not_the_first() -> None:
    cache = ExpertCache(slots=3, experts=5)
    cache.serve([0, 1, 2, 0])
    (wave,) = cache.serve([3])
    assert wave.loads[0][1] == 1 or 1 not in cache.slot_of  # expert 1, last used before 2 and 0, had to go
    assert list(cache.slot_of) == [2, 0, 3]


def test_one_slot_runs_one_expert_a_wave() -> None:
    cache = ExpertCache(slots=1, experts=4)
    waves = cache.serve([2, 0, 3, 0])
    assert [expert for wave in waves for expert, _ in wave.loads] == [2, 3, 0]
    assert len(waves) == 3
    assert list(cache.slot_of) == [0]


@quick
@given(st.integers(1, EXPERTS), passes)
def test_a_cleared_cache_misses_everything(slots: int, sequence: list[list[int]]) -> None:
    cache, memory = ExpertCache(slots=slots, experts=EXPERTS), {}
    for uses in sequence:
        cache.clear()
        memory.clear()
        assert cache.slot_of == {}
        waves = run(cache, memory, uses)
        assert sum(len(wave.loads) for wave in waves) == len(set(uses))


@pytest.mark.parametrize("slots", [0, -1, 5])
def test_slots_outside_the_layer_are_refused(slots: int) -> None:
    with pytest.raises(ValueError, match=rf"between 1 and the layer's 4 experts; got {slots}"):
        ExpertCache(slots=slots, experts=4)


def test_the_bitmap_says_what_is_in_the_slots() -> None:
    cache = ExpertCache(slots=3, experts=8)
    for uses in ([0, 1], [2, 5, 0], [7, 6, 5, 4, 3, 2], [1], [1, 6]):
        cache.serve(uses)
        assert cache.bitmap == sum(1 << expert for expert in cache.slot_of)
    cache.clear()
    assert cache.bitmap == 0
