"""Small real checkpoints for tests: random Qwen3-MoE targets and EAGLE-3 heads, saved in the published layouts."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from specfit.engine.eagle3 import Eagle3Config, Eagle3Head
from tests.word_tokenizer import save_tokenizer


def tiny_target(folder: Path, *, seed: int = 0, **changes: object) -> Qwen3MoeForCausalLM:
    """A random Qwen3-MoE with 4 layers of 8 experts, top-2, saved to `folder`; returns the library's own model.

    Embeddings and routers are large, so that routes and greedy text depend on the context.
    """
    torch.manual_seed(seed)
    settings: dict = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "moe_intermediate_size": 16,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "max_position_embeddings": 256,
        "initializer_range": 0.15,
        "tie_word_embeddings": False,
        "eos_token_id": None,
        "bos_token_id": None,
        "attn_implementation": "sdpa",
    }
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**{**settings, **changes})).eval()
    for name, parameter in model.named_parameters():
        if name.endswith(("embed_tokens.weight", "mlp.gate.weight")):
            torch.nn.init.normal_(parameter, std=1.0)
    model.save_pretrained(folder)
    return model


def tiny_drafter(
    folder: Path, *, seed: int = 1, aux: tuple[int, ...] = (1, 2, 3), vocab: int = 64, width: int = 32
) -> None:
    """A random EAGLE-3 head for `tiny_target` in the speculators layout."""
    torch.manual_seed(seed)
    layer = {
        "model_type": "llama",
        "hidden_size": width,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "vocab_size": vocab,
        "max_position_embeddings": 256,
        "attention_bias": False,
        "mlp_bias": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }
    head = Eagle3Head(
        Eagle3Config(
            hidden_size=width,
            intermediate_size=48,
            num_layers=1,
            num_heads=4,
            num_kv_heads=2,
            head_dim=8,
            rms_norm_eps=1e-6,
            hidden_act="silu",
            vocab_size=vocab,
            draft_vocab_size=vocab,
            rope_parameters=layer["rope_parameters"],
            max_position_embeddings=256,
            aux_layer_ids=aux,
            target_hidden_size=width,
            norm_before_residual=True,
        )
    )
    for parameter in head.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.4)
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.7.0",
        "speculators_config": {
            "algorithm": "eagle3",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5}],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": "tiny", "architectures": ["Qwen3MoeForCausalLM"]},
        },
        "transformer_layer_config": layer,
        "draft_vocab_size": vocab,
        "norm_before_residual": True,
        "target_hidden_size": width,
        "eagle_aux_hidden_state_layer_ids": list(aux),
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_file(
        {name: tensor.detach().contiguous() for name, tensor in head.state_dict().items()}, folder / "model.safetensors"
    )


def tiny_pair(folder: Path) -> Path:
    """`folder` with a target and its tokenizer in target/, and a drafter in drafter/."""
    tiny_target(folder / "target")
    tiny_drafter(folder / "drafter")
    save_tokenizer(folder / "target")
    return folder
