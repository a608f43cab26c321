"""The experts hook: the library's own logits from any number of slots, and counts that agree with the routes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import Qwen3MoeForCausalLM

from specfit.engine.checkpoint_files import open_checkpoint
from specfit.engine.checkpoint_names import name_table
from specfit.engine.host_experts import load_host_experts
from specfit.engine.link import InstantLink
from specfit.engine.offload import Offload
from specfit.engine.skeleton import build_skeleton, fill_skeleton, named_moe_modules
from specfit.routes import expert_union
from tests.models import tiny_target

torch.set_num_threads(1)
CPU = torch.device("cpu")
KERNELS = ("host_grouped", "grouped_mm", "batched_mm", "eager")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Checkpoints by top-k."""
    found = {}
    for top_k in (2, 3):
        found[top_k] = tmp_path_factory.mktemp(f"target{top_k}")
        tiny_target(found[top_k], num_hidden_layers=2, num_experts_per_tok=top_k)
    return found


class Counting(InstantLink):
    """Notes what was copied, by the first weights of the expert."""

    def __init__(self) -> None:
        self.copies: list[tuple[float, ...]] = []
        self.batches: list[int] = []
        self.events: list[str] = []

    def fetch(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        self.copies += [tuple(source[:4].tolist()) for source, _ in pairs]
        self.batches.append(len(pairs))
        self.events.append("fetch")
        super().fetch(pairs)

    def wait(self) -> None:
        self.events.append("wait")


def offloaded(
    folder: Path, *, slots: int, link: InstantLink | None = None, cleared=False, overlap=False, kernel="host_grouped"
) -> tuple[Qwen3MoeForCausalLM, Offload]:
    with open_checkpoint(folder) as checkpoint:
        model = build_skeleton(checkpoint, dtype=torch.float32, attention="sdpa")
        names = name_table(checkpoint, model)
        fill_skeleton(model, checkpoint, names, dtype=torch.float32, device=CPU)
        modules = named_moe_modules(model)
        host = load_host_experts(checkpoint, model, modules, names, dtype=torch.float32, pin=False).rows
    offload = Offload(
        model,
        host,
        slots=slots,
        link=link or InstantLink(),
        cleared=cleared,
        overlap=overlap,
        kernel=kernel,
        device=CPU,
    )
    return model, offload


@cache
def expected_logits(folder: Path, kernel: str = "grouped_mm") -> list[Tensor]:
    return logits(resident(folder, kernel))


def resident(folder: Path, kernel: str = "grouped_mm") -> Qwen3MoeForCausalLM:
    return Qwen3MoeForCausalLM.from_pretrained(folder, experts_implementation=kernel).eval()


def inputs() -> list[Tensor]:
    """A prefill, a single row, a few rows, one row again, and a wide one."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, 64, (1, rows), generator=generator) for rows in (17, 1, 5, 1, 40)]


@torch.inference_mode()
def logits(model: Qwen3MoeForCausalLM, offload: Offload | None = None) -> list[Tensor]:
    found = []
    for tokens in inputs():
        if offload is not None:
            offload.begin()
        found.append(model(input_ids=tokens, use_cache=False).logits)
    return found


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("top_k", [2, 3])
@pytest.mark.parametrize("slots", [8, 6, 4, 3, 2, 1])
def test_logits_are_the_resident_models(folders: dict[int, Path], slots: int, top_k: int, overlap: bool) -> None:
    expected = expected_logits(folders[top_k])
    found = logits(*offloaded(folders[top_k], slots=slots, overlap=overlap))
    for here, there in zip(found, expected, strict=True):
        if slots > 1:
            assert torch.equal(here, there)
        else:
            assert torch.allclose(here, there, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("cleared", [False, True])
@pytest.mark.parametrize("top_k", [2, 3])
@pytest.mark.parametrize("slots", [8, 2])
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_gives_what_the_librarys_does(
    folders: dict[int, Path], kernel: str, slots: int, top_k: int, cleared: bool
) -> None:
    expected = expected_logits(folders[top_k], "grouped_mm" if kernel == "host_grouped" else kernel)
    model, offload = offloaded(folders[top_k], slots=slots, kernel=kernel, overlap=True, cleared=cleared)
    for here, there in zip(logits(model, offload), expected, strict=True):
        if kernel in ("host_grouped", "grouped_mm"):
            assert torch.equal(here, there)
        else:  # eager adds a token's experts in the order of their ids, batched_mm rounds by the number of pairs
            assert torch.allclose(here, there, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kernel", ["host_grouped", "grouped_mm", "eager"])
def test_what_was_resident_cannot_change_a_result(folders: dict[int, Path], kernel: str) -> None:
    model, offload = offloaded(folders[3], slots=5, kernel=kernel)
    first = logits(model, offload)
    for other in range(2):
        with torch.inference_mode():
            model(input_ids=torch.arange(20 * other, 20 * other + 9)[None], use_cache=False)
        assert all(torch.equal(a, b) for a, b in zip(first, logits(model, offload), strict=True))
    offload.clear()
    assert all(torch.equal(a, b) for a, b in zip(first, logits(model, offload), strict=True))


@pytest.mark.parametrize("cleared", [False, True])
@pytest.mark.parametrize("slots", [8, 4, 1])
def test_counts_agree_with_routes(folders: dict[int, Path], slots: int, cleared: bool) -> None:
    link = Counting()
    model, offload = offloaded(folders[2], slots=slots, cleared=cleared, link=link)
    routers = []
    for layer in model.model.layers:
        layer.mlp.gate.register_forward_hook(lambda module, args, output: routers.append(output[2].clone()))
    for tokens in inputs():
        rows = tokens.shape[1]
        routers.clear()
        copied, held = len(link.copies), [set(layer.cache.slot_of) for layer in offload.layers]
        offload.begin()
        with torch.inference_mode():
            model(input_ids=tokens, use_cache=False)
        counts, routes = offload.counts(), offload.routes(rows)
        used = [set(ids.flatten().tolist()) for ids in routers]
        assert torch.equal(torch.tensor(offload.indices(rows)), torch.stack(routers, dim=1))
        assert counts.demand == sum(map(len, used)) == expert_union(routes, range(rows - 1))
        assert counts.demand == counts.hits + counts.misses
        assert counts.misses == len(link.copies) - copied
        assert len(set(link.copies[copied:])) == counts.misses  # case B24: each distinct expert once
        hits = 0 if cleared else sum(len(now & before) for now, before in zip(used, held, strict=True))
        assert counts.hits == hits


def test_a_prefill_wider_than_the_slots_loads_each_expert_once(folders: dict[int, Path]) -> None:
    link = Counting()
    model, offload = offloaded(folders[2], slots=2, link=link)
    offload.begin()
    with torch.inference_mode():
        model(input_ids=inputs()[-1], use_cache=False)
    assert offload.counts().misses == len(link.copies) == len(set(link.copies)) <= 2 * 8
    assert offload.counts().hits == 0


def test_hits_run_while_misses_are_on_their_way(folders: dict[int, Path]) -> None:
    for overlap in (False, True):
        link = Counting()
        model, offload = offloaded(folders[2], slots=8, link=link, overlap=overlap)
        for layer in offload.layers:
            kernel = layer._kernel
            layer._kernel = lambda *args, link=link, kernel=kernel: (link.events.append("run"), kernel(*args))[1]
        with torch.inference_mode():
            model(input_ids=torch.tensor([[5]]), use_cache=False)  # leaves two experts a layer
            link.events.clear()
            model(input_ids=torch.arange(12)[None], use_cache=False)
        first = link.events[: link.events.index("fetch", 1)]
        assert first == (["fetch", "run", "wait", "run"] if overlap else ["fetch", "wait", "run"])


def test_the_modules_parameters_are_the_slots(folders: dict[int, Path]) -> None:
    model, offload = offloaded(folders[2], slots=3)
    for module, layer in zip([module for _, module in named_moe_modules(model)], offload.layers, strict=True):
        assert module.num_experts == 3
        assert module.gate_up_proj.shape == (3, 32, 32)
        assert module.down_proj.shape == (3, 32, 16)
        size = module.gate_up_proj.element_size()
        for slot, row in enumerate(layer._slot_rows):
            assert module.gate_up_proj[slot].data_ptr() == row.data_ptr()
            assert module.down_proj[slot].data_ptr() == row.data_ptr() + 32 * 32 * size
            row.fill_(slot + 1.0)
            assert (module.gate_up_proj[slot] == slot + 1).all()
            assert (module.down_proj[slot] == slot + 1).all()
        storages = {tensor.untyped_storage().data_ptr() for tensor in (module.gate_up_proj, module.down_proj, row)}
        assert len(storages) == 1


@pytest.mark.parametrize("moment", ["fetch", "wait"])
@pytest.mark.parametrize("slots", [8, 3])
def test_an_interrupted_pass_leaves_no_slot_to_be_trusted(folders: dict[int, Path], moment: str, slots: int) -> None:
    """Ctrl-C between planning and copying: the plan's experts are not in their slots."""

    class Interrupted(Counting):
        left = 3

        def _maybe(self) -> None:
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt

        def fetch(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
            if moment == "fetch":
                self._maybe()
            super().fetch(pairs)

        def wait(self) -> None:
            if moment == "wait":
                self._maybe()

    expected = expected_logits(folders[2])
    model, offload = offloaded(folders[2], slots=slots, link=Interrupted())
    with pytest.raises(KeyboardInterrupt):
        logits(model, offload)
    for _ in range(2):
        found = logits(model, offload)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_an_unknown_kernel_names_the_known_ones(folders: dict[int, Path]) -> None:
    with pytest.raises(ValueError, match=r"kernel 'fast' is unknown; choose one of .*'grouped_mm'"):
        offloaded(folders[2], slots=2, kernel="fast")
