"""What a model takes, counted on torch's meta device: the very tensors that loading makes, and none of their bytes."""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.integrations.moe import ExpertsInterface

from specfit.engine.checkpoint_files import CheckpointError
from specfit.engine.host_experts import row_shape, rows_in_chunk
from specfit.engine.kv_cache import KVCache
from specfit.engine.layer_kinds import rope_tables
from specfit.engine.skeleton import named_moe_modules, why

WITHOUT_EXPERTS = "specfit_shapes_only"


@dataclass(frozen=True, slots=True)
class Needs:
    """What a model takes, in bytes of its dtype."""

    family: str
    experts: tuple[int, ...]  # of each MoE layer
    row_bytes: tuple[int, ...]  # one expert of each MoE layer
    dense_bytes: int  # everything that stays on the device: attention, embeddings, routers, shared experts
    kv_bytes: int  # keys and values of one token
    dtype: str

    @property
    def expert_bytes(self) -> int:
        """All routed experts."""
        return sum(count * row for count, row in zip(self.experts, self.row_bytes, strict=True))

    def slot_bytes(self, slots: int) -> int:
        """`slots` in every MoE layer, or as many as it has experts."""
        return sum(min(slots, count) * row for count, row in zip(self.experts, self.row_bytes, strict=True))

    def pinned_bytes(self) -> int:
        """What pinned slabs for all experts take: each chunk is rounded up to a power of two."""
        total, group = 0, 0
        for place, (count, row) in enumerate(zip(self.experts, self.row_bytes, strict=True)):
            group += count
            if place + 1 == len(self.experts) or self.row_bytes[place + 1] != row:
                most = rows_in_chunk(row)
                full, rest = divmod(group, most)
                total += full * _power_of_two(most * row) + (_power_of_two(rest * row) if rest else 0)
                group = 0
        return total


def model_needs(model: PreTrainedModel) -> Needs:
    """Count a model on the meta device."""
    modules = named_moe_modules(model)
    inside = tuple(f"{name}." for name, _ in modules)
    dense = {id(p): p.nbytes for name, p in model.named_parameters() if not name.startswith(inside)}
    dense |= {id(b): b.nbytes for b in model.buffers()}
    shapes = [row_shape(module) for _, module in modules]
    return Needs(
        family=model.config.model_type,
        experts=tuple(experts for experts, _ in shapes),
        row_bytes=tuple(width * model.dtype.itemsize for _, width in shapes),
        dense_bytes=sum(dense.values()),
        kv_bytes=_kv_bytes(model),
        dtype=str(model.dtype).removeprefix("torch."),
    )


@torch.inference_mode()
def _kv_bytes(model: PreTrainedModel) -> int:
    """Keys and values of one token, found by running one through the model without memory."""
    model = _with_fixed_rope(model)
    before = model.config._experts_implementation
    model.set_experts_implementation(WITHOUT_EXPERTS)
    try:
        cache = KVCache(model.config.num_hidden_layers)
        token = torch.zeros(1, 1, dtype=torch.int64, device="meta")
        name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
        model.base_model(input_ids=token, use_cache=True, **{name: cache})
    except Exception as error:  # the library raises whatever a config it cannot use leads it to
        config = model.config.to_dict()
        raise CheckpointError(
            f"transformers' {model.config.model_type} cannot run with this config.json: {why(error, config)}"
        ) from error
    finally:
        model.set_experts_implementation(before)
    return sum(
        tensor[:, :, :1].numel() * tensor.element_size()
        for layer in cache.layers
        for tensor in (layer.keys, layer.values)
    )


def _with_fixed_rope(model: PreTrainedModel) -> PreTrainedModel:
    """The model, or where its rotary frequencies follow the text's length, one that does not ask for it.

    Without memory there are no positions to take a length from; keys and values are as wide with any frequencies.
    """
    if not any(table.get("rope_type") in ("dynamic", "longrope") for table in rope_tables(model.config)):
        return model
    config = copy.deepcopy(model.config)
    for table in rope_tables(config):
        table["rope_type"] = "default"
    attention = model.config._attn_implementation
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=model.dtype, attn_implementation=attention).eval()


def _shapes_only(module: nn.Module, hidden: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    return torch.empty_like(hidden)


ExpertsInterface.register(WITHOUT_EXPERTS, _shapes_only)


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()
