"""Every expert's weights in host memory, streamed tensor by tensor from safetensors.

An expert is one flat row: its parameters side by side in the order of the library's experts module, so that one copy
moves it into a slot. Rows live in slabs that are allocated once; nothing is stacked, so an expert is never twice in
memory and never on the device before it is needed. On CUDA the slabs are pinned, in chunks just below a power of two
that run across layers, because torch's pinned allocator rounds up: a layer of 1.1 GiB would take 2. Where no more
memory can be pinned the rest stays pageable: it works, and copies from it are slower and do not overlap with compute.

For a CPU with less memory than the experts take, `map_host_experts` leaves them in their files; see `mapped_row`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specfit.engine.checkpoint_files import Checkpoint, CheckpointError
from specfit.engine.checkpoint_names import NameTable, Stored, check_finite
from specfit.engine.mapped_row import MappedRow
from specfit.engine.memory_sizes import shown
from specfit.engine.offload import expert_parameters

PINNED_CHUNK = 1 << 30  # bytes; chunks hold as many whole rows as fit


@dataclass(frozen=True, slots=True)
class HostExperts:
    """The rows, and how much of them is pinned."""

    rows: list[list[Tensor]]  # of every MoE layer in order, one flat row an expert
    bytes: int
    pinned_bytes: int


def load_host_experts(
    checkpoint: Checkpoint,
    model: PreTrainedModel,
    modules: Sequence[tuple[str, Any]],
    names: NameTable,
    *,
    dtype: torch.dtype,
    pin: bool,
    progress: Callable[[int], None] = lambda layers: None,
) -> HostExperts:
    """Rows of every expert of every MoE layer, read one tensor at a time.

    modules: (dotted name, experts module on the meta device) in layer order. pin: try to have pinned memory.
    Raises CheckpointError for a missing or misshapen tensor, NaN weights, or memory that runs out.
    """
    layers = [_layer(checkpoint, name, module, names) for name, module in modules]
    host = allocate_rows([row_shape(module) for _, module in modules], dtype=dtype, pin=pin)
    for place, ((name, module), stored) in enumerate(zip(modules, layers, strict=True)):
        for expert, row in enumerate(host.rows[place]):
            start = 0
            for parameter, shape in expert_parameters(module):
                values = stored[parameter].read_expert(checkpoint, model, expert)
                _check_shape(f"{parameter} of expert {expert} in {name}", tuple(values.shape), shape)
                row[start : start + values.numel()] = values.reshape(-1)
                start += values.numel()
            check_finite(f"expert {expert} of {name}", row)
        progress(place + 1)
    return host


def map_host_experts(
    checkpoint: Checkpoint,
    model: PreTrainedModel,
    modules: Sequence[tuple[str, Any]],
    names: NameTable,
    *,
    dtype: torch.dtype,
    progress: Callable[[int], None] = lambda layers: None,
) -> list[list[MappedRow]]:
    """The same rows left in the checkpoint's files: memory-mapped, and read when they are copied into a slot.

    All of them are read once here, a piece at a time and into memory that is given back, to be checked for NaN: a
    damaged file is found now and not in the middle of an answer. Raises CheckpointError as `load_host_experts`, and
    for a layout whose numbers would have to be rearranged.
    """
    rows, known = [], dict[Any, Any]()
    for place, (name, module) in enumerate(modules):
        stored = _layer(checkpoint, name, module, names)
        layer = []
        for expert in range(module.num_experts):
            pieces = []
            for parameter, shape in expert_parameters(module):
                found, runs = stored[parameter].expert_runs(checkpoint, model, expert, known)
                _check_shape(f"{parameter} of expert {expert} in {name}", found, shape)
                for run in runs:
                    values = checkpoint.read_run(run.name, run.start, run.count)
                    check_finite(f"expert {expert} of {name}", values)
                    pieces.append((checkpoint.map_run(run.name, run.start, run.count), values.dtype))
            layer.append(MappedRow(pieces, dtype=dtype))
        rows.append(layer)
        progress(place + 1)
    return rows


def _check_shape(what: str, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if found != expected:
        raise CheckpointError(f"{what} has shape {found}; the config says {expected}")


def row_shape(module: Any) -> tuple[int, int]:
    """(experts, numbers in a row) of an experts module."""
    return module.num_experts, sum(math.prod(shape) for _, shape in expert_parameters(module))


def rows_in_chunk(row_bytes: int) -> int:
    """How many rows a chunk holds."""
    return max(1, PINNED_CHUNK // row_bytes)


def _layer(checkpoint: Checkpoint, name: str, module: Any, names: NameTable) -> dict[str, Stored]:
    """Where a layer's parameters are stored, once each has as many experts as the config says."""
    found = {}
    for parameter, _ in expert_parameters(module):
        stored = names.stored.get(f"{name}.{parameter}")
        if stored is None:
            raise CheckpointError(
                f"the checkpoint has nothing for {name}.{parameter}; a shard is missing, fetch it again"
            )
        count = stored.count_experts(checkpoint)
        if count != module.num_experts:
            raise CheckpointError(
                f"{name} holds {count} experts, config.json says {module.num_experts}; a shard is missing, or config "
                "and weights belong to different checkpoints"
            )
        found[parameter] = stored
    return found


def allocate_rows(shapes: Sequence[tuple[int, int]], *, dtype: torch.dtype, pin: bool) -> HostExperts:
    """Uninitialised rows for (experts, width) of every layer, cut from chunks that neighbours of one width share."""
    layers: list[list[Tensor]] = []
    total = pinned = 0
    try:
        for width, group in groupby(shapes, key=lambda shape: shape[1]):
            counts = [experts for experts, _ in group]
            spare: list[Tensor] = []
            left = sum(counts)
            for count in counts:
                while len(spare) < count:
                    size = min(left, rows_in_chunk(width * dtype.itemsize))
                    chunk, pin = _chunk(size, width, dtype, pin)
                    left -= size
                    total += chunk.nbytes
                    pinned += chunk.nbytes if pin else 0
                    spare.extend(chunk)
                layers.append(spare[:count])
                del spare[:count]
    except (RuntimeError, MemoryError) as error:
        need = sum(experts * width for experts, width in shapes) * dtype.itemsize
        raise CheckpointError(
            f"{shown(need)} of HOST memory for the experts cannot be had, {shown(total)} could "
            f"({str(error).splitlines()[0]}); free some, or take a smaller dtype"
        ) from error
    return HostExperts(layers, total, pinned)


def _chunk(rows: int, width: int, dtype: torch.dtype, pin: bool) -> tuple[Tensor, bool]:
    """A chunk, and whether it is pinned; once pinning has failed it is not tried again."""
    if pin:
        try:
            return torch.empty(rows, width, dtype=dtype, pin_memory=True), True
        except RuntimeError:  # no more can be locked (a limit of the container or of WSL), or there is no CUDA
            pass
    return torch.empty(rows, width, dtype=dtype), False
