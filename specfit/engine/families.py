"""Which families of mixture-of-experts models specfit serves, found out by trying each: the table in docs/families.md.

Every causal language model of the installed transformers with experts is built small and random, saved to a folder,
loaded from there as any checkpoint is, and compared with the library's own resident model. A family is served if its
offloaded logits are the resident ones at every slot count tried, its routes are recorded, and a tree forward agrees
with plain ones; else the table says why not. `python -m specfit.engine.families docs/families.md` writes it.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, model_type_to_module_name
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from specfit.engine.checkpoint_files import CheckpointError, open_checkpoint, read_config
from specfit.engine.checkpoint_names import name_table
from specfit.engine.experts_kernel import HOST_GROUPED
from specfit.engine.host_experts import load_host_experts
from specfit.engine.layer_kinds import layer_kinds, refuse_stateful
from specfit.engine.link import InstantLink
from specfit.engine.offload import Offload
from specfit.engine.self_test import tree_self_test
from specfit.engine.skeleton import build_skeleton, fill_skeleton, named_moe_modules
from specfit.engine.target import OffloadedTarget

CPU = torch.device("cpu")
HOOK = "use_experts_implementation"  # the library's decorator
PROMPT = [(5 * i + 3) % 64 for i in range(21)]  # longer than the window of SMALL
SLOTS = (8, 3, 1)
TOLERANCE = 1e-5  # of the largest logit; what is right differs by 1e-7
LAYERS = 3

# What makes a model small, under every name that some family has for it.
SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "qk_head_dim": 16,
    "v_head_dim": 8,
    "max_position_embeddings": 256,
    "sliding_window": 8,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "num_nextn_predict_layers": 0,
    "initializer_range": 0.15,
    "tie_word_embeddings": False,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
SMALL |= dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 8)
SMALL |= dict.fromkeys(("num_experts_per_tok", "experts_per_token", "top_k_experts", "moe_k", "moe_topk"), 2)
SMALL |= dict.fromkeys(("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"), 1)
# What one family needs besides.
MORE: dict[str, dict[str, Any]] = {
    "gemma4_text": {
        "enable_moe_block": True,
        "global_head_dim": 8,
        "vocab_size_per_layer_input": 64,
        "hidden_size_per_layer_input": 8,
    },
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv"], "num_dense_layers": 1},
}


@dataclass(frozen=True, slots=True)
class Served:
    """What was found out about a family."""

    family: str  # model_type
    reason: str = ""  # why it is not served; empty if it is
    layers: str = ""  # "2 of 3": layers with experts in the small model
    attention: str = ""  # "full", "sliding" or "full, sliding"
    difference: float = 0.0  # largest |offloaded - resident| of a logit, relative to the largest
    tree_difference: float = 0.0  # of the tree self-test


def families() -> list[str]:
    """model_types of the causal language models with experts, in the installed transformers; imports none of them."""
    found = []
    for family in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        source = source_of(family)
        if HOOK not in source and not re.search(r"class \w*(Experts?|MoE|Moe)\b", source):
            continue
        if "text_config" not in CONFIG_MAPPING[family].sub_configs:  # else its language model has a name of its own
            found.append(family)
    return found


def source_of(family: str) -> str:
    """The text of the file that holds a family's language model."""
    name = model_type_to_module_name(family)
    path = Path(transformers.__file__).parent / "models" / name / f"modeling_{name}.py"
    if not path.exists():  # another family's model under a name of its own
        kind = MODEL_FOR_CAUSAL_LM_MAPPING[CONFIG_MAPPING[family]]
        path = Path(str(sys.modules[kind.__module__].__file__))
    return path.read_text(encoding="utf-8")


def small_config(family: str) -> PreTrainedConfig:
    """A config of the family with 3 narrow layers of 8 experts, its own defaults elsewhere."""
    kind = CONFIG_MAPPING[family]
    usual = kind()
    changes = {key: value for key, value in SMALL.items() if key in usual.to_dict() or key in usual.attribute_map}
    if "kv_lora_rank" in changes:
        changes["num_key_value_heads"] = changes["num_attention_heads"]
    if getattr(usual, "sliding_window", None) is None:
        changes.pop("sliding_window", None)
    for key in ("layer_types", "mlp_layer_types"):
        kinds = list(dict.fromkeys(usual.to_dict().get(key) or ()))[:LAYERS]
        if kinds:
            changes[key] = [kinds[layer % len(kinds)] for layer in range(LAYERS)]
    return kind(**{**changes, **MORE.get(family, {})})


def small_model(family: str, folder: Path) -> PreTrainedModel:
    """A random model of the family, saved to `folder`."""
    config = small_config(family)
    with torch.device("meta"):
        size = AutoModelForCausalLM.from_config(config).num_parameters()
    if size > 20_000_000:
        raise ValueError(f"the small {family} has {size:,} parameters; a width is missing from SMALL")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    for tensor in model.state_dict().values():  # biases and norms start as zeros and ones, which would hide mistakes
        if tensor.is_floating_point() and bool((tensor == tensor.flatten()[0]).all()):
            tensor += 0.1 * torch.randn_like(tensor)
    model.save_pretrained(folder)
    return model


def refused_by_kind(family: str) -> str:
    """Why no model of the family can be served, going by its code and default config; empty if nothing speaks so."""
    if HOOK not in source_of(family):
        return "no hook: its experts do not go through the library's registry of experts functions"
    try:
        refuse_stateful(MODEL_FOR_CAUSAL_LM_MAPPING[CONFIG_MAPPING[family]], CONFIG_MAPPING[family]())
    except CheckpointError as error:
        return str(error).removeprefix(f"{family} has ")
    return ""


def try_family(family: str, folder: Path, *, slots: Sequence[int] = SLOTS) -> Served:
    """Save a small model of the family and compare, unless its code already says that it cannot be served."""
    if reason := refused_by_kind(family):
        return Served(family, reason)
    small_model(family, folder)
    return compare(folder, slots=slots)


def compare(folder: Path, *, slots: Sequence[int] = SLOTS) -> Served:
    """Load a folder's small model as any checkpoint, and compare it with the library's resident one."""
    family = str(read_config(folder)["model_type"])
    expected, routes = resident_answer(folder)
    try:
        with open_checkpoint(folder) as checkpoint:
            model = build_skeleton(checkpoint, dtype=torch.float32, attention=None)
            modules = named_moe_modules(model)
            names = name_table(checkpoint, model)
            fill_skeleton(model, checkpoint, names, dtype=torch.float32, device=CPU)
            host = load_host_experts(checkpoint, model, modules, names, dtype=torch.float32, pin=False).rows
        worst = 0.0
        for count in slots:
            offload = Offload(
                model,
                host,
                slots=count,
                link=InstantLink(),
                cleared=False,
                overlap=False,
                kernel=HOST_GROUPED,
                device=CPU,
            )
            target = OffloadedTarget(model, offload, aux_layer_ids=(), device=CPU)
            found = target.prompt_logits(PROMPT)
            worst = max(worst, float((found - expected).abs().max() / expected.abs().max()))
            if not np.array_equal(offload.indices(len(PROMPT)), routes):
                return Served(family, f"with {count} slots the recorded routes are not the library's")
        tree = tree_self_test(target)
    except ValueError as error:
        return Served(family, str(error).removeprefix(f"{family} has "))
    if not worst < TOLERANCE:
        return Served(family, f"offloaded logits differ by {worst:.1e} of the largest from the resident model's")
    kinds = layer_kinds(model.config)
    attention = "full" if kinds.window is None else ", ".join(kinds.names).replace("_attention", "") or "sliding"
    return Served(family, "", f"{len(modules)} of {LAYERS}", attention, worst, tree)


@torch.inference_mode()
def resident_answer(folder: Path) -> tuple[Tensor, NDArray[np.int64]]:
    """Logits after PROMPT, and its routes (rows, layers, top_k), as the library's own loading and model give them."""
    model = AutoModelForCausalLM.from_pretrained(folder, experts_implementation="grouped_mm", dtype="float32").eval()
    chosen: list[NDArray[np.int64]] = []

    def note(module: torch.nn.Module, args: tuple, kwargs: dict) -> None:
        chosen.append((args[1] if len(args) > 1 else kwargs["top_k_index"]).numpy())

    for _, module in named_moe_modules(model):
        module.register_forward_pre_hook(note, with_kwargs=True)
    logits = model(input_ids=torch.tensor([PROMPT]), use_cache=False).logits[0, -1]
    return logits, np.stack(chosen, axis=1)


def table(found: Sequence[Served]) -> str:
    """The page of the documentation."""
    served = [result for result in found if not result.reason]
    refused = [result for result in found if result.reason]
    lines = [
        "# Families of models",
        "",
        "Written by `python -m specfit.engine.families docs/families.md`,",
        f"with transformers {transformers.__version__}: a small random model of each family ({LAYERS} layers of",
        "8 experts, float32), saved to a folder and loaded from it",
        f"with {', '.join(map(str, SLOTS))} slots a layer. *Logits* is the largest difference to the library's",
        "resident model, *tree* that of a tree forward to plain ones, both as a share of the largest logit. Routes",
        "equal the library's own. Shared experts and dense layers stay on the device. Models that see or hear are",
        "not tried: their language models are, under their own names. Quantized checkpoints are refused whatever",
        "their family.",
        "",
        f"## Served: {len(served)}",
        "",
        "| family | layers with experts | attention | logits | tree |",
        "|---|---|---|---|---|",
        *(
            f"| {one.family} | {one.layers} | {one.attention} | {one.difference:.0e} | {one.tree_difference:.0e} |"
            for one in served
        ),
        "",
        f"## Refused: {len(refused)}",
        "",
        "| family | why |",
        "|---|---|",
        *(f"| {one.family} | {one.reason} |" for one in refused),
    ]
    return "\n".join(lines) + "\n"


def try_all() -> Iterator[Served]:
    for family in families():
        with tempfile.TemporaryDirectory() as folder:
            yield try_family(family, Path(folder))


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python -m specfit.engine.families FILE")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    found = []
    for result in try_all():
        print(f"{result.family}: {result.reason or 'served'}", flush=True)
        found.append(result)
    Path(sys.argv[1]).write_text(table(found), encoding="utf-8")


if __name__ == "__main__":
    main()
