"""The experts hook: slots, cache and link behind a Transformers experts module.

Transformers dispatches every experts module through one registry of functions `(module, hidden, top_k_index,
top_k_weights)`. We register one of our own. A layer's slots *are* the library's module with `num_experts = slots`, so
after turning expert ids into slot ids the library's own kernel does the arithmetic, for every family.

One accumulation order, whatever was resident: a pass in several steps computes each (token, expert) pair with weight 1,
and only then weights and sums a token's experts in router order, which is what the kernel itself does in a pass of one
step. All pairs of an expert run in one call, so the result is the resident model's bit for bit (for two slots and
more; with a single slot the kernel takes another path, equal within float rounding). That is said of `grouped_mm`, the
default. "eager" adds a token's experts in the order of their slots, so here its passes are always summed in router
order; `batched_mm` rounds by how many pairs run at once and agrees within float rounding only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, ExpertsInterface

from specfit.engine.expert_cache import ExpertCache, Wave
from specfit.engine.link import Link
from specfit.engine.skeleton import named_moe_modules
from specfit.records import ForwardCounts
from specfit.routes import Routes

IMPLEMENTATION = "specfit_offload"
Kernel = Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor]


class LayerSlots:
    """One MoE layer: the slots, which expert sits in which, and the pass over a forward's rows."""

    def __init__(
        self,
        module: nn.Module,
        host_rows: Sequence[Tensor],
        *,
        slots: int,
        link: Link,
        kernel: Kernel,
        sums_by_slot: bool,
        overlap: bool,
        device: torch.device,
    ) -> None:
        """module: the library's experts module; its parameters become views of the slots.
        host_rows: one flat row of weights per expert, its parameters side by side in the module's order.
        sums_by_slot: the kernel adds a token's experts in slot order, so it may only be given one pair at a time.
        overlap: run the hits of a pass while its misses are on the way, for the price of one more kernel call.
        """
        self.cache = ExpertCache(slots=slots, experts=len(host_rows))
        self.uses: list[int] = []  # expert ids of the last pass, rows * top_k of them, in row order
        self.demand = self.misses = 0  # since `Offload.begin`
        self._module, self._rows, self._link = module, host_rows, link
        self._kernel, self._sums_by_slot = kernel, sums_by_slot
        self._overlap, self._device = overlap, device
        memory = torch.zeros(slots, host_rows[0].numel(), dtype=host_rows[0].dtype, device=device)
        self._slot_rows = list(memory)
        _view_parameters(module, memory)

    def __call__(self, hidden: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """hidden (rows, H), top_k_index and top_k_weights (rows, top_k) -> (rows, H)."""
        try:
            return self._pass(hidden, top_k_index, top_k_weights)
        except BaseException:  # Ctrl-C among them: the plan names experts that were not copied, so trust no slot
            self.cache.clear()
            self._link.wait()  # copies still on their way must not land after the next ones
            raise

    def _pass(self, hidden: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        uses = self.uses = top_k_index.flatten().tolist()  # the layer's one device-to-host copy
        waves = self.cache.serve(uses)
        loaded = sum(len(wave.loads) for wave in waves)
        self.misses += loaded
        self.demand += loaded + len(waves[0].hits)
        if len(waves) > 1 or self._sums_by_slot or (loaded and waves[0].hits and self._overlap):
            return self._in_steps(waves, hidden, top_k_weights)
        if loaded:
            self._fetch(waves[0])
            self._link.wait()
        slot_of = self.cache.slot_of
        slots = self._ids([slot_of[expert] for expert in uses]).view_as(top_k_index)
        return self._kernel(self._module, hidden, slots, top_k_weights)

    def _in_steps(self, waves: Sequence[Wave], hidden: Tensor, weights: Tensor) -> Tensor:
        rows, top_k = weights.shape
        pairs_of: dict[int, list[int]] = {}
        for pair, expert in enumerate(self.uses):
            pairs_of.setdefault(expert, []).append(pair)
        out = hidden.new_empty(rows * top_k, hidden.shape[-1])

        def run(placed: Sequence[tuple[int, int]]) -> None:
            pairs = self._ids([pair for expert, _ in placed for pair in pairs_of[expert]])
            slots = self._ids([slot for expert, slot in placed for _ in pairs_of[expert]])
            once = weights.new_ones(len(pairs), 1)
            out[pairs] = self._kernel(self._module, hidden[pairs // top_k], slots.unsqueeze(1), once)

        for wave in waves:
            if wave.loads:
                self._fetch(wave)
            if wave.hits:
                run(wave.hits)
            if wave.loads:
                self._link.wait()
                run(wave.loads)
        weighted = out * weights.reshape(-1, 1)
        return weighted.view(rows, top_k, -1).sum(dim=1).to(hidden.dtype)

    def _fetch(self, wave: Wave) -> None:
        self._link.fetch([(self._rows[expert], self._slot_rows[slot]) for expert, slot in wave.loads])

    def _ids(self, values: list[int]) -> Tensor:
        return torch.tensor(values).to(self._device, non_blocking=True)


class Offload:
    """All MoE layers of a model, hooked; counts and routes of the forward in progress."""

    def __init__(
        self,
        model: PreTrainedModel,
        host: Sequence[Sequence[Tensor]],
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
        function = _kernel(kernel)
        modules = [module for _, module in named_moe_modules(model)]
        self.layers = [
            LayerSlots(
                module,
                rows,
                slots=min(slots, len(rows)),
                link=link,
                kernel=function,
                sums_by_slot=kernel == "eager",
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

    def clear(self) -> None:
        """Empty every cache."""
        for layer in self.layers:
            layer.cache.clear()


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


def _kernel(name: str) -> Kernel:
    """A function of the library's registry, or "eager": each module's own forward, undecorated."""
    if name == "eager":
        return lambda module, *args: type(module).forward.__wrapped__(module, *args)
    if name not in ALL_EXPERTS_FUNCTIONS:
        raise ValueError(f"kernel {name!r} is unknown; choose eager or one of {sorted(ALL_EXPERTS_FUNCTIONS)}")
    return ALL_EXPERTS_FUNCTIONS[name]


def _offloaded_forward(module: nn.Module, hidden: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    return module.specfit_layer(hidden, top_k_index, top_k_weights)


ExpertsInterface.register(IMPLEMENTATION, _offloaded_forward)
