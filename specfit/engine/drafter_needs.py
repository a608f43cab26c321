"""What a drafter takes, from its config and the headers of its files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from specfit.engine.checkpoint_files import checkpoint_folder, open_checkpoint, read_config
from specfit.engine.drafter_config import unwrapped
from specfit.engine.target_facts import whole


@dataclass(frozen=True, slots=True)
class DrafterNeeds:
    """In bytes of the dtype that the target computes in."""

    weight_bytes: int
    kv_bytes: int  # keys and values of one token


def drafter_needs(path_or_id: str | Path, itemsize: int) -> DrafterNeeds:
    """Of a folder or hub id. Raises CheckpointError for a config without the numbers, or files that are torn.

    Weights in .bin files are counted by the files' sizes: what they hold can only be known by reading them.
    """
    folder = checkpoint_folder(path_or_id)
    raw = unwrapped(read_config(folder))
    inner = raw.get("transformer_layer_config")
    layer = inner if isinstance(inner, Mapping) else raw
    heads = whole(layer, "num_attention_heads", what="the drafter")
    kv_heads = whole(layer, "num_key_value_heads", what="the drafter", default=heads)
    usual = max(1, whole(layer, "hidden_size", what="the drafter") // heads)
    width = kv_heads * whole(layer, "head_dim", what="the drafter", default=usual)
    layers = whole(layer, "num_hidden_layers", what="the drafter", default=1)
    return DrafterNeeds(_weight_bytes(folder, itemsize), 2 * layers * width * itemsize)


def _weight_bytes(folder: Path, itemsize: int) -> int:
    if not any(folder.glob("*.safetensors*")):
        return sum(path.stat().st_size for path in folder.glob("pytorch_model*.bin"))
    with open_checkpoint(folder) as checkpoint:
        return sum(math.prod(entry.shape) for entry in checkpoint.tensors.values()) * itemsize
