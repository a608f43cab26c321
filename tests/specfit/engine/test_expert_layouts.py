"""Experts on disk: one by one or fused, a layer each way, with what else a file may hold, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from specfit.engine.checkpoint_files import CheckpointError, open_checkpoint
from specfit.engine.checkpoint_names import count_unneeded, name_table
from specfit.engine.skeleton import build_skeleton
from tests.models import tiny_target
from tests.offloaded import offloaded_target

torch.set_num_threads(1)
Tensors = dict[str, Tensor]
# 2I == H: a fused gate_up alone does not tell its orientation.
SHAPE = {"num_hidden_layers": 2, "num_experts": 12, "moe_intermediate_size": 16, "hidden_size": 32}
LAYER = "model.layers.{}.mlp.experts."


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tensors, Tensor]:
    """A folder in the published layout, its tensors, and the library's logits."""
    folder = tmp_path_factory.mktemp("own")
    model = tiny_target(folder, **SHAPE)
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([[1, 2, 3, 4, 5]]), use_cache=False).logits[0, -1]
    return folder, load_file(folder / "model.safetensors"), logits


def fused(tensors: Tensors, layer: int) -> Tensors:
    """The same with one layer's experts in two tensors."""
    prefix = LAYER.format(layer)
    parts = {
        part: torch.stack([tensors[f"{prefix}{expert}.{part}.weight"] for expert in range(12)])
        for part in ("gate_proj", "up_proj", "down_proj")
    }
    rest = {name: tensor for name, tensor in tensors.items() if not name.startswith(prefix)}
    gate_up = torch.cat((parts["gate_proj"], parts["up_proj"]), dim=1)
    return rest | {f"{prefix}gate_up_proj": gate_up, f"{prefix}down_proj": parts["down_proj"]}


def write(folder: Path, source: Path, tensors: Tensors) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text((source / "config.json").read_text())
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("layers", [(), (0,), (0, 1)], ids=["one by one", "mixed", "fused"])
def test_b8_every_layout_gives_the_librarys_logits(tmp_path: Path, saved, layers: tuple[int, ...]) -> None:
    source, tensors, expected = saved
    for layer in layers:
        tensors = fused(tensors, layer)
    target = offloaded_target(write(tmp_path, source, tensors), slots=5)
    assert torch.allclose(target.prompt_logits([1, 2, 3, 4, 5]), expected, atol=1e-5, rtol=1e-5)


def test_b8_extra_prediction_layers_are_counted_and_left(tmp_path: Path, saved) -> None:
    source, tensors, _ = saved
    extra = {f"mtp.layers.0.mlp.experts.{expert}.up_proj.weight": torch.zeros(16, 32) for expert in range(3)}
    extra |= {
        "model.layers.2.eh_proj.weight": torch.zeros(2),
        "model.layers.2.mlp.experts.0.up_proj.weight": torch.zeros(2),
    }
    extra |= {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    with open_checkpoint(write(tmp_path, source, tensors | extra)) as checkpoint:
        model = build_skeleton(checkpoint, dtype=torch.float32, attention=None)
        names = name_table(checkpoint, model)
    assert count_unneeded(names.unneeded) == {"mtp.*": 3, "model.layers.2.*": 2, "rotary inv_freq": 1}


def without(*names: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name: tensor for name, tensor in tensors.items() if name not in names}


def turned(tensors: Tensors) -> Tensors:
    """Fused and the other way round, as gpt-oss stores its own."""
    tensors = fused(tensors, 0)
    return tensors | {name: tensor.transpose(1, 2) for name, tensor in tensors.items() if tensor.ndim == 3}


EXPERT = LAYER.format(1) + "7."


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            turned,
            r"down_proj of expert 0 in model.layers.0.mlp.experts has shape \(16, 32\); the config says \(32, 16\)",
        ),
        (without(f"{EXPERT}up_proj.weight"), rf"{EXPERT}up_proj.weight is missing"),
        (without(f"{LAYER.format(1)}11.gate_proj.weight"), r"gate_up_proj lacks mlp.experts.11.gate_proj.weight of 12"),
        (
            without(*(f"{LAYER.format(1)}11.{part}_proj.weight" for part in ("gate", "up", "down"))),
            r"model.layers.1.mlp.experts holds 11 experts, config.json says 12",
        ),
        (
            without(*(f"{LAYER.format(1)}{i}.down_proj.weight" for i in range(12))),
            "has nothing for model.layers.1.mlp.experts.down_proj",
        ),
        (lambda t: t | fused(t, 0), r"are both model.layers.0.mlp.experts.(gate_up|down)_proj; keep the one"),
        (lambda t: t | {f"{EXPERT}gate_proj.bias": torch.zeros(16)}, "gate_proj.bias, which a qwen3_moe does not have"),
        (lambda t: t | {f"{EXPERT}wq.weight": torch.zeros(16, 32)}, "wq.weight, which a qwen3_moe does not have"),
        (
            lambda t: t | {f"{EXPERT}gate_proj.weight_scale_inv": torch.ones(1)},
            "weight_scale_inv, which .* part of a quantized checkpoint",
        ),
        (
            lambda t: t | {f"{EXPERT}gate_proj.weight": t[f"{EXPERT}gate_proj.weight"].to(torch.float8_e4m3fn)},
            "gate_proj.weight is stored as F8_E4M3; take the unquantized checkpoint",
        ),
        (lambda t: fused(t, 0) | {LAYER.format(0) + "down_proj": torch.zeros(13, 32, 16)}, "holds 13 experts, config"),
        (lambda t: t | {f"{EXPERT}gate_proj.weight": torch.zeros(15, 32)}, r"gate_up_proj of expert 7 .*\(31, 32\)"),
        (lambda t: t | {f"{EXPERT}gate_proj.weight": torch.zeros(16, 31)}, "do not make up .*gate_up_proj"),
    ],
    ids=range(13),
)
def test_wrong_experts_are_named(tmp_path: Path, saved, change: Callable[[Tensors], Tensors], message: str) -> None:
    source, tensors, _ = saved
    folder = write(tmp_path, source, change(tensors))
    with pytest.raises(CheckpointError, match=message) as caught:
        offloaded_target(folder, slots=1)
    assert "\n" not in str(caught.value)


def test_b28_a_tied_head_that_differs_is_kept_as_the_library_keeps_it(tmp_path: Path) -> None:
    model = tiny_target(tmp_path / "tied", **SHAPE, tie_word_embeddings=True)
    tensors = load_file(tmp_path / "tied" / "model.safetensors")
    assert "lm_head.weight" not in tensors
    tensors["lm_head.weight"] = -tensors["model.embed_tokens.weight"]
    folder = write(tmp_path / "own", tmp_path / "tied", tensors)
    library = type(model).from_pretrained(folder, dtype="float32").eval()
    with torch.inference_mode():
        expected = library(input_ids=torch.tensor([[1, 2, 3]]), use_cache=False).logits[0, -1]
    found = offloaded_target(folder, slots=5).prompt_logits([1, 2, 3])
    assert torch.allclose(found, expected, atol=1e-5, rtol=1e-5)
