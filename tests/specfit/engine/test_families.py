"""Families of models through the one hook: each against the library's own, and the page of the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from specfit.engine.checkpoint_files import CheckpointError, open_checkpoint
from specfit.engine.families import compare, families, refused_by_kind, small_model, try_family
from specfit.engine.layer_kinds import LayerKinds, layer_kinds
from specfit.engine.self_test import tree_self_test
from specfit.engine.skeleton import build_skeleton
from tests.offloaded import offloaded_target

torch.set_num_threads(1)
PAGE = Path(__file__).parents[3] / "docs" / "families.md"


@pytest.mark.parametrize(
    "family",
    ["mixtral", "olmoe", "qwen2_moe", "deepseek_v2", "deepseek_v3", "glm4_moe", "gpt_oss", "granitemoe", "phimoe"],
)
def test_offloaded_is_resident_and_trees_agree(tmp_path: Path, family: str) -> None:
    """Logits at several slot counts, recorded routes, and the self-test; `try_family` compares each."""
    result = try_family(family, tmp_path)
    assert not result.reason
    assert result.difference < 1e-5 and result.tree_difference < 1e-4
    page = PAGE.read_text(encoding="utf-8")
    assert f"| {family} | {result.layers} | {result.attention} |" in page


def test_the_page_is_of_this_transformers_and_names_every_family() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert f"with transformers {transformers.__version__}:" in page, (
        "python -m specfit.engine.families docs/families.md"
    )
    served, refused = page.split("## Refused")
    for family in families():
        assert page.count(f"\n| {family} |") == 1, "python -m specfit.engine.families docs/families.md"
    for family in ("deepseek_v32", "qwen3_next", "jamba", "llama4_text", "dbrx"):
        assert f"| {family} | {refused_by_kind(family)} |" in refused
    assert f"## Served: {served.count(chr(10) + '| ') - 1}\n" in page


def test_b16_biases_move_with_their_expert_and_the_clamp_bites(tmp_path: Path) -> None:
    model = small_model("gpt_oss", tmp_path)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "post_attention_layernorm" in name:
                parameter *= 50
            if name.endswith("_bias"):
                torch.nn.init.normal_(parameter)
    model.save_pretrained(tmp_path)
    gates = []
    for module in model.modules():
        if hasattr(module, "_apply_gate"):
            module.register_forward_pre_hook(lambda module, args: gates.append(args[0].abs().max()))
    result = compare(tmp_path, slots=(3, 1))
    assert not result.reason and result.difference < 1e-5
    with torch.inference_mode():
        model(input_ids=torch.tensor([[1, 2, 3]]))
    assert max(gates) > 20  # times weights of about 0.15 over 32 numbers: well past the clamp at 7


def test_a_window_without_its_mask_does_not_pass_the_self_test(tmp_path: Path) -> None:
    small_model("gpt_oss", tmp_path)
    target = offloaded_target(tmp_path, slots=3)
    assert layer_kinds(target.config) == LayerKinds(8, ("sliding_attention", "full_attention"))
    assert tree_self_test(target) < 1e-4
    target._kinds = LayerKinds(None, ())
    with pytest.raises(ValueError, match="tree forwards of gpt_oss with eager attention differ"):
        tree_self_test(target)


def test_a_window_in_every_layer(tmp_path: Path) -> None:
    """Mixtral says it by sliding_window alone, and takes one mask."""
    model = small_model("mixtral", tmp_path)
    model.config.sliding_window = 8
    model.save_pretrained(tmp_path)
    result = compare(tmp_path, slots=(3,))
    assert not result.reason and result.attention == "sliding"


def test_attention_that_takes_no_tree_is_refused(tmp_path: Path) -> None:
    small_model("gpt_oss", tmp_path)
    with open_checkpoint(tmp_path) as checkpoint:
        with pytest.raises(CheckpointError, match="gpt_oss has no sdpa attention"):
            build_skeleton(checkpoint, dtype=torch.float32, attention="sdpa")
        with pytest.raises(ValueError, match="'flash_attention_2' cannot take the mask of a tree"):
            build_skeleton(checkpoint, dtype=torch.float32, attention="flash_attention_2")


@pytest.mark.parametrize("family", ["qwen3_next", "lfm2_moe"])
def test_recurrent_layers_are_refused_while_loading(tmp_path: Path, family: str) -> None:
    small_model(family, tmp_path)
    with (
        open_checkpoint(tmp_path) as checkpoint,
        pytest.raises(CheckpointError, match=f"{family} has recurrent layers"),
    ):
        build_skeleton(checkpoint, dtype=torch.float32, attention=None)


def test_a_family_without_the_hook_is_refused_while_loading(tmp_path: Path) -> None:
    small_model("jetmoe", tmp_path)
    with pytest.raises(CheckpointError, match="jetmoe has no experts module"):
        offloaded_target(tmp_path, slots=1)


def test_rotary_tables_in_the_file_are_rebuilt(tmp_path: Path) -> None:
    """Old Mixtral files store inv_freq; what is stored is not believed."""
    small_model("mixtral", tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    assert "model.layers.0.block_sparse_moe.experts.0.w1.weight" in tensors  # as published
    for layer in range(3):
        tensors[f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    save_file(tensors, path, metadata={"format": "pt"})
    assert not compare(tmp_path, slots=(3,)).reason
