"""A target from a folder, offloaded, without a tokenizer or a drafter."""

from __future__ import annotations

from pathlib import Path

import torch

from specfit.engine.checkpoint_files import open_checkpoint
from specfit.engine.experts_kernel import HOST_GROUPED
from specfit.engine.link import InstantLink
from specfit.engine.loading import load_target
from specfit.engine.offload import Offload
from specfit.engine.target import OffloadedTarget

CPU = torch.device("cpu")


def offloaded_target(folder: Path, *, slots: int) -> OffloadedTarget:
    with open_checkpoint(folder) as checkpoint:
        loaded = load_target(checkpoint, name=str(folder), dtype=torch.float32, device=CPU, attention=None, slots=slots)
    offload = Offload(
        loaded.model,
        loaded.host,
        slots=slots,
        link=InstantLink(),
        cleared=False,
        overlap=False,
        kernel=HOST_GROUPED,
        device=CPU,
    )
    return OffloadedTarget(loaded.model, offload, aux_layer_ids=(), device=CPU)
