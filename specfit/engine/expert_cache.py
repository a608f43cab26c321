"""Which expert sits in which slot of one layer: the LRU expert cache of Section 2, as plain bookkeeping.

No weights live here. A forward asks the cache to `serve` the experts it needs; the answer is a list of waves, each
naming the experts to copy into slots and the experts to run then. If everything fits there is one wave; with fewer
slots than experts, down to a single slot, later waves overwrite slots whose expert has already run. An expert is copied
at most once in a pass, and none is overwritten before it ran.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wave:
    """One step of a layer pass: copy `loads`, then run `experts` from their slots."""

    loads: tuple[tuple[int, int], ...]  # (expert, slot) to copy host to device
    hits: tuple[tuple[int, int], ...]  # (expert, slot) that ran from a slot filled before this pass


class ExpertCache:
    """LRU slots of one layer.

    slots: experts that fit; experts: experts of the layer. Raises ValueError unless 1 <= slots <= experts.
    """

    def __init__(self, *, slots: int, experts: int) -> None:
        if not 1 <= slots <= experts:
            raise ValueError(f"slots per layer must be between 1 and the layer's {experts} experts; got {slots}")
        self.slots, self.experts = slots, experts
        self.slot_of: dict[int, int] = {}  # expert -> slot, least recently used first
        self.bitmap = 0  # the same experts, bit by bit
        self._free = list(range(slots - 1, -1, -1))

    def clear(self) -> None:
        """Forget everything: the next pass misses all its experts."""
        self.slot_of.clear()
        self.bitmap = 0
        self._free = list(range(self.slots - 1, -1, -1))

    def contents(self) -> tuple[tuple[int, int], ...]:
        """(expert, slot) of every resident expert, least recently used first: all that a later pass depends on."""
        return tuple(self.slot_of.items())

    def restore(self, contents: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Take over what `contents` gave earlier; returns the (expert, slot) whose slot holds another expert now.

        Raises ValueError for experts or slots that this cache does not have, or one of them twice.
        """
        experts, slots = {expert for expert, _ in contents}, {slot for _, slot in contents}
        if (
            len(experts) + len(slots) < 2 * len(contents)
            or not experts <= set(range(self.experts))
            or not slots <= set(range(self.slots))
        ):
            raise ValueError(
                f"these are no contents of a cache with {self.slots} slots for {self.experts} experts; clear it instead"
            )
        other = [(expert, slot) for expert, slot in contents if self.slot_of.get(expert) != slot]
        self.clear()
        self.slot_of.update(contents)
        self.bitmap = sum(1 << expert for expert in experts)
        self._free = [slot for slot in self._free if slot not in slots]
        return other

    def serve(self, uses: Sequence[int]) -> list[Wave]:
        """Plan a pass over `uses`, the experts in the order in which the rows use them (repeats allowed).

        Recency follows the last row that uses an expert, so a pass wider than the slots (a prefill) leaves behind what
        its last tokens used, not what a loop happened to load last.
        """
        slot_of = self.slot_of
        order = dict.fromkeys(reversed(uses))  # distinct experts, last used first
        if len(order) <= self.slots:
            missing = [expert for expert in order if expert not in slot_of]
            if not missing:
                self._touch(order)
                return [Wave((), tuple((expert, slot_of[expert]) for expert in order))]
        needed = list(order)[::-1]  # last used last
        hits = tuple((expert, slot_of[expert]) for expert in needed if expert in slot_of)
        missing = [expert for expert in needed if expert not in slot_of]
        stay = set(needed[-self.slots :])  # what the pass is to leave behind
        waves: list[Wave] = []
        at = 0
        while at < len(missing) or not waves:
            ran = [expert for expert in needed if expert in slot_of] if waves else []
            # Victims, first to go first: residents this pass does not need, then its experts that have run.
            victims = [expert for expert in slot_of if expert not in order] + [e for e in ran if e not in stay]
            if not (self._free or victims):
                victims = ran[:1]  # every slot holds one that should stay, and the missing ones must run somewhere
            loads = []
            while at < len(missing) and (self._free or victims):
                if self._free:
                    slot = self._free.pop()
                else:
                    victim = victims.pop(0)
                    slot = slot_of.pop(victim)
                    self.bitmap ^= 1 << victim
                loads.append((missing[at], slot))
                self.bitmap |= 1 << missing[at]
                at += 1
            slot_of.update(loads)
            waves.append(Wave(tuple(loads), () if waves else hits))
        self._touch(order)
        return waves

    def _touch(self, order: dict[int, None]) -> None:
        """Make the pass's experts the most recent, the last used last."""
        slot_of = self.slot_of
        for expert in reversed(order):
            slot = slot_of.pop(expert, None)
            if slot is not None:
                slot_of[expert] = slot
