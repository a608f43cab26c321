"""Both links keep copies and readers in order, and the checker sees every way of getting it wrong that we can make."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from specfit.engine.copy_order import COMPUTE, Operation, OrderError, OrderTrace, StreamsOnPaper, check_order
from specfit.engine.engine import Engine, load_engine
from specfit.engine.link import CudaLink, EmulatedLink, Link
from specfit.tree import DraftPool
from tests.models import tiny_target
from tests.word_tokenizer import save_tokenizer

CPU = torch.device("cpu")
POOL = DraftPool((5, 9, 13, 21), (-1, -1, 0, 2), (0.6, 0.3, 0.4, 0.2))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    tiny_target(folder)
    save_tokenizer(folder)
    return folder


def paper_link(kind: type[CudaLink] = CudaLink) -> CudaLink:
    return kind(CPU, runtime=StreamsOnPaper())


def trace(engine: Engine) -> OrderTrace:
    """Two requests: prefill, trees that are rewound and committed, single steps; the caches carry over."""
    noted = OrderTrace(engine.offload)
    for prompt in ([3, 1, 4, 1, 5], list(range(20))):
        engine.target.prefill(prompt)
        engine.target.commit(())
        for root in (7, 8):
            engine.target.verify(root, POOL, range(4))
            engine.target.rewind()
            engine.target.verify(root, POOL, (0, 2))
            engine.target.commit((0, 1))
    return noted


@pytest.mark.parametrize("link", [lambda: EmulatedLink(0.0), paper_link])
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("slots", "cleared"), [(8, False), (3, False), (2, True), (1, False)])
def test_both_links_keep_the_order(folder: Path, link, overlap: bool, slots: int, cleared: bool) -> None:
    with load_engine(
        folder, slots_per_layer=slots, cleared=cleared, link=link(), overlap=overlap, device="cpu", self_test=False
    ) as engine:
        noted = trace(engine)
        copies = sum(operation.kind == "copy" for operation in noted.operations)
        reads = check_order(noted.operations)
    assert reads >= copies > 0


class NoWaitForReaders(CudaLink):
    def fetch(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        for source, target in pairs:
            stream = self._streams[self._issued % 2]
            self._issued += 1
            with self._runtime.stream(stream):
                target.copy_(source)
            self._pending.append(stream.record_event())


class ForgetsTheLastCopy(CudaLink):
    def wait(self) -> None:
        del self._pending[-1:]
        super().wait()


class WaitsForNothing(CudaLink):
    def wait(self) -> None:
        self._pending.clear()


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        (NoWaitForReaders, "may still write it|before its last reader"),
        (ForgetsTheLastCopy, "before the copy of expert . is sure to have arrived"),
        (WaitsForNothing, "before the copy of expert . is sure to have arrived"),
    ],
)
def test_a_link_that_leaves_a_wait_out_is_found(folder: Path, kind: type[CudaLink], found: str) -> None:
    with load_engine(folder, slots_per_layer=3, link=paper_link(kind), device="cpu", self_test=False) as engine:
        noted = trace(engine)
    with pytest.raises(OrderError, match=found):
        check_order(noted.operations)


def test_an_engine_that_computes_before_it_waits_is_found(folder: Path) -> None:
    links: list[Link] = [EmulatedLink(0.0), paper_link()]
    for link in links:
        with load_engine(folder, slots_per_layer=3, link=link, device="cpu", self_test=False) as engine:
            for layer in engine.offload.layers:
                steps = layer._steps
                layer._steps = lambda waves, steps=steps: (
                    [  # what was to wait first starts at once
                        (loads, run) for (loads, _), (_, run) in zip(*[iter(steps(waves))] * 2, strict=False)
                    ]
                    or list(steps(waves))
                )
            noted = OrderTrace(engine.offload)
            engine.target.prefill([3])
        with pytest.raises(OrderError, match="is sure to have arrived"):
            check_order(noted.operations)


def test_the_checker_reads_streams_as_a_device_does() -> None:
    def copy(stream: str, expert: int) -> Operation:
        return Operation("copy", stream, slot=(0, 0), expert=expert)

    read = Operation("read", COMPUTE, slot=(0, 0), expert=4)
    recorded, waited = Operation("record", "a", event=1), Operation("wait", COMPUTE, event=1)
    assert check_order([copy("a", 4), recorded, waited, read]) == 1
    assert check_order([copy(COMPUTE, 4), read, read]) == 2  # one stream is in order by itself
    for wrong, found in (
        ([read], "holds expert -1"),
        ([copy("a", 3), recorded, waited, read], "read for expert 4 and holds expert 3"),
        ([copy("a", 4), read], "arrived"),
        ([recorded, copy("a", 4), waited, read], "arrived"),  # an event says nothing of what came after it
        ([waited], "never recorded"),
        ([copy("a", 4), recorded, waited, read, copy("a", 5)], "before its last reader"),
        ([copy("a", 4), copy("b", 4)], "may still write"),
    ):
        with pytest.raises(OrderError, match=found):
            check_order(wrong)
