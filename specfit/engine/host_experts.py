"""Every expert's weights in host memory, streamed tensor by tensor from safetensors.

An expert is one flat row: its parameters side by side in the order of the library's experts module, so that one copy
moves it into a slot. Rows live in slabs that are allocated once; nothing is stacked, so an expert is never twice in
memory and never on the device before it is needed. On CUDA the slabs are pinned, in chunks just below a power of two,
because torch's pinned allocator rounds up: a layer of 1.1 GiB would take 2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from specfit.engine.checkpoint_files import Checkpoint, CheckpointError
from specfit.engine.expert_tensors import expert_tensors
from specfit.engine.offload import expert_parameters

PINNED_CHUNK = 1 << 30  # bytes; chunks hold as many whole rows as fit


def load_host_experts(
    checkpoint: Checkpoint,
    modules: Sequence[tuple[str, Any]],
    *,
    dtype: torch.dtype,
    pin: bool,
    progress: Callable[[int], None] = lambda layers: None,
) -> list[list[Tensor]]:
    """Rows of every expert of every MoE layer, read one tensor at a time.

    modules: (dotted name, experts module on the meta device) in layer order.
    Raises CheckpointError for a missing or misshapen tensor, NaN weights, or memory that runs out.
    """
    shapes = [dict(expert_parameters(module)) for _, module in modules]
    for (name, _), layer in zip(modules, shapes, strict=True):
        if set(layer) != {"gate_up_proj", "down_proj"}:
            raise CheckpointError(
                f"{name} holds {sorted(layer)}; specfit offloads experts of gate_up_proj and down_proj"
            )
    widths = [sum(torch.Size(shape).numel() for shape in layer.values()) for layer in shapes]
    rows = _rows([(module.num_experts, width) for (_, module), width in zip(modules, widths, strict=True)], dtype, pin)
    for place, ((name, _), parameters) in enumerate(zip(modules, shapes, strict=True)):
        number = int(name.split("layers.")[1].split(".")[0])
        stored = expert_tensors(checkpoint, number, experts=len(rows[place]))
        for expert, row in enumerate(rows[place]):
            values = dict(zip(("gate_up_proj", "down_proj"), stored.read_expert(checkpoint, expert), strict=True))
            start = 0
            for parameter, shape in parameters.items():
                if tuple(values[parameter].shape) != shape:
                    raise CheckpointError(
                        f"{parameter} of expert {expert} in {name} has shape {tuple(values[parameter].shape)}; "
                        f"the config says {shape}"
                    )
                size = torch.Size(shape).numel()
                row[start : start + size] = values[parameter].reshape(-1)
                start += size
            if not torch.isfinite(row).all():
                raise CheckpointError(f"expert {expert} of {name} holds NaN or infinite weights; fetch the shard again")
        progress(place + 1)
    return rows


def _rows(shapes: Sequence[tuple[int, int]], dtype: torch.dtype, pin: bool) -> list[list[Tensor]]:
    """Uninitialised rows for (experts, width) of every layer, cut from slabs."""
    try:
        return [_layer_rows(experts, width, dtype, pin) for experts, width in shapes]
    except (RuntimeError, MemoryError) as error:
        total = sum(experts * width for experts, width in shapes) * dtype.itemsize
        kind = "pinned HOST" if pin else "HOST"
        raise CheckpointError(
            f"{total / 2**30:.1f} GiB of {kind} memory for the experts cannot be had ({str(error).splitlines()[0]})"
        ) from error


def _layer_rows(experts: int, width: int, dtype: torch.dtype, pin: bool) -> list[Tensor]:
    most = max(1, PINNED_CHUNK // (width * dtype.itemsize)) if pin else experts
    rows: list[Tensor] = []
    while len(rows) < experts:
        count = min(most, experts - len(rows))
        rows.extend(torch.empty(count, width, dtype=dtype, pin_memory=pin))
    return rows
