"""What computes experts once they are in their slots: functions of rows that are grouped by slot.

`host_grouped`, the default, does the library's own grouped arithmetic, matrix by matrix and bit for bit, but uses what
the offloaded pass knows anyway: which rows go to which slot, on the host. The library's function finds that out again
on the device (a sort, a histogram, sums), and on a CPU it visits every slot, most of them with no row at all: on a
48-layer model with 128 experts that was half of a forward (`benchmarks/fixed_cost.py`). The library's functions can be
chosen instead; each pair of a row and an expert is then handed to them as a row of its own, with one expert and
weight 1.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate

import torch
from torch import Tensor, nn
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

HOST_GROUPED = "host_grouped"

# (rows (n, H) sorted by slot, slots with at least one row, how many each has) -> (n, H), unweighted
Kernel = Callable[[Tensor, Sequence[int], Sequence[int]], Tensor]


def make_kernel(name: str, module: nn.Module) -> Kernel:
    """The kernel of one layer: "host_grouped", "eager" (the module's own forward), or one of the library's registry.

    module: the library's experts module, its parameters already views of the slots. ValueError for an unknown name.
    """
    if name == HOST_GROUPED:
        return HostGrouped(module)
    if name == "eager":
        return _by_pairs(module, inspect.unwrap(type(module).forward))
    check_kernel(name)
    return _by_pairs(module, ALL_EXPERTS_FUNCTIONS[name])


def check_kernel(name: str) -> None:
    """ValueError for an unknown name."""
    library = [one for one in ALL_EXPERTS_FUNCTIONS if not one.startswith("specfit_")]  # ours would call themselves
    known = sorted([HOST_GROUPED, "eager", *library])
    if name not in known:
        raise ValueError(f"kernel {name!r} is unknown; choose one of {known}")


class HostGrouped:
    """Up projection, the module's own gate, down projection; one matrix product a group."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._gated = bool(module.has_gate)
        self._first = "gate_up_proj" if self._gated else "up_proj"
        self._up, self._down = (self._weights(name) for name in (self._first, "down_proj"))  # (slots, in, out) views
        self._up_of, self._down_of = list(self._up), list(self._down)

    def _weights(self, name: str) -> Tensor:
        weights = getattr(self._module, name).detach()
        return weights if self._module.is_transposed else weights.transpose(-2, -1)

    def __call__(self, rows: Tensor, slots: Sequence[int], counts: Sequence[int]) -> Tensor:
        module = self._module
        multiply: Callable[[Tensor, Tensor, list[Tensor]], Tensor]
        if rows.dtype == torch.bfloat16 and _has_grouped_kernel(rows.device):
            per_slot = [0] * len(self._up_of)
            for slot, count in zip(slots, counts, strict=True):
                per_slot[slot] = count
            ends = to_device(list(accumulate(per_slot)), torch.int32, rows.device)

            def multiply(x: Tensor, weights: Tensor, of_slot: list[Tensor]) -> Tensor:
                return nn.functional.grouped_mm(x, weights, offs=ends)
        else:

            def multiply(x: Tensor, weights: Tensor, of_slot: list[Tensor]) -> Tensor:
                if len(slots) == 1:
                    return torch.mm(x, of_slot[slots[0]])
                out = x.new_empty(x.shape[0], weights.shape[-1])
                for part, slot, into in zip(x.split(counts), slots, out.split(counts), strict=True):
                    torch.mm(part, of_slot[slot], out=into)
                return out

        x = multiply(rows, self._up, self._up_of)
        if module.has_bias:
            slot_of_row = to_device(
                [s for s, n in zip(slots, counts, strict=True) for _ in range(n)], torch.int64, rows.device
            )
            x += getattr(module, f"{self._first}_bias")[slot_of_row]
        x = module._apply_gate(x) if self._gated else module.act_fn(x)
        x = multiply(x, self._down, self._down_of)
        if module.has_bias:
            x += module.down_proj_bias[slot_of_row]
        return module.post_expert_norm(x) if module.has_post_expert_norm else x


@cache
def _has_grouped_kernel(device: torch.device) -> bool:
    """Whether torch's grouped product is one kernel there; elsewhere it waits for the device and visits every slot."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] in (9, 10)


def _by_pairs(module: nn.Module, function: Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor]) -> Kernel:
    def run(rows: Tensor, slots: Sequence[int], counts: Sequence[int]) -> Tensor:
        ids = [slot for slot, count in zip(slots, counts, strict=True) for _ in range(count)]
        return function(module, rows, to_device(ids, torch.int64, rows.device).unsqueeze(1), rows.new_ones(len(ids), 1))

    return run


def to_device(values: list[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Small host numbers on the device without waiting for it: from pinned memory, which a copy may read later."""
    on_host = torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda")
    return on_host.to(device, non_blocking=True)
