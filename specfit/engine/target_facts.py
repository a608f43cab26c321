"""The few numbers of a target's config.json that its drafter must agree with."""

from collections.abc import Mapping
from dataclasses import dataclass

from specfit.engine.checkpoint_files import CheckpointError


@dataclass(frozen=True, slots=True)
class TargetFacts:
    hidden_size: int  # H_t
    num_layers: int  # L
    vocab_size: int  # V_t: rows of the embedding, often more than the tokenizer knows
    name: str = ""  # for messages and for comparing with the drafter's verifier


def read_target_facts(config: Mapping, *, name: str | None = None) -> TargetFacts:
    """Take them from a config as plain JSON; a multimodal one keeps them in its `text_config`.

    name: what to call the target; the config's own `_name_or_path` if not given.
    """
    text = text_part(config)
    return TargetFacts(
        hidden_size=whole(text, "hidden_size", what="the target"),
        num_layers=whole(text, "num_hidden_layers", what="the target"),
        vocab_size=whole(text, "vocab_size", what="the target"),
        name=name if name is not None else config.get("_name_or_path") or "",
    )


def text_part(config: Mapping) -> Mapping:
    """The language model's part of a config."""
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) and "hidden_size" not in config else config


def is_number(value: object) -> bool:
    """JSON's true and false are numbers to Python, not to us."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def whole(config: Mapping, key: str, *, what: str, default: int | None = None) -> int:
    """A positive whole number from a config; `default` if it is missing or null."""
    value = config.get(key)
    value = default if value is None else value
    if value is None:
        raise CheckpointError(f"config.json of {what} has no {key}; add it, or take another copy of the checkpoint")
    if not (is_number(value) and 1 <= value < 2**31 and value == int(value)):
        raise CheckpointError(f"config.json of {what} has {key}: {value!r}; expected a positive whole number")
    return int(value)
