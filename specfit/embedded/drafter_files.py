"""The drafter's shape and its files in the speculators library's EAGLE-3 layout.

The engine reads every published layout; here is only the one this package writes.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3MoeConfig

from specfit.engine.eagle3 import Eagle3Config, Eagle3Head

MLP_WIDTH = 320


def drafter_config(target: Qwen3MoeConfig, aux_layer_ids: tuple[int, ...], **changes: Any) -> Eagle3Config:
    """One Llama-style layer of the target's width with a head over the whole vocabulary."""
    shape: dict[str, Any] = dict(
        hidden_size=target.hidden_size,
        intermediate_size=MLP_WIDTH,
        num_layers=1,
        num_heads=target.num_attention_heads,
        num_kv_heads=target.num_key_value_heads,
        head_dim=target.head_dim,
        rms_norm_eps=target.rms_norm_eps,
        hidden_act="silu",
        vocab_size=target.vocab_size,
        draft_vocab_size=target.vocab_size,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        max_position_embeddings=target.max_position_embeddings,
        aux_layer_ids=aux_layer_ids,
        target_hidden_size=target.hidden_size,
        norm_before_residual=True,
    )
    return Eagle3Config(**(shape | changes))


def save_drafter(head: Eagle3Head, folder: Path) -> None:
    """Write config.json and model.safetensors (bfloat16); draft and target vocabulary are the same, so no d2t."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: weight.bfloat16().contiguous() for name, weight in head.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(_as_speculators(head.config), indent=2) + "\n")


def load_drafter(folder: Path) -> Eagle3Head:
    """Read what `save_drafter` wrote, in float32."""
    raw = json.loads((folder / "config.json").read_text())
    layer = raw["transformer_layer_config"]
    config = Eagle3Config(
        hidden_size=layer["hidden_size"],
        intermediate_size=layer["intermediate_size"],
        num_layers=layer["num_hidden_layers"],
        num_heads=layer["num_attention_heads"],
        num_kv_heads=layer["num_key_value_heads"],
        head_dim=layer["head_dim"],
        rms_norm_eps=layer["rms_norm_eps"],
        hidden_act=layer["hidden_act"],
        vocab_size=layer["vocab_size"],
        draft_vocab_size=raw["draft_vocab_size"],
        rope_parameters={"rope_type": "default", "rope_theta": layer["rope_theta"]},
        max_position_embeddings=layer["max_position_embeddings"],
        aux_layer_ids=tuple(raw["eagle_aux_hidden_state_layer_ids"]),
        target_hidden_size=raw["target_hidden_size"],
        norm_before_residual=raw["norm_before_residual"],
    )
    head = Eagle3Head(config)
    head.load_state_dict(
        {name: weight.to(torch.float32) for name, weight in load_file(folder / "model.safetensors").items()}
    )
    return head


def _as_speculators(config: Eagle3Config) -> dict[str, Any]:
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.7.0",
        "speculators_config": {
            "algorithm": "eagle3",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": 5,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": "specfit/embedded/target", "architectures": ["Qwen3MoeForCausalLM"]},
        },
        "transformer_layer_config": {
            "model_type": "llama",
            "hidden_size": config.hidden_size,
            "intermediate_size": config.intermediate_size,
            "num_hidden_layers": config.num_layers,
            "num_attention_heads": config.num_heads,
            "num_key_value_heads": config.num_kv_heads,
            "head_dim": config.head_dim,
            "rms_norm_eps": config.rms_norm_eps,
            "hidden_act": config.hidden_act,
            "vocab_size": config.vocab_size,
            "max_position_embeddings": config.max_position_embeddings,
            "attention_bias": config.attention_bias,
            "mlp_bias": config.mlp_bias,
            "rope_theta": config.rope_parameters["rope_theta"],
        },
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        "eagle_aux_hidden_state_layer_ids": list(config.aux_layer_ids),
        "norm_before_residual": config.norm_before_residual,
        "norm_before_fc": config.norm_before_fc,
        "embed_requires_grad": False,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }
