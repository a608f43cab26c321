"""The host link: moves one expert's bytes from host memory into a slot.

One object, two forms. `CudaLink` issues pinned copies on two streams in turn, so at most two are in flight, and the
compute stream waits on their events. `EmulatedLink` stands in for it on a CPU: it really copies the bytes and then
holds the forward back until the moment at which a link of the given speed would have delivered them; computing done
meanwhile overlaps, as on a GPU. Whatever is printed or drawn from it says *emulated link*. `InstantLink` copies only.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor

from specfit.engine.mapped_row import HostRow, copy_row

IN_FLIGHT = 2  # copies at a time (Appendix B)
SPIN_MS = 0.2  # a sleep overshoots by about 0.1 ms, so the last stretch before a deadline is spun


class Link(Protocol):
    """Copies experts; `fetch` starts a batch of copies, `wait` holds compute back until the batch has arrived."""

    kind: str  # "none", "emulated" or "cuda"
    waited_ms: float  # time the host stood still in `wait`; on CUDA the host does not stand still and this stays 0

    def fetch(self, pairs: Sequence[tuple[HostRow, Tensor]]) -> None:
        """Start copying (source row, target row) pairs, in order."""
        ...

    def wait(self) -> None:
        """Let compute that follows see every copy started so far."""
        ...

    def off_the_clock(self) -> AbstractContextManager[None]:
        """For forwards that no request is timed over: a link that only pretends to be slow need not, meanwhile."""
        ...

    def describe(self) -> dict[str, object]:
        """What a record needs to name this link."""
        ...


class InstantLink:
    """Copies with no delay but the memory's own: for recording, tests, and machines where nothing is offloaded."""

    kind = "none"
    waited_ms = 0.0

    def fetch(self, pairs: Sequence[tuple[HostRow, Tensor]]) -> None:
        for source, target in pairs:
            copy_row(source, target)

    def wait(self) -> None:
        pass

    def off_the_clock(self) -> AbstractContextManager[None]:
        return nullcontext()

    def describe(self) -> dict[str, object]:
        return {"kind": self.kind}


class EmulatedLink:
    """A link of `expert_ms` per expert (and `latency_ms` before each copy), kept by deadlines on the real clock.

    A copy is done at max(now, link free) + latency + transfer time. Raises ValueError for a negative or endless time.
    """

    kind = "emulated"

    def __init__(
        self,
        expert_ms: float,
        *,
        latency_ms: float = 0.0,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not (0 <= expert_ms < math.inf and 0 <= latency_ms < math.inf):  # a NaN fails too
            raise ValueError(
                f"link times are milliseconds, 0 or more; got {expert_ms} per expert, {latency_ms} latency"
            )
        self.expert_ms, self.latency_ms = float(expert_ms), float(latency_ms)
        self.waited_ms = 0.0
        self._clock, self._sleep = clock, sleep
        self._free_at = 0.0  # when the link has delivered everything, on the clock
        self._hurries = False  # copies only

    def fetch(self, pairs: Sequence[tuple[HostRow, Tensor]]) -> None:
        start = max(self._clock(), self._free_at)
        for source, target in pairs:
            copy_row(source, target)
        if self._hurries:
            return
        self._free_at = start + len(pairs) * (self.latency_ms + self.expert_ms) / 1e3

    def wait(self) -> None:
        start = now = self._clock()
        if now >= self._free_at:
            return
        if self._free_at - now > SPIN_MS / 1e3:
            self._sleep(self._free_at - now - SPIN_MS / 1e3)
        while now < self._free_at:
            now = self._clock()
        self.waited_ms += 1e3 * (now - start)

    @contextmanager
    def off_the_clock(self) -> Iterator[None]:
        self.wait()
        self._hurries = True
        try:
            yield
        finally:
            self._hurries = False

    def describe(self) -> dict[str, object]:
        return {"kind": self.kind, "expert_ms": self.expert_ms, "latency_ms": self.latency_ms}


class CudaLink:
    """Pinned host-to-device copies on two streams in turn, ordered against compute by events alone.

    `copy_order` replays what this class asks of streams and events and proves the order; see there.
    """

    kind = "cuda"
    waited_ms = 0.0

    def __init__(self, device: torch.device, *, runtime: Any = torch.cuda) -> None:
        """runtime: streams and events as `torch.cuda` has them."""
        self._device, self._runtime = device, runtime
        self._streams = [runtime.Stream(device) for _ in range(IN_FLIGHT)]
        self._issued = 0
        self._pending: list[Any] = []  # events of copies that compute has not been told to wait for

    def fetch(self, pairs: Sequence[tuple[HostRow, Tensor]]) -> None:
        # A slot may be overwritten only after its last reader; readers are on the compute stream, before this point.
        readers = self._runtime.current_stream(self._device).record_event()
        for source, target in pairs:
            stream = self._streams[self._issued % IN_FLIGHT]
            self._issued += 1
            stream.wait_event(readers)
            with self._runtime.stream(stream):
                assert isinstance(source, Tensor)  # experts are mapped for a CPU alone
                target.copy_(source, non_blocking=True)
            self._pending.append(stream.record_event())

    def wait(self) -> None:
        compute = self._runtime.current_stream(self._device)
        for event in self._pending:
            compute.wait_event(event)
        self._pending.clear()

    def off_the_clock(self) -> AbstractContextManager[None]:
        return nullcontext()

    def describe(self) -> dict[str, object]:
        return {"kind": self.kind, "device": self._runtime.get_device_name(self._device), "in_flight": IN_FLIGHT}
