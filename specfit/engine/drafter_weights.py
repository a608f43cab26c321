"""A drafter's tensors under the names `Eagle3Head` uses, checked one by one.

Layouts differ in a `model.` prefix, in `midlayer.` for `layers.0.`, and in what they save besides. Nothing is
dropped, split or reshaped on a guess: a tensor is used, known to be unneeded, or refused by name.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from specfit.engine.checkpoint_files import CheckpointError, some
from specfit.engine.draft_vocabulary import OFFSETS, TOKEN_IDS
from specfit.engine.eagle3 import Eagle3Config, Eagle3Head

MAPS = ("t2d", *OFFSETS, *TOKEN_IDS)
UNNEEDED = re.compile(r"(verifier_\w+\.weight|(.*\.)?rotary_emb\.\w+|(.*\.)?inv_freq)$")
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

# The config keys that fix a tensor's shape, for messages: first match wins.
SHAPE_KEYS = (
    (r"embed_tokens", "vocab_size, hidden_size"),
    (r"lm_head", "draft_vocab_size, hidden_size"),
    (r"fc\.|input_norm", "the number of target layers, target_hidden_size, hidden_size"),
    (r"fc_norm", "target_hidden_size"),
    (r"layers\.0\..*[qkv]_proj", "num_attention_heads, num_key_value_heads, head_dim, 2 x hidden_size"),
    (r"[qkvo]_proj", "num_attention_heads, num_key_value_heads, head_dim, hidden_size"),
    (r"[qk]_norm", "head_dim"),
    (r"mlp", "intermediate_size, hidden_size"),
    (r"", "hidden_size"),
)


@dataclass(frozen=True, slots=True)
class StoredTensors:
    """A file's tensors, sorted by what they are for and named as speculators does."""

    weights: dict[str, Tensor]
    maps: dict[str, Tensor]  # d2t, t2d and their aliases
    unneeded: tuple[str, ...]  # stored names
    stored_names: dict[str, str]  # speculators name -> name in the file, for messages

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in (self.weights | self.maps).items()}


def sort_tensors(tensors: Mapping[str, Tensor]) -> StoredTensors:
    weights: dict[str, Tensor] = {}
    maps: dict[str, Tensor] = {}
    unneeded: list[str] = []
    stored_names: dict[str, str] = {}
    prefix = _prefix(tensors)
    for name, tensor in tensors.items():
        short = name.removeprefix(prefix)
        short = re.sub(r"^(model\.)?(midlayer\.)?", lambda match: "layers.0." if match[2] else "", short)
        if short in stored_names:
            raise CheckpointError(f"{stored_names[short]} and {name} are both {short}; keep the right one")
        stored_names[short] = name
        if short in MAPS:
            maps[short] = tensor
        elif UNNEEDED.match(short):
            unneeded.append(name)
        else:
            weights[short] = tensor
    return StoredTensors(weights, maps, tuple(unneeded), stored_names)


def _prefix(names: Iterable[str]) -> str:
    """What a trainer's wrapper put before the head's own names ("draft_model.", "module."), going by the one fc."""
    found = [name.removesuffix("fc.weight") for name in names if f".{name}".endswith(".fc.weight")]
    return found[0] if len(found) == 1 else ""


def empty_head(config: Eagle3Config) -> Eagle3Head:
    """A head whose tensors have shapes and no memory: what is never filled in cannot be read by mistake."""
    with torch.device("meta"):
        return Eagle3Head(config)


def check_weights(tensors: StoredTensors, head: Eagle3Head, *, from_target: frozenset[str]) -> None:
    """Compare with what an empty `head` needs, and refuse by stored name what does not fit.

    That is: tensors missing, unexpected, of another shape, of no plain dtype, or with values that are not finite.
    from_target: names the file may lack because the target has them.
    """
    expected = {name: tuple(weight.shape) for name, weight in head.state_dict().items()}
    stored = tensors.stored_names
    unexpected = [stored[name] for name in tensors.weights if name not in expected]
    if unexpected:
        raise CheckpointError(
            f"the drafter holds {some(unexpected)}, which this head has no place for{_hint(unexpected)}"
        )
    missing = [name for name in expected if name not in tensors.weights and name not in from_target]
    if missing:
        raise CheckpointError(
            f"the drafter lacks {some(missing)} of shape {expected[missing[0]]}; take a complete copy of the checkpoint"
        )
    for name, weight in tensors.weights.items():
        if tuple(weight.shape) != expected[name]:
            keys = next(keys for pattern, keys in SHAPE_KEYS if re.search(pattern, name))
            raise CheckpointError(
                f"{stored[name]} has shape {tuple(weight.shape)}, config.json ({keys}) asks for {expected[name]}; "
                "config and weights belong to different checkpoints, or one is wrong"
            )
        if weight.dtype not in FLOATS:
            raise CheckpointError(f"{stored[name]} is stored as {weight.dtype}; specfit reads unquantized weights only")
        if not torch.isfinite(weight).all():
            bad = int((~torch.isfinite(weight)).sum())
            raise CheckpointError(f"{stored[name]} holds {bad} values that are NaN or infinite; fetch the file again")


def _hint(names: list[str]) -> str:
    """What an unexpected tensor usually means."""
    joined = " ".join(names)
    if "qkv_proj" in joined or "gate_up_proj" in joined:
        return "; the order of rows in a fused projection differs between trainers, so export q, k, v (gate, up) apart"
    if "q_norm" in joined:
        return '; its layer has model_type "llama", and only "qwen3" layers normalise queries and keys'
    if "input_norm" in joined or "fc_norm" in joined:
        return "; config.json does not set norm_before_fc or fc_norm"
    if "bias" in joined:
        return "; config.json does not set attention_bias or mlp_bias (a bias on fc is EAGLE-1/2)"
    if "scale" in joined or "zero" in joined:
        return "; these look like quantized weights, so take the unquantized checkpoint"
    return "; the file is for another kind of head, or config.json is not its own"
