"""The target without its experts: built on the meta device, filled tensor by tensor, experts left out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from specfit.engine.checkpoint_files import Checkpoint, CheckpointError, refuse_quantized, some


def build_skeleton(checkpoint: Checkpoint, *, dtype: torch.dtype, attention: str) -> PreTrainedModel:
    """The library's model with every parameter on the meta device. Raises CheckpointError for a quantized one."""
    refuse_quantized(checkpoint.config, what="the target")
    config = AutoConfig.from_pretrained(checkpoint.folder)
    _refuse_windows(config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)
    return model.eval().requires_grad_(False)


def named_moe_modules(model: PreTrainedModel) -> list[tuple[str, Any]]:
    """(dotted name, experts module) in layer order: instances that the library's decorator has marked.

    Raises CheckpointError if there are none: a dense model, or a family without the library's experts hook.
    """
    found = [(name, module) for name, module in model.named_modules() if hasattr(module, "_is_expert_parallel")]
    if not found:
        family = model.config.model_type
        raise CheckpointError(
            f"{family} has no experts module that transformers can dispatch; specfit offloads MoE models"
        )
    return found


def fill_skeleton(model: PreTrainedModel, checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device) -> None:
    """Load all that is not an expert onto `device`, tie what the config ties, and rebuild buffers.

    Raises CheckpointError for a missing or misshapen tensor or NaN weights; each message names the tensor.
    """
    experts = tuple(f"{name}." for name, _ in named_moe_modules(model))
    wanted = {name: p for name, p in model.named_parameters(remove_duplicate=False) if not name.startswith(experts)}
    tied = bool(model.config.tie_word_embeddings)
    head = _head_name(model)
    for name, parameter in wanted.items():
        if tied and name == head:
            continue
        if name not in checkpoint.tensors:
            raise CheckpointError(
                f"the checkpoint has no tensor {name}, so it is of another model; "
                f"it holds {some(sorted(checkpoint.tensors))}"
            )
        values = checkpoint.read_tensor(name)
        if values.shape != parameter.shape:
            raise CheckpointError(f"{name} has shape {tuple(values.shape)}; the config says {tuple(parameter.shape)}")
        if not torch.isfinite(values).all():
            raise CheckpointError(f"{name} holds NaN or infinite weights; fetch its file again")
        _assign(model, name, nn.Parameter(values.to(device, dtype), requires_grad=False))
    for name in checkpoint.tensors:
        if name not in wanted and not name.startswith((*experts, "mtp.")) and not _beyond_last_layer(name, model):
            raise CheckpointError(f"the checkpoint holds {name}, which a {model.config.model_type} does not have")
    if tied:
        _assign(model, head, model.get_input_embeddings().weight)
    _rebuild_buffers(model, device)
    left = [name for name, p in model.named_parameters() if p.is_meta and not name.startswith(experts)]
    assert not left, f"parameters still without memory: {left}"


def _refuse_windows(config: Any) -> None:
    """A tree mask lets every row see the whole prefix, which is wrong for a layer with a shorter view or a state."""
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    if kinds or window:
        found = f"layers of type {', '.join(sorted(kinds))}" if kinds else f"a sliding window of {window} tokens"
        raise CheckpointError(
            f"{config.model_type} has {found}; specfit verifies trees with full attention in every layer only"
        )


def _head_name(model: PreTrainedModel) -> str:
    head = model.get_output_embeddings()
    return next(f"{name}.weight" for name, module in model.named_modules() if module is head)


def _beyond_last_layer(name: str, model: PreTrainedModel) -> bool:
    """Whether a tensor belongs to a layer past the last, where some families keep a multi-token-prediction head."""
    parts = name.split(".layers.")
    number = parts[1].split(".")[0] if len(parts) > 1 else ""
    return number.isdigit() and int(number) >= model.config.num_hidden_layers


def _assign(model: PreTrainedModel, name: str, value: nn.Parameter | Tensor) -> None:
    owner, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(owner), leaf, value)


def _rebuild_buffers(model: PreTrainedModel, device: torch.device) -> None:
    """Buffers that no file holds, such as rotary frequencies: make their module anew on the device."""
    for name, module in list(model.named_modules()):
        if any(buffer.is_meta for buffer in module.buffers(recurse=False)):
            try:
                fresh = type(module)(config=model.config)
            except TypeError as error:
                raise CheckpointError(
                    f"buffers of {name} ({type(module).__name__}) cannot be rebuilt: {error}"
                ) from error
            _assign(model, name, fresh.to(device))
