"""The target's shape, a fresh one with its deterministic start, and its files."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, Qwen3MoeConfig, Qwen3MoeForCausalLM

from specfit.embedded import induction
from specfit.embedded.tokenizer import VOCAB

AUX_LAYER_IDS = (1, 3, 5)  # the drafter reads the residual stream entering these layers: hidden_states[i]


def target_config(**changes: Any) -> Qwen3MoeConfig:
    """64 experts, 4 a token, in each of 6 layers; `changes` make the tiny ones of the tests."""
    shape: dict[str, Any] = dict(
        vocab_size=VOCAB,
        hidden_size=128,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        num_experts=64,
        num_experts_per_tok=4,
        moe_intermediate_size=32,
        intermediate_size=128,  # unused: every layer is sparse
        norm_topk_prob=True,
        tie_word_embeddings=True,
        max_position_embeddings=1024,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        pad_token_id=0,
        eos_token_id=3,
        bos_token_id=None,
    )
    return Qwen3MoeConfig(**(shape | changes))


def fresh_target(config: Qwen3MoeConfig, seed: int) -> Qwen3MoeForCausalLM:
    """A float32 target with seeded weights of spectral norm about 1 and the induction start."""
    model = Qwen3MoeForCausalLM(config).float()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("norm.weight"):
                continue
            std = 0.5 * weight.shape[-1] ** -0.5
            if "embed_tokens" in name:
                std = induction.EMBED_STD
            elif name.endswith("mlp.gate.weight"):
                std = 0.02
            weight.normal_(0.0, std, generator=generator)
    induction.plant(model, generator)
    return model


def save_target(model: Qwen3MoeForCausalLM, folder: Path) -> None:
    """Write weights in bfloat16 and the configurations; the files read in Transformers 4 and 5 alike.

    Transformers 5 spells two settings anew (`num_local_experts`, `rope_parameters`); the older names are added.
    """
    config = model.config
    generation = GenerationConfig(do_sample=False, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id)
    half = Qwen3MoeForCausalLM(config).to(torch.bfloat16)
    half.load_state_dict(model.state_dict())
    half.tie_weights()
    half.generation_config = generation
    half.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    path = folder / "config.json"
    raw = json.loads(path.read_text())
    raw |= {"num_experts": config.num_experts, "rope_theta": induction.rope_theta(config), "torch_dtype": "bfloat16"}
    path.write_text(json.dumps(dict(sorted(raw.items())), indent=2) + "\n")


def load_target(folder: Path) -> Qwen3MoeForCausalLM:
    """The saved target as it is meant to run on a CPU: bfloat16 weights, float32 arithmetic."""
    return Qwen3MoeForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
