"""The target without its experts: built on the meta device, filled tensor by tensor, experts left out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
)

from specfit.engine.checkpoint_files import Checkpoint, CheckpointError, read_config, refuse_quantized, some
from specfit.engine.checkpoint_names import NameTable, check_finite
from specfit.engine.layer_kinds import refuse_stateful
from specfit.engine.moe_shape import refuse_contradictions

ATTENTION = ("sdpa", "eager")  # what takes the mask of a tree; other implementations silently do not


def build_skeleton(checkpoint: Checkpoint, *, dtype: torch.dtype, attention: str | None) -> PreTrainedModel:
    """The library's model with every parameter on the meta device.

    attention: "sdpa" or "eager"; None for sdpa where the family has it.
    Raises CheckpointError for a quantized model, one that transformers does not know, one without sdpa that was asked
    for it, and one that cannot verify a tree; ValueError for an attention that takes no mask of a tree.
    """
    if attention not in (None, *ATTENTION):
        raise ValueError(f"attention {attention!r} cannot take the mask of a tree; choose sdpa or eager")
    refuse_quantized(checkpoint.config, what="the target")
    refuse_contradictions(checkpoint.config)
    config = library_config(checkpoint.folder)
    family = config.model_type
    try:
        if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
            raise CheckpointError(
                f"transformers has no causal language model of type {family}; specfit runs those only"
            )
        kind = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
        if attention == "sdpa" and not kind._supports_sdpa:
            raise CheckpointError(f"{family} has no sdpa attention in transformers; leave attention out, or say eager")
        attention = attention or ("sdpa" if kind._supports_sdpa else "eager")
        refuse_stateful(kind, config)
        if not hasattr(config, "num_hidden_layers"):
            raise CheckpointError(
                f"{family} keeps its language model in one that also sees or hears (text_config); specfit runs "
                "language models alone, so take a text-only checkpoint"
            )
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)
    except CheckpointError:
        raise
    except Exception as error:  # the library raises whatever a config it cannot use leads it to
        raise CheckpointError(
            f"transformers cannot build a language model from {checkpoint.folder}/config.json: "
            f"{why(error, checkpoint.config)}"
        ) from error
    return model.eval().requires_grad_(False)


def library_config(folder: Path) -> PreTrainedConfig:
    """config.json as the library reads it. CheckpointError for one that it does not know or accept."""
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # the library raises whatever a config it cannot use leads it to
        raise CheckpointError(
            f"transformers cannot build a language model from {folder}/config.json: {why(error, read_config(folder))}"
        ) from error


def why(error: Exception, config: Mapping[str, Any]) -> str:
    """An error of the library in one line, with the keys that are null where the family has a number."""
    reason = " ".join(str(error).split())[:300] or type(error).__name__
    family = config.get("model_type")
    try:
        usual = CONFIG_MAPPING[family]().to_dict()
    except Exception:  # no such family, or one that has no config of its own making
        return reason
    null = [key for key, value in config.items() if value is None and not key.endswith("_token_id")]  # those may be
    nulls = [key for key in null if isinstance(usual.get(key), int | float)]
    return f"{reason}; null where a value belongs: {some(nulls)}" if nulls else reason


def choose_dtype(asked: torch.dtype | str | None, config: dict[str, Any], device: torch.device) -> torch.dtype:
    """The asked dtype, or by default float32 on a CPU and what the checkpoint is stored in elsewhere."""
    if asked is None:
        stored = config.get("dtype") or config.get("torch_dtype") or "bfloat16"
        asked = torch.float32 if device.type == "cpu" else stored
    found = asked if isinstance(asked, torch.dtype) else getattr(torch, asked.removeprefix("torch."), None)
    if found not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f"dtype {asked!r} is none of float32, bfloat16 and float16")
    return found


def named_moe_modules(model: PreTrainedModel) -> list[tuple[str, Any]]:
    """(dotted name, experts module) in layer order: instances that the library's decorator has marked.

    Raises CheckpointError if there are none: a dense model, or a family without the library's experts hook.
    """
    found = [(name, module) for name, module in model.named_modules() if hasattr(module, "_is_expert_parallel")]
    if not found:
        raise CheckpointError(
            f"{model.config.model_type} has no experts module that transformers can dispatch: it is dense, or its "
            "family lacks the library's experts hook; specfit offloads MoE models"
        )
    return found


def fill_skeleton(
    model: PreTrainedModel, checkpoint: Checkpoint, names: NameTable, *, dtype: torch.dtype, device: torch.device
) -> None:
    """Load all that is not an expert onto `device`, tie what the config ties, and rebuild buffers that no file holds.

    Raises CheckpointError for a missing or misshapen tensor or NaN weights; each message names the tensor.
    """
    experts = tuple(f"{name}." for name, _ in named_moe_modules(model))
    wanted = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith(experts)}
    fp32 = _kept_in_float32(model, dtype)
    found: set[str] = set()
    for stored in names.stored.values():
        if stored.parameter not in wanted:
            continue
        for name, values in stored.read(checkpoint, model).items():
            empty = wanted[name]
            if values.shape != empty.shape:
                raise CheckpointError(f"{name} has shape {tuple(values.shape)}; the config says {tuple(empty.shape)}")
            check_finite(name, values)
            placed = values.to(device, torch.float32 if fp32(name) else empty.dtype)
            _assign(model, name, placed)
            found.add(name)
    missing = set(wanted) - found
    model.tie_weights(missing_keys=missing, recompute_mapping=True)
    if missing:
        raise CheckpointError(
            f"the checkpoint has no tensor {min(missing)}, so it is of another model; "
            f"it holds {some(sorted(checkpoint.tensors))}"
        )
    rebuild_buffers(model, device)
    tensors = (*model.named_parameters(), *model.named_buffers())
    left = [name for name, tensor in tensors if tensor.is_meta and not name.startswith(experts)]
    assert not left, f"tensors still without memory: {left}"


def _kept_in_float32(model: PreTrainedModel, dtype: torch.dtype) -> Any:
    """Whether a name is among those that the family keeps in float32 whatever the dtype, such as router biases."""
    patterns = [pattern.replace("*", ".*") for pattern in model._get_dtype_plan(dtype)]
    joined = re.compile("|".join(f"(?:{pattern})" for pattern in patterns)) if patterns else None
    return lambda name: joined is not None and joined.search(name) is not None


def _assign(model: PreTrainedModel, name: str, value: Tensor) -> None:
    owner, _, leaf = name.rpartition(".")
    module = model.get_submodule(owner)
    if leaf in module._buffers:
        module._buffers[leaf] = value
    else:
        setattr(module, leaf, nn.Parameter(value, requires_grad=False))


def rebuild_buffers(model: PreTrainedModel, device: torch.device) -> None:
    """Buffers that no file holds, such as rotary frequencies: the family's own initialisation computes them.

    They start as NaN, so one that it leaves alone cannot go unnoticed.
    """
    for name, module in model.named_modules():
        buffers = {key: buffer for key, buffer in module.named_buffers(recurse=False) if buffer.is_meta}
        if not buffers:
            continue
        for parameter in module.parameters(recurse=False):
            parameter._is_hf_initialized = True  # type: ignore[attr-defined]  # the library's own mark: leave alone
        for key, buffer in buffers.items():
            empty = torch.empty_like(buffer, device=device)
            module._buffers[key] = empty.fill_(float("nan")) if empty.is_floating_point() else empty
        with torch.no_grad():
            model._init_weights(module)
        for key in buffers:
            values = getattr(module, key)
            if not values.is_floating_point() or torch.isnan(values).any():
                raise CheckpointError(
                    f"{model.config.model_type} computes {name}.{key} in a way that specfit cannot repeat"
                )
