"""The experts hook: slots, cache and link behind a Transformers experts module.

Transformers dispatches every experts module through one registry of functions `(module, hidden, top_k_index,
top_k_weights)`. We register one of our own. A layer's slots *are* the library's module with `num_experts = slots`, its
parameters views of the slots, so whatever kernel computes on them serves every family.

One accumulation order, whatever was resident: a kernel computes (token, expert) pairs, grouped by slot and unweighted;
only then are a token's experts weighted and summed in router order. All pairs of an expert run in one call, so the
result is the resident model's bit for bit with the default kernel (for two slots and more; with a single slot the
matrix products take another path, equal within float rounding). `batched_mm` rounds by how many pairs run at once and
agrees within float rounding only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.integrations.moe import ExpertsInterface

from specfit.engine.expert_cache import ExpertCache, Wave
from specfit.engine.experts_kernel import make_kernel, to_device
from specfit.engine.link import Link
from specfit.engine.mapped_row import HostRow, copy_row
from specfit.engine.skeleton import named_moe_modules
from specfit.records import ForwardCounts
from specfit.routes import Routes

IMPLEMENTATION = "specfit_offload"
Placed = Sequence[tuple[int, int]]  # experts with their slots


class LayerSlots:
    """One MoE layer: the slots, which expert sits in which, and the pass over a forward's rows."""

    def __init__(
        self,
        module: nn.Module,
        host_rows: Sequence[HostRow],
        *,
        slots: int,
        link: Link,
        kernel: str,
        overlap: bool,
        device: torch.device,
    ) -> None:
        """module: the library's experts module; its parameters become views of the slots.
        host_rows: one flat row of weights per expert, its parameters side by side in the module's order.
        kernel: see `experts_kernel.make_kernel`.
        overlap: run the hits of a pass while its misses are on the way, for the price of one more kernel call.
        """
        self.cache = ExpertCache(slots=slots, experts=len(host_rows))
        self.uses: list[int] = []  # expert ids of the last pass, rows * top_k of them, in row order
        self.demand = self.misses = 0  # since `Offload.begin`
        self._module, self._rows, self._link = module, host_rows, link
        self._overlap, self._device = overlap, device
        memory = torch.zeros(slots, host_rows[0].numel(), dtype=host_rows[0].dtype, device=device)
        self._slot_rows = list(memory)
        _view_parameters(module, memory)
        self._kernel = make_kernel(kernel, module)

    def __call__(self, hidden: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """hidden (rows, H), top_k_index and top_k_weights (rows, top_k) -> (rows, H)."""
        try:
            return self._pass(hidden, top_k_index, top_k_weights)
        except BaseException:  # Ctrl-C among them: the plan names experts that were not copied, so trust no slot
            self.cache.clear()
            self._link.wait()  # copies still on their way must not land after the next ones
            raise

    def close(self) -> None:
        """Unhook from the module; it cannot run afterwards."""
        self._module.specfit_layer = None  # type: ignore[assignment]

    def restore(self, contents: Sequence[tuple[int, int]]) -> None:
        """Make slots and cache what they were when `cache.contents()` gave this; copies are not counted as misses."""
        self._link.wait()
        try:
            for expert, slot in self.cache.restore(contents):
                copy_row(self._rows[expert], self._slot_rows[slot])
        except BaseException:  # Ctrl-C among them: the cache names experts that were not copied
            self.cache.clear()
            raise

    def _pass(self, hidden: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        uses = self.uses = top_k_index.flatten().tolist()  # the layer's one device-to-host copy
        waves = self.cache.serve(uses)
        loaded = sum(len(wave.loads) for wave in waves)
        self.misses += loaded
        self.demand += loaded + len(waves[0].hits)
        pairs_of: dict[int, list[int]] = {}  # expert -> its (row, rank) pairs, numbered row by row
        for pair, expert in enumerate(uses):
            pairs_of.setdefault(expert, []).append(pair)
        steps = list(self._steps(waves))
        order = [pair for _, run in steps for expert, _ in run for pair in pairs_of[expert]]
        place = [0] * len(order)  # of every pair in `order`
        for at, pair in enumerate(order):
            place[pair] = at
        rows, top_k = top_k_weights.shape
        index = to_device([pair // top_k for pair in order] + place, torch.int64, self._device)
        inputs = hidden.index_select(0, index[: len(order)])
        outputs: list[Tensor] = []
        done = 0
        for loads, run in steps:
            if loads:
                self._link.fetch([(self._rows[expert], self._slot_rows[slot]) for expert, slot in loads])
            else:
                self._link.wait()
            if run:
                counts = [len(pairs_of[expert]) for expert, _ in run]
                part = inputs[done : done + sum(counts)]
                outputs.append(self._kernel(part, [slot for _, slot in run], counts))
                done += len(part)
        computed = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        weighted = computed.index_select(0, index[len(order) :]) * top_k_weights.reshape(-1, 1)
        return weighted.view(rows, top_k, -1).sum(dim=1).to(hidden.dtype)

    def _steps(self, waves: Sequence[Wave]) -> Iterator[tuple[Placed, Placed]]:
        """What to do in turn: start these copies, or wait if there are none; then run these experts, in slot order."""
        for wave in waves:
            early = wave.hits if wave.loads and self._overlap else ()  # these run while the misses are on their way
            if wave.loads:
                yield wave.loads, sorted(early, key=_slot)
            yield (), sorted((*wave.loads, *(() if early else wave.hits)), key=_slot)


class Offload:
    """All MoE layers of a model, hooked; counts and routes of the forward in progress."""

    def __init__(
        self,
        model: PreTrainedModel,
        host: Sequence[Sequence[HostRow]],
        *,
        slots: int,
        link: Link,
        cleared: bool,
        overlap: bool,
        kernel: str,
        device: torch.device,
    ) -> None:
        """host: for every MoE layer in order, the flat weight rows of its experts.

        cleared: forget every slot before each forward, prefill included: "without the cache".
        """
        self.link, self.cleared = link, cleared
        self.experts = max(len(rows) for rows in host)
        modules = [module for _, module in named_moe_modules(model)]
        self.layers = [
            LayerSlots(
                module,
                rows,
                slots=min(slots, len(rows)),
                link=link,
                kernel=kernel,
                overlap=overlap,
                device=device,
            )
            for module, rows in zip(modules, host, strict=True)
        ]
        for module, layer in zip(modules, self.layers, strict=True):
            module.specfit_layer = layer  # type: ignore[assignment]  # torch types what a module may hold
        model.set_experts_implementation(IMPLEMENTATION)

    def begin(self) -> None:
        """Before a target forward: empty the caches if they are to be cleared, and start counting."""
        self._waited_ms = self.link.waited_ms
        for layer in self.layers:
            layer.demand = layer.misses = 0
            if self.cleared:
                layer.cache.clear()
        self._before = [layer.cache.bitmap for layer in self.layers]

    def resident_before(self) -> int:
        """Bitmap of the experts that were in slots when the last forward began."""
        return sum(bitmap << layer * self.experts for layer, bitmap in enumerate(self._before))

    def counts(self) -> ForwardCounts:
        """What the forward since `begin` asked of the caches."""
        demand = sum(layer.demand for layer in self.layers)
        misses = sum(layer.misses for layer in self.layers)
        return ForwardCounts(demand, demand - misses, misses, self.link.waited_ms - self._waited_ms)

    def indices(self, rows: int) -> NDArray[np.int64]:
        """Expert ids of the last forward's rows, (rows, layers, top_k)."""
        return np.array([layer.uses for layer in self.layers]).reshape(len(self.layers), rows, -1).transpose(1, 0, 2)

    def routes(self, rows: int) -> Routes:
        """True routes of the last forward, the first row being the root."""
        bitmaps = [0] * rows
        for number, layer in enumerate(self.layers):
            top_k, shift = len(layer.uses) // rows, number * self.experts
            for pair, expert in enumerate(layer.uses):  # plain Python: for a tree's few rows numpy takes longer
                bitmaps[pair // top_k] |= 1 << shift + expert
        return Routes(bitmaps[0], tuple(bitmaps[1:]), len(self.layers), self.experts)

    def row_routes(self, row: int, rows: int) -> int:
        """Bitmap of one row of the last forward, which had `rows` of them."""
        bitmap = 0
        for number, layer in enumerate(self.layers):
            top_k = len(layer.uses) // rows
            for expert in layer.uses[row * top_k : (row + 1) * top_k]:
                bitmap |= 1 << number * self.experts + expert
        return bitmap

    def close(self) -> None:
        """Let go of the model's modules, which hold this: slots and rows are then freed at once, not by a later gc."""
        for layer in self.layers:
            layer.close()

    def clear(self) -> None:
        """Empty every cache."""
        for layer in self.layers:
            layer.cache.clear()

    def contents(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """What every layer's cache holds, for `restore`."""
        return tuple(layer.cache.contents() for layer in self.layers)

    def restore(self, contents: Sequence[Sequence[tuple[int, int]]]) -> None:
        """Bring back what the caches held when `contents` gave this; outside every timer, and no copy is counted."""
        if len(contents) != len(self.layers):
            raise ValueError(f"these are the contents of {len(contents)} caches; this model has {len(self.layers)}")
        for layer, held in zip(self.layers, contents, strict=True):
            layer.restore(held)


def expert_parameters(module: nn.Module) -> list[tuple[str, tuple[int, ...]]]:
    """Names and per-expert shapes of an experts module's parameters, in the order of a host row."""
    return [(name, tuple(parameter.shape[1:])) for name, parameter in module.named_parameters(recurse=False)]


def _view_parameters(module: nn.Module, memory: Tensor) -> None:
    """Make every parameter a view of the slots, (slots, row) -> (slots, *shape), and the module that large."""
    start = 0
    for name, shape in expert_parameters(module):
        size = torch.Size(shape).numel()
        view = memory[:, start : start + size].view(len(memory), *shape)
        setattr(module, name, nn.Parameter(view, requires_grad=False))
        start += size
    module.num_experts = len(memory)  # type: ignore[assignment]


_slot = itemgetter(1)


def _offloaded_forward(module: nn.Module, hidden: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    return module.specfit_layer(hidden, top_k_index, top_k_weights)


ExpertsInterface.register(IMPLEMENTATION, _offloaded_forward)
