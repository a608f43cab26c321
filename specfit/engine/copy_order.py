"""Proof, for what was run, that no slot was read before its copy arrived or overwritten before its last reader.

Copies and kernels run on streams of their own, and only events order one stream after another. A missing wait shows as
wrong text once in a thousand runs, or never on the machine at hand. So `OrderTrace` notes, while an engine decodes,
every copy into a slot, every read of one, and every event recorded and waited for; `check_order` replays that list
with a vector clock a stream: one operation surely comes before another only if events say so, however the hardware
happened to time them.

The emulated link copies at once and holds compute back by a deadline; as operations, a stream of its own that begins
after everything computed so far and that compute waits for. On a CPU the CUDA link runs over `StreamsOnPaper`, which
only notes what it is asked: the same code, the same order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specfit.engine.link import CudaLink, Link
from specfit.engine.mapped_row import HostRow
from specfit.engine.offload import LayerSlots, Offload

COMPUTE = "compute"
Slot = tuple[int, int]  # layer, slot


class OrderError(AssertionError):
    """A slot was used out of order; the message says which operation is not ordered after which."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing asked of a stream, in the order in which the host asked."""

    kind: str  # "copy" or "read" of a slot; "record" or "wait" of an event
    stream: str
    slot: Slot = (-1, -1)
    expert: int = -1  # copied, or expected by the reader
    event: int = -1


def check_order(operations: Iterable[Operation]) -> int:
    """The number of reads, each proved to find its expert; raises OrderError at the first that may not."""
    clocks: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))  # what a stream comes surely after
    events: dict[int, dict[str, int]] = {}
    written: dict[Slot, tuple[int, str, int]] = {}  # expert, and the copy's stream and tick
    readers: dict[Slot, list[tuple[str, int]]] = defaultdict(list)  # since that copy
    reads = 0
    for number, operation in enumerate(operations):
        clock, slot = clocks[operation.stream], operation.slot
        clock[operation.stream] += 1
        here = f"operation {number}: slot {slot[1]} of layer {slot[0]}"
        if operation.kind == "record":
            events[operation.event] = dict(clock)
        elif operation.kind == "wait":
            if operation.event not in events:
                raise OrderError(f"operation {number} waits for event {operation.event}, which was never recorded")
            for stream, tick in events[operation.event].items():
                clock[stream] = max(clock[stream], tick)
        elif operation.kind == "copy":
            if slot in written and clock[written[slot][1]] < written[slot][2]:
                raise OrderError(f"{here} is written by {operation.stream} while {written[slot][1]} may still write it")
            for stream, tick in readers[slot]:
                if clock[stream] < tick:
                    raise OrderError(f"{here} is overwritten with expert {operation.expert} before its last reader")
            written[slot] = operation.expert, operation.stream, clock[operation.stream]
            readers[slot].clear()
        else:
            expert, stream, tick = written.get(slot, (-1, operation.stream, 0))
            if expert != operation.expert:
                raise OrderError(f"{here} is read for expert {operation.expert} and holds expert {expert}")
            if clock[stream] < tick:
                raise OrderError(f"{here} is read before the copy of expert {expert} is sure to have arrived")
            readers[slot].append((operation.stream, clock[operation.stream]))
            reads += 1
    return reads


class OrderTrace:
    """Notes the operations of an offload from now on. Attach it before the first forward: it knows no earlier copy."""

    def __init__(self, offload: Offload) -> None:
        self.operations: list[Operation] = []
        self._events = 0
        self._slots: dict[int, Slot] = {}  # by address
        self._experts: dict[int, int] = {}  # by identity
        for number, layer in enumerate(offload.layers):
            self._slots |= {row.data_ptr(): (number, slot) for slot, row in enumerate(layer._slot_rows)}
            self._experts |= {id(row): expert for expert, row in enumerate(layer._rows)}
            self._watch_reads(number, layer)
        self._watch_copies(offload.link)

    def note(self, kind: str, stream: str, **more: Any) -> None:
        self.operations.append(Operation(kind, stream, **more))

    def record(self, stream: str) -> int:
        """A new event, recorded on a stream now."""
        self._events += 1
        self.note("record", stream, event=self._events)
        return self._events

    def copied(self, stream: str, source: HostRow, target: Tensor) -> None:
        self.note("copy", stream, slot=self._slots[target.data_ptr()], expert=self._experts[id(source)])

    def _watch_reads(self, number: int, layer: LayerSlots) -> None:
        """Every kernel call reads the slots that the step in progress planned for it."""
        kernel, steps = layer._kernel, layer._steps
        planned: list[Sequence[tuple[int, int]]] = []

        def watched_steps(waves: Any) -> Iterable:
            planned.clear()
            for step in steps(waves):
                if step[1]:
                    planned.append(step[1])
                yield step

        def watched_kernel(rows: Tensor, slots: Sequence[int], counts: Sequence[int]) -> Tensor:
            for (expert, _), slot in zip(planned.pop(0), slots, strict=True):
                self.note("read", COMPUTE, slot=(number, slot), expert=expert)
            return kernel(rows, slots, counts)

        layer._steps, layer._kernel = watched_steps, watched_kernel  # type: ignore[method-assign, assignment]

    def _watch_copies(self, link: Link) -> None:
        if isinstance(link, CudaLink):
            link._runtime = _NotedRuntime(self, link._runtime)
            link._streams = [_NotedStream(self, f"copies {n}", stream) for n, stream in enumerate(link._streams)]
        fetch, wait, pending = link.fetch, link.wait, list[int]()

        def watched_fetch(pairs: Sequence[tuple[HostRow, Tensor]]) -> None:
            if isinstance(link, CudaLink):
                # The link's own streams and events are noted as it uses them; copies are told apart here.
                self._coming = list(pairs)
                fetch(pairs)
                return
            self.note("wait", "link", event=self.record(COMPUTE))  # the host has computed all it was asked to
            for source, target in pairs:
                self.copied("link", source, target)
            pending.append(self.record("link"))
            fetch(pairs)

        def watched_wait() -> None:
            for event in pending:
                self.note("wait", COMPUTE, event=event)
            pending.clear()
            wait()

        link.fetch, link.wait = watched_fetch, watched_wait  # type: ignore[method-assign]

    _coming: list[tuple[HostRow, Tensor]]  # copies of the CUDA link's batch that are not issued yet

    def issued(self, stream: str) -> None:
        """The CUDA link entered a stream to issue its next copy."""
        self.copied(stream, *self._coming.pop(0))


@dataclass(slots=True)
class _NotedEvent:
    number: int
    event: Any


class _NotedStream:
    def __init__(self, trace: OrderTrace, name: str, stream: Any) -> None:
        self.trace, self.name, self.stream = trace, name, stream

    def record_event(self) -> _NotedEvent:
        return _NotedEvent(self.trace.record(self.name), self.stream.record_event())

    def wait_event(self, event: _NotedEvent) -> None:
        self.trace.note("wait", self.name, event=event.number)
        self.stream.wait_event(event.event)


class _NotedRuntime:
    def __init__(self, trace: OrderTrace, runtime: Any) -> None:
        self.trace, self.runtime = trace, runtime

    def current_stream(self, device: torch.device) -> _NotedStream:
        return _NotedStream(self.trace, COMPUTE, self.runtime.current_stream(device))

    def stream(self, stream: _NotedStream) -> AbstractContextManager:
        self.trace.issued(stream.name)
        return self.runtime.stream(stream.stream)

    def get_device_name(self, device: torch.device) -> str:
        return self.runtime.get_device_name(device)


class StreamsOnPaper:
    """Stands in for `torch.cuda` where there is none: copies happen at once, streams and events are only names."""

    class Stream:
        def __init__(self, device: torch.device | None = None) -> None:
            pass

        def record_event(self) -> object:
            return object()

        def wait_event(self, event: object) -> None:
            pass

    def current_stream(self, device: torch.device) -> StreamsOnPaper.Stream:
        return self.Stream()

    def stream(self, stream: StreamsOnPaper.Stream) -> AbstractContextManager:
        return nullcontext()

    def get_device_name(self, device: torch.device) -> str:
        return "streams on paper"
