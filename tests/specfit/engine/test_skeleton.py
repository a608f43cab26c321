"""Loading a target without its experts: tied or not, in one file or shards, and what a broken one is told."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from specfit.engine.checkpoint_files import CheckpointError, open_checkpoint
from specfit.engine.checkpoint_names import name_table
from specfit.engine.engine import Engine, load_engine
from specfit.engine.skeleton import build_skeleton, fill_skeleton, named_moe_modules
from tests.models import tiny_target
from tests.word_tokenizer import save_tokenizer

torch.set_num_threads(1)
SMALL = {"num_hidden_layers": 2, "num_experts": 4}


def saved(folder: Path, **changes: object):
    model = tiny_target(folder, **{**SMALL, **changes})
    save_tokenizer(folder)
    return model


def load(folder: Path, **settings: object) -> Engine:
    return load_engine(folder, device="cpu", **settings)


def changed(folder: Path, change) -> None:
    """Rewrite the weights."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@torch.inference_mode()
def agree(engine: Engine, model) -> None:
    tokens = torch.tensor([[1, 2, 3, 4, 5]])
    expected = model(input_ids=tokens, use_cache=False).logits[0, -1]
    assert torch.allclose(engine.target.prompt_logits([1, 2, 3, 4, 5]), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": True},
        {"mlp_only_layers": [0], "num_hidden_layers": 3},
        {"decoder_sparse_step": 2},
        {"norm_topk_prob": False},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}},
    ],
    ids=["untied", "tied", "a dense layer", "every second layer", "unnormalised", "rope"],
)
def test_tiny_checkpoints_load_to_the_librarys_logits(tmp_path: Path, changes: dict) -> None:
    model = saved(tmp_path, **changes)
    with load(tmp_path, slots_per_layer=3) as engine:
        agree(engine, model)
        for module in engine.target.model.modules():
            assert not any(
                tensor.is_meta for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False))
            )
        tied = engine.target.model.lm_head.weight is engine.target.model.model.embed_tokens.weight
        assert tied == changes.get("tie_word_embeddings", False)


def test_a_sharded_checkpoint(tmp_path: Path) -> None:
    model = saved(tmp_path / "one")
    model.save_pretrained(tmp_path / "many", max_shard_size="20KB")
    save_tokenizer(tmp_path / "many")
    assert len(list((tmp_path / "many").glob("model-*.safetensors"))) > 2
    with load(tmp_path / "many") as engine:
        agree(engine, model)


def test_a_tied_head_that_is_stored_as_well_is_fine(tmp_path: Path) -> None:
    model = saved(tmp_path, tie_word_embeddings=True)
    changed(tmp_path, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    with load(tmp_path) as engine:
        agree(engine, model)


def drop(name: str):
    return lambda tensors: tensors.pop(name)


def put(name: str, value: Tensor):
    return lambda tensors: tensors.update({name: value})


def spoil(name: str, value: float):
    def change(tensors: dict[str, Tensor]) -> None:
        tensors[name].view(-1)[3] = value

    return change


EXPERT = "model.layers.1.mlp.experts.2"


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (drop("model.norm.weight"), "has no tensor model.norm.weight"),
        (drop("lm_head.weight"), "has no tensor lm_head.weight"),
        (drop("model.layers.1.mlp.gate.weight"), "has no tensor model.layers.1.mlp.gate.weight"),
        (drop(f"{EXPERT}.up_proj.weight"), r"model.layers.1.mlp.experts.2.up_proj.weight is missing"),
        (
            put("model.layers.0.self_attn.q_proj.bias", torch.zeros(32)),
            "holds model.layers.0.self_attn.q_proj.bias, which",
        ),
        (put("surprise", torch.zeros(3)), "holds surprise, which a qwen3_moe does not have"),
        (put("model.norm.weight", torch.zeros(31)), r"model.norm.weight has shape \(31,\); the config says \(32,\)"),
        (put(f"{EXPERT}.up_proj.weight", torch.zeros(15, 32)), r"gate_up_proj of expert 2.*\(31, 32\)"),
        (spoil("model.layers.0.input_layernorm.weight", float("nan")), "input_layernorm.weight holds NaN or infinite"),
        (spoil("model.embed_tokens.weight", float("inf")), "model.embed_tokens.weight holds NaN or infinite"),
        (spoil(f"{EXPERT}.down_proj.weight", float("nan")), "expert 2 of model.layers.1.mlp.experts holds NaN"),
    ],
)
def test_a_broken_checkpoint_names_the_tensor(tmp_path: Path, change, match: str) -> None:
    saved(tmp_path)
    changed(tmp_path, change)
    with pytest.raises(CheckpointError, match=match) as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


def test_more_experts_than_the_config_says(tmp_path: Path) -> None:
    saved(tmp_path)

    def grow(tensors: dict[str, Tensor]) -> None:
        for layer in range(2):
            for part in ("gate_proj", "up_proj", "down_proj"):
                name = f"model.layers.{layer}.mlp.experts.{{}}.{part}.weight"
                tensors[name.format(4)] = tensors[name.format(0)].clone()

    changed(tmp_path, grow)
    with pytest.raises(CheckpointError, match=r"model.layers.0.mlp.experts holds 5 experts, config.json says 4"):
        load(tmp_path)


def test_experts_of_another_width(tmp_path: Path) -> None:
    saved(tmp_path / "wide", moe_intermediate_size=24)
    saved(tmp_path / "narrow")
    (tmp_path / "wide" / "config.json").write_text((tmp_path / "narrow" / "config.json").read_text())
    with pytest.raises(
        CheckpointError, match=r"gate_up_proj of expert 0 in model.layers.0.mlp.experts has shape \(48, 32\)"
    ):
        load(tmp_path / "wide")


def test_a_prediction_module_past_the_last_layer_is_left_out(tmp_path: Path) -> None:
    model = saved(tmp_path)
    changed(tmp_path, put("mtp.layers.0.x.weight", torch.zeros(2)))
    changed(tmp_path, put("model.layers.2.input_layernorm.weight", torch.zeros(32)))
    with load(tmp_path) as engine:
        agree(engine, model)


def test_a_dense_model_is_refused(tmp_path: Path) -> None:
    config = Qwen3Config(
        vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, head_dim=4
    )
    Qwen3ForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="qwen3 has no experts module"):
        load(tmp_path)


def test_a_quantized_one_is_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    text = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(text.replace("{", '{"quantization_config": {"quant_method": "fp8"},', 1))
    with pytest.raises(CheckpointError, match=r"the target is quantized \(quantization_config: fp8\)"):
        load(tmp_path)


def test_experts_never_leave_the_meta_device(tmp_path: Path) -> None:
    saved(tmp_path)
    with open_checkpoint(tmp_path) as checkpoint:
        model = build_skeleton(checkpoint, dtype=torch.float32, attention="sdpa")
        assert all(parameter.is_meta for parameter in model.parameters())
        names = name_table(checkpoint, model)
        fill_skeleton(model, checkpoint, names, dtype=torch.float32, device=torch.device("cpu"))
    for _, module in named_moe_modules(model):
        assert all(parameter.is_meta for parameter in module.parameters())


@pytest.mark.parametrize("slots", [0, 5, -1, 2.0])
def test_slots_outside_the_layer(tmp_path: Path, slots: object) -> None:
    saved(tmp_path)
    with pytest.raises(ValueError, match=f"between 1 and the target's 4 experts, or a share such as 0.5; got {slots}"):
        load(tmp_path, slots_per_layer=slots)
