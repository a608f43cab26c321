"""A Qwen3-MoE of any shape with random weights, built in memory: experts in host rows, the rest on the device.

What a forward costs does not depend on what the weights say, so a machine can be measured without a checkpoint.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3MoeConfig

from specfit.engine.host_experts import allocate_rows, row_shape
from specfit.engine.skeleton import named_moe_modules, rebuild_buffers

MIDDLE = {  # small enough for a laptop, with the layers, experts and top-k of Qwen3-30B-A3B
    "num_hidden_layers": 48,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 64,
    "vocab_size": 4096,
}
QWEN3_30B_A3B = {  # of the checkpoint's config.json
    "num_hidden_layers": 48,
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "vocab_size": 151936,
}


def random_model(shape: dict[str, int], *, dtype: torch.dtype, device: torch.device, seed: int = 0) -> PreTrainedModel:
    """The library's model of this shape; its experts stay on the meta device."""
    config = Qwen3MoeConfig(
        **shape, norm_topk_prob=True, tie_word_embeddings=False, max_position_embeddings=4096, decoder_sparse_step=1
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    experts = tuple(f"{name}." for name, _ in named_moe_modules(model))
    generator = torch.Generator(device).manual_seed(seed)
    for name, parameter in list(model.named_parameters()):
        if not name.startswith(experts):
            owner, _, leaf = name.rpartition(".")
            value = torch.empty(parameter.shape, dtype=dtype, device=device)
            value.fill_(1.0) if parameter.dim() == 1 else value.normal_(
                0, parameter.shape[-1] ** -0.5, generator=generator
            )
            setattr(model.get_submodule(owner), leaf, nn.Parameter(value, requires_grad=False))
    rebuild_buffers(model, device)
    return model.eval()


def random_experts(model: PreTrainedModel, *, dtype: torch.dtype, pin: bool, seed: int = 0) -> list[list[Tensor]]:
    """Host rows for every expert: each a window, at a place of its own, of one stretch of random numbers."""
    shapes = [row_shape(module) for _, module in named_moe_modules(model)]
    rows, width = allocate_rows(shapes, dtype=dtype, pin=pin).rows, shapes[0][1]
    stock = torch.empty(width + 8 * sum(map(len, rows)), dtype=dtype)
    stock.normal_(0, model.config.hidden_size**-0.5, generator=torch.Generator().manual_seed(seed))
    for number, row in enumerate(row for layer in rows for row in layer):
        row.copy_(stock[8 * number : 8 * number + width])
    return rows
