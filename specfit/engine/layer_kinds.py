"""Which kinds of attention a model's layers have, and whether a tree can be verified with them.

A tree's rows share one KV cache and are told apart by a mask. That needs layers that attend to keys and values: a layer
that carries a state from token to token (linear attention, Mamba, a convolution) would have to fork it at every branch.
Sliding layers attend too, only not as far back, so they get a mask of their own.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedModel

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
    window = (getattr(config, "sliding_window", None) or None) if _has_windows(config) else None
    if listed:
        return LayerKinds(window, listed) if SLIDING in listed else LayerKinds(None, ())
    return LayerKinds(window if getattr(config, "use_sliding_window", True) else None, ())


def rope_tables(config: Any) -> list[dict[str, Any]]:
    """Rotary parameters of a model's config: one table, or one for each kind of layer."""
    stated = getattr(config, "rope_parameters", None) or {}
    return [table for table in stated.values() if isinstance(table, dict)] or [stated]


def length_switch(config: Any) -> int | None:
    """The length of text past which all rotary frequencies are others (longrope, dynamic); None where they stay.

    The library takes them by a forward's last position, so a tree across that point would turn its first rows as if
    they stood behind it.
    """
    ends = [table["original_max_position_embeddings"] for table in rope_tables(config) if _type(table) == "longrope"]
    if any(_type(table) == "dynamic" for table in rope_tables(config)):
        ends.append(config.max_position_embeddings)  # where scaling begins
    return min(ends, default=None)


def _type(table: dict[str, Any]) -> Any:
    return table.get("rope_type")


def check_one_rope(config: Any, *, prompt: int, new: int) -> None:
    """ValueError for a text of `prompt` tokens and `new` ones that drafts would take across `length_switch`."""
    switch = length_switch(config)
    if switch is not None and prompt <= switch < prompt + new:
        raise ValueError(
            f"the prompt has {prompt} tokens and the limit is {new} new ones; past {switch} this model's rotary "
            "frequencies change, and a tree across that point would not give the plain text: shorten one "
            "of them, or decode with AR"
        )


def _has_windows(config: Any) -> bool:
    """Whether the family's code has sliding windows at all; a config may carry the key for nothing."""
    kind = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    code = vars(sys.modules[kind.__module__]) if kind is not None else {"create_sliding_window_causal_mask": None}
    return "create_sliding_window_causal_mask" in code or "create_masks_for_generate" in code


def refuse_stateful(kind: type[PreTrainedModel], config: Any) -> None:
    """CheckpointError for a class of models with layers that a mask cannot serve."""
    family = config.model_type
    other = sorted({*(getattr(config, "layer_types", None) or ())} - {FULL, SLIDING})
    if kind._is_stateful or any("linear" in name or name in STATEFUL for name in other):
        raise CheckpointError(
            f"{family} has recurrent layers: their state would have to fork at every branch of a tree, which specfit "
            "does not do"
        )
    windows = SLIDING in (getattr(config, "layer_types", None) or ()) or getattr(config, "use_sliding_window", False)
    if windows and getattr(config, "sliding_window", None) == 0:
        raise CheckpointError("sliding_window is 0 in config.json, which hides every token; write null for no window")
    if other:
        raise CheckpointError(
            f"{family} has layers of type {', '.join(other)}; specfit makes tree masks for full and sliding attention"
        )
