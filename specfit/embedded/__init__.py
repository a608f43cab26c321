"""The embedded pair: a small, really trained mixture-of-experts target and its EAGLE-3 drafter, shipped as files.

The folders hold ordinary checkpoints: the target loads with `AutoModelForCausalLM.from_pretrained`, the drafter is in
the speculators library's layout. MODEL_CARD.md says how they were made and what they reach;
`python -m specfit.embedded.train OUT` makes them again, and `specfit train-routes` their route head.
"""

from pathlib import Path

__all__ = ["drafter_folder", "route_head_file", "target_folder", "world_folder"]


def target_folder() -> Path:
    """The Qwen3-MoE checkpoint: config, bfloat16 weights, tokenizer with its chat template."""
    return Path(__file__).parent / "target"


def drafter_folder() -> Path:
    """The EAGLE-3 drafter of that target: config and bfloat16 weights."""
    return Path(__file__).parent / "drafter"


def world_folder() -> Path:
    """Recorded worlds of the pair (`specfit record`), one .npz file each."""
    return Path(__file__).parent / "worlds"


def route_head_file() -> Path:
    """The route predictor of that pair, in one safetensors file."""
    return Path(__file__).parent / "route_head.safetensors"
