"""Small seeded EAGLE-3 heads and the checkpoint folders that hold them, one spelling per published layout."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from specfit.engine.checkpoints import CheckpointError, TargetFacts, read_drafter
from specfit.engine.eagle3 import Eagle3Config, Eagle3Head

TOY = Eagle3Config(
    hidden_size=16,
    intermediate_size=24,
    num_layers=1,
    num_heads=4,
    num_kv_heads=2,
    head_dim=4,
    rms_norm_eps=1e-5,
    hidden_act="silu",
    vocab_size=64,
    draft_vocab_size=24,
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    max_position_embeddings=128,
    aux_layer_ids=(2, 4, 5),
    target_hidden_size=16,
)
TARGET = TargetFacts(hidden_size=16, num_layers=8, vocab_size=64, name="org/Toy-MoE")
LAYOUTS = (
    "speculators",
    "speculators 0.1",
    "SafeAILab",
    "SpecForge / SGLang",
    "ModelOpt / SGLang",
    "AngelSlim",
    "nebius",
)
SHIFTED = ("SpecForge / SGLang", "ModelOpt / SGLang")  # count target layers by their output


def toy_head(seed: int = 0, **changes) -> Eagle3Head:
    """A head whose every weight is random, norms included, so that no formula can be skipped unnoticed."""
    head = Eagle3Head(replace(TOY, **changes))
    generator = torch.Generator().manual_seed(seed)
    for name, weight in head.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        weight.data = 1 + 0.3 * noise if "norm" in name else 0.4 * noise
    return head.eval()


class ListCache:
    """The simplest key/value cache: everything ever appended, one pair of tensors per layer."""

    def __init__(self):
        self.layers = {}

    def update(self, layer_index, keys, values):
        if layer_index in self.layers:
            old_keys, old_values = self.layers[layer_index]
            keys, values = torch.cat((old_keys, keys), dim=2), torch.cat((old_values, values), dim=2)
        self.layers[layer_index] = keys, values
        return keys, values


def additive(visible: list[list[int]], keys: int) -> torch.Tensor:
    """(1, 1, rows, keys): 0 where row i may see key j of `visible[i]`, minus infinity elsewhere."""
    mask = torch.full((1, 1, len(visible), keys), float("-inf"))
    for row, seen in enumerate(visible):
        mask[0, 0, row, seen] = 0
    return mask


def two_steps(head: Eagle3Head) -> torch.Tensor:
    """Logits of a three-row catch-up and of one draft step fed back from it, (4, V_d)."""
    features = torch.randn(1, 3, head.config.feature_size, generator=torch.Generator().manual_seed(5))
    cache = ListCache()
    with torch.inference_mode():
        embedded = head.embed(torch.tensor([[7, 3, 63]]))
        mask = additive([[0], [0, 1], [0, 1, 2]], 3)
        g = head(embedded, head.fuse(features.to(embedded)), torch.arange(3)[None], mask.to(embedded.dtype), cache)
        h = head.feed_back(g[:, -1:])
        last = head(head.embed(torch.tensor([[11]])), h, torch.tensor([[3]]), None, cache)
        return head.logits(torch.cat((g, last), dim=1))[0]


def spread_offsets(size: int = 24, target_size: int = 64) -> torch.Tensor:
    """d2t for draft tokens spread over the target's vocabulary."""
    return torch.arange(size) * (target_size // size) + 1 - torch.arange(size)


def config_of(head: Eagle3Head, layout: str) -> dict:
    """config.json as that layout would write it."""
    c = head.config
    layer = {
        "model_type": "qwen3" if c.qk_norm else "llama",
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "num_hidden_layers": c.num_layers,
        "num_attention_heads": c.num_heads,
        "num_key_value_heads": c.num_kv_heads,
        "head_dim": c.head_dim,
        "rms_norm_eps": c.rms_norm_eps,
        "hidden_act": c.hidden_act,
        "vocab_size": c.vocab_size,
        "max_position_embeddings": c.max_position_embeddings,
        "attention_bias": c.attention_bias,
        "mlp_bias": c.mlp_bias,
        "tie_word_embeddings": False,
    }
    flags = {
        key: True for key in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output") if getattr(c, key)
    }
    ids = list(c.aux_layer_ids)
    scaling = {key: value for key, value in c.rope_parameters.items() if key != "rope_theta"}
    scaling = None if scaling == {"rope_type": "default"} else scaling
    flat_rope = {"rope_theta": c.rope_parameters["rope_theta"], "rope_scaling": scaling}
    if layout.startswith("speculators"):
        old = layout == "speculators 0.1"
        return {
            "architectures": ["Eagle3Speculator" if old else "Eagle3DraftModel"],
            "speculators_model_type": "eagle3",
            "speculators_version": "0.1.0.dev1" if old else "0.7.0",
            "speculators_config": {
                "algorithm": "eagle3",
                "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
                "verifier": {"name_or_path": "org/Toy-MoE", "architectures": ["Qwen3MoeForCausalLM"]},
            },
            "transformer_layer_config": layer | (flat_rope if old else {"rope_parameters": c.rope_parameters}),
            "draft_vocab_size": c.draft_vocab_size,
            "target_hidden_size": None,
            "eagle_aux_hidden_state_layer_ids": ids,
            "norm_before_residual": c.norm_before_residual,
            **flags,
        }
    config = (
        layer | flat_rope | flags | {"draft_vocab_size": c.draft_vocab_size, "bos_token_id": 1, "eos_token_id": [2, 3]}
    )
    if layout in SHIFTED:
        config["architectures"] = ["LlamaForCausalLMEagle3"]
        shifted = [i - 1 for i in ids]
        config["eagle_config"] = {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": shifted}
    else:
        config["architectures"] = ["Eagle3LlamaForCausalLM" if layout == "AngelSlim" else "LlamaForCausalLM"]
        if ids != [2, 4, 5]:
            config["eagle_aux_hidden_state_layer_ids"] = ids
    if layout == "nebius":
        config["truncated_vocab_size"] = config.pop("draft_vocab_size")
    return config


def tensors_of(head: Eagle3Head, layout: str, offsets: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
    """The head's tensors and maps under that layout's names."""
    tensors = {name: weight.clone() for name, weight in head.state_dict().items()}
    size, target_size = head.config.draft_vocab_size, head.config.vocab_size
    if size != target_size or offsets is not None:
        offsets = spread_offsets(size, target_size) if offsets is None else offsets
        tensors["d2t"] = offsets
        tensors["t2d"] = torch.zeros(target_size, dtype=torch.bool)
        tensors["t2d"][offsets.long() + torch.arange(size)] = True
    if layout in ("SafeAILab", "SpecForge / SGLang", "AngelSlim"):
        tensors = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in tensors.items()}
    if layout == "SpecForge / SGLang":
        tensors = {f"model.{name}" if "lm_head" not in name else name: tensor for name, tensor in tensors.items()}
    return tensors


def write_folder(folder: Path, config: dict, tensors: dict[str, torch.Tensor], *, form: str = "safetensors") -> Path:
    """Write config.json and the weights as one safetensors file, as three shards, as .bin or as .bin shards."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    suffix = "bin" if "bin" in form else "safetensors"
    save = torch.save if suffix == "bin" else save_file
    stem = "pytorch_model" if suffix == "bin" else "model"
    if "sharded" not in form:
        save(tensors, str(folder / f"{stem}.{suffix}"))
        return folder
    names, weight_map = list(tensors), {}
    for i in range(3):
        file = f"{stem}-{i + 1:05}-of-00003.{suffix}"
        save({name: tensors[name] for name in names[i::3]}, str(folder / file))
        weight_map |= dict.fromkeys(names[i::3], file)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps(index), encoding="utf-8")
    return folder


def write_drafter(
    folder: Path,
    head: Eagle3Head | None = None,
    *,
    layout: str = "speculators",
    config: dict | None = None,
    layer: dict | None = None,
    tensors: dict | None = None,
    form: str = "safetensors",
) -> Path:
    """A drafter folder with changes: `config` and `layer` update config.json and the (nested) layer config,
    `tensors` updates the tensors by stored name; None as a tensor, or "absent" as a value, removes the entry."""
    head = head or toy_head()
    whole_config, whole_tensors = config_of(head, layout), tensors_of(head, layout)
    inner = whole_config.get("transformer_layer_config", whole_config)
    for table, changes in ((whole_config, config), (inner, layer)):
        for key, value in (changes or {}).items():
            table.pop(key, None) if value == "absent" else table.__setitem__(key, value)
    for name, tensor in (tensors or {}).items():
        whole_tensors.pop(name, None) if tensor is None else whole_tensors.__setitem__(name, tensor)
    return write_folder(folder, whole_config, whole_tensors, form=form)


def read(folder, **changes):
    """`read_drafter` for the toy target."""
    return read_drafter(folder, target=changes.pop("target", TARGET), **changes)


def refused(folder, message: str, **changes) -> None:
    """Reading `folder` is refused in one line that matches `message`."""
    with pytest.raises(CheckpointError, match=message) as caught:
        read(folder, **changes)
    assert "\n" not in str(caught.value)
