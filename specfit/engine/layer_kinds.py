"""Which kinds of attention a model's layers have, and whether a tree can be verified with them.

A tree's rows share one KV cache and are told apart by a mask. That needs layers that attend to keys and values: a layer
that carries a state from token to token (linear attention, Mamba, a convolution) would have to fork it at every branch.
Sliding layers attend too, only not as far back, so they get a mask of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from specfit.engine.checkpoint_files import CheckpointError

FULL, SLIDING = "full_attention", "sliding_attention"
STATEFUL = ("conv", "mamba", "recurrent")  # and whatever is linear; most such families also say so by a flag


@dataclass(frozen=True, slots=True)
class LayerKinds:
    """What a tree's mask has to look like."""

    window: int | None  # tokens a sliding layer sees, the row's own among them; None where every layer sees all
    names: tuple[str, ...]  # kinds that the model wants a mask each for; empty where it takes one for all


def layer_kinds(config: Any) -> LayerKinds:
    """Read it off a model's config."""
    listed = tuple(dict.fromkeys(getattr(config, "layer_types", None) or ()))
    window = getattr(config, "sliding_window", None) or None
    if listed:
        return LayerKinds(window, listed) if SLIDING in listed else LayerKinds(None, ())
    return LayerKinds(window if getattr(config, "use_sliding_window", True) else None, ())


def refuse_stateful(kind: type[PreTrainedModel], config: Any) -> None:
    """CheckpointError for a class of models with layers that a mask cannot serve."""
    family = config.model_type
    other = sorted({*(getattr(config, "layer_types", None) or ())} - {FULL, SLIDING})
    if kind._is_stateful or any("linear" in name or name in STATEFUL for name in other):
        raise CheckpointError(
            f"{family} has recurrent layers: their state would have to fork at every branch of a tree, which specfit "
            "does not do"
        )
    if other:
        raise CheckpointError(
            f"{family} has layers of type {', '.join(other)}; specfit makes tree masks for full and sliding attention"
        )
