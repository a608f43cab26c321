"""Experts that stay in their files: the same bits as from memory, little memory, and what cannot stay there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.core_model_loading import Transpose, WeightConverter

from specfit.engine.checkpoint_files import CheckpointError, open_checkpoint
from specfit.engine.checkpoint_names import Stored
from specfit.engine.engine import load_engine
from specfit.engine.families import PROMPT, small_model
from specfit.engine.mapped_row import MappedRow
from tests.models import tiny_pair, tiny_target
from tests.word_tokenizer import save_tokenizer

torch.set_num_threads(1)


def logits(folder: Path, **given: Any) -> torch.Tensor:
    with load_engine(folder, device="cpu", slots_per_layer=3, self_test=False, **given) as engine:
        kind = MappedRow if given["experts"] == "mapped" else torch.Tensor
        assert all(isinstance(row, kind) for layer in engine.offload.layers for row in layer._rows)
        return engine.target.prompt_logits(PROMPT)


@pytest.mark.parametrize(
    ("family", "stored"),
    [
        ("qwen3_moe", torch.float32),
        ("qwen3_moe", torch.bfloat16),
        ("mixtral", torch.float16),
        ("granitemoe", torch.float32),
        ("gpt_oss", torch.bfloat16),
        ("deepseek_v3", torch.bfloat16),
    ],
)
def test_the_same_bits_whatever_the_layout(tmp_path: Path, family: str, stored: torch.dtype) -> None:
    """A tensor for each expert or one for all, with biases, stored as it is used or converted on the way."""
    small_model(family, tmp_path).to(stored).save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    expected, found = (logits(tmp_path, experts=kind) for kind in ("memory", "mapped"))
    assert torch.equal(found, expected)


def test_tensors_that_begin_anywhere(tmp_path: Path) -> None:
    """A writer that does not align its data: every number lies across its own size."""
    tiny_target(tmp_path, num_hidden_layers=2)
    save_tokenizer(tmp_path)
    expected = logits(tmp_path, experts="memory")
    path = tmp_path / "model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    path.write_bytes((length + 1).to_bytes(8, "little") + data[8 : 8 + length] + b" " + data[8 + length :])
    assert torch.equal(logits(tmp_path, experts="mapped"), expected)


def test_a_drafted_text_is_the_same(tmp_path: Path) -> None:
    tiny_pair(tmp_path)
    texts = []
    for kind in ("memory", "mapped"):
        with load_engine(
            tmp_path / "target", drafter=tmp_path / "drafter", link=0.01, slots_per_layer=2, experts=kind
        ) as engine:
            texts.append(engine.generate([1, 2, 3], max_new_tokens=12).tokens)
            assert engine.settings.get("experts", "memory") == kind
            kept = engine.offload.contents()
            engine.reset()
            engine.offload.restore(kept)
    assert texts[0] == texts[1]


def change(folder: Path, **tensors: torch.Tensor | None) -> Path:
    path = folder / "model.safetensors"
    whole = {**load_file(path), **tensors}
    save_file({name: tensor.contiguous() for name, tensor in whole.items() if tensor is not None}, path)
    return folder


EXPERT = "model.layers.1.mlp.experts.3."


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.full((16, 32), float("nan")), "expert 3 of model.layers.1.mlp.experts holds NaN"),
        (torch.zeros(15, 32), r"gate_up_proj of expert 3 in .* has shape \(31, 32\); the config says \(32, 32\)"),
        (None, r"gate_proj.weight is missing; its shard was not fetched whole"),
    ],
)
def test_damage_is_found_while_loading(tmp_path: Path, tensor: torch.Tensor | None, message: str) -> None:
    tiny_target(tmp_path, num_hidden_layers=2)
    save_tokenizer(tmp_path)
    change(tmp_path, **{f"{EXPERT}gate_proj.weight": tensor})
    with pytest.raises(CheckpointError, match=message):
        load_engine(tmp_path, device="cpu", experts="mapped")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"experts": "mmap"}, "experts 'mmap' is unknown; choose memory or mapped"),
        ({"experts": "mapped", "pin": True}, 'pin=True and experts="mapped" exclude each other'),
    ],
)
def test_what_mapping_does_not_serve(given: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_engine("embedded", **{"device": "cpu", **given})


def test_an_order_that_only_a_conversion_makes_is_refused(tmp_path: Path) -> None:
    """The library's own operation for it; no family it reads as a language model has such a file today."""
    model = tiny_target(tmp_path, num_hidden_layers=2)
    name = "model.layers.0.mlp.experts.down_proj"
    turned = WeightConverter(name, name, operations=[Transpose(1, 2)])
    save_file({name: torch.zeros(8, 16, 32)}, tmp_path / "model.safetensors")
    with open_checkpoint(tmp_path) as checkpoint:
        stored = Stored(name, {name: [name]}, turned)
        assert stored.read_expert(checkpoint, model, 1).shape == (32, 16)
        with pytest.raises(CheckpointError, match="down_proj is stored in another order than it is used in"):
            stored.expert_runs(checkpoint, model, 1, {})
