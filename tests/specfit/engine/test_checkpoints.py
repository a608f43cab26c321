"""Drafter checkpoints: every layout gives the same head, and the report says how it was read."""

import json
import os
import stat

import pytest
import torch

from specfit.engine.checkpoints import CheckpointError, TargetFacts, read_target_facts
from tests.checkpoint_toys import (
    LAYOUTS,
    TARGET,
    read,
    refused,
    spread_offsets,
    tensors_of,
    toy_head,
    two_steps,
    write_drafter,
)

torch.set_num_threads(1)


# --- the same weights in every layout ---


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_identical_logits(tmp_path, layout):
    head = toy_head()
    loaded, vocabulary, report = read(write_drafter(tmp_path, head, layout=layout))
    assert report.layout == layout.removesuffix(" 0.1")
    assert torch.equal(two_steps(loaded), two_steps(head.pack()))
    assert loaded.config == head.config
    assert torch.equal(vocabulary.to_target(torch.arange(24)), spread_offsets() + torch.arange(24))
    assert report.warnings == () and not report.needs_target_embedding
    assert not loaded.training and not any(weight.requires_grad for weight in loaded.parameters())


@pytest.mark.parametrize("layout", ["speculators", "SpecForge / SGLang"])
@pytest.mark.parametrize(
    "changes",
    [
        {"qk_norm": True},
        {"norm_before_residual": True, "norm_before_fc": True},
        {"fc_norm": True, "aux_layer_ids": (1, 2, 4, 7)},
        {"num_layers": 2, "attention_bias": True, "mlp_bias": True},
        {"head_dim": 8, "num_kv_heads": 1},
        {"draft_vocab_size": 64},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 5e5, "factor": 2.0}},
    ],
    ids=str,
)
def test_every_kind_of_head_survives_the_trip(tmp_path, layout, changes):
    head = toy_head(**changes)
    loaded, _, _ = read(write_drafter(tmp_path, head, layout=layout))
    assert loaded.config == head.config
    assert torch.equal(two_steps(loaded), two_steps(head.pack()))


@pytest.mark.parametrize("form", ["safetensors", "sharded", "bin", "sharded bin"])
@pytest.mark.parametrize("layout", ["speculators", "SafeAILab"])
def test_every_file_form_gives_identical_logits(tmp_path, form, layout):
    head = toy_head()
    loaded, _, _ = read(write_drafter(tmp_path, head, layout=layout, form=form))
    assert torch.equal(two_steps(loaded), two_steps(head.pack()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_are_cast_to_the_asked_dtype(tmp_path, dtype):
    head = toy_head()
    halves = {
        name: value.to(torch.float16) for name, value in tensors_of(head, "speculators").items() if "2" not in name
    }
    loaded, vocabulary, _ = read(write_drafter(tmp_path, head, tensors=halves), dtype=dtype)
    assert {weight.dtype for weight in loaded.parameters()} == {dtype}
    assert vocabulary.target_ids.dtype == torch.int64
    assert torch.isfinite(two_steps(loaded)).all()


@pytest.mark.parametrize("map_dtype", [torch.int32, torch.int64])
def test_integer_widths_and_byte_masks_of_the_maps(tmp_path, map_dtype):
    maps = {"d2t": spread_offsets().to(map_dtype), "t2d": tensors_of(toy_head(), "speculators")["t2d"].to(torch.uint8)}
    _, vocabulary, _ = read(write_drafter(tmp_path, tensors=maps))
    assert vocabulary.target_ids.tolist() == (spread_offsets() + torch.arange(24)).tolist()


def test_what_inference_does_not_need_is_listed_and_left(tmp_path):
    extra = {"verifier_lm_head.weight": torch.zeros(64, 16), "layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(2)}
    head, _, report = read(write_drafter(tmp_path, tensors=extra))
    assert set(report.unneeded) == set(extra)
    assert "not used: " in str(report) and "verifier_lm_head.weight" in str(report)
    assert len(head.state_dict()) == 14


# --- the report ---


def test_the_report_states_each_rule_on_a_line_of_its_own(tmp_path):
    _, _, report = read(write_drafter(tmp_path, layout="SpecForge / SGLang"))
    lines = str(report).splitlines()
    assert lines[1] == "layout: SpecForge / SGLang"
    assert any(line.startswith("target layers (2, 4, 5): eagle_config says [1, 3, 4]") for line in lines)
    assert any(line.startswith("theta 10000, default: rope_theta of config.json") for line in lines)
    assert "vocabulary: 24 of 64 target tokens, by d2t" in lines


def test_overrides_win_and_are_reported(tmp_path):
    folder = write_drafter(
        tmp_path, config={"norm_before_residual": True, "eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
    )
    head, _, report = read(
        folder, aux_layer_ids=(1, 3, 7), rope_theta=5e6, norm_before_residual=False, norm_output=True
    )
    config = head.config
    assert config.aux_layer_ids == (1, 3, 7) and config.rope_parameters["rope_theta"] == 5e6
    assert config.norm_output and not config.norm_before_residual
    assert str(report).count("given by the caller") == 4


def test_another_verifier_is_a_warning_only(tmp_path):
    folder = write_drafter(tmp_path)
    assert read(folder, target=TargetFacts(16, 8, 64, name="/models/toy-moe/"))[2].warnings == ()
    assert read(folder, target=TargetFacts(16, 8, 64))[2].warnings == ()
    (warning,) = read(folder, target=TargetFacts(16, 8, 64, name="org/Other"))[2].warnings
    assert warning == "this head was trained for org/Toy-MoE, the target is org/Other"


# --- folders ---


def test_a_read_only_folder_is_enough(tmp_path):
    folder = write_drafter(tmp_path / "drafter")
    before = sorted(os.listdir(folder))
    for path in (*folder.iterdir(), folder):
        path.chmod(path.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
    read(folder)
    assert sorted(os.listdir(folder)) == before
    folder.chmod(0o755)


def test_an_executable_bin_is_not_run(tmp_path):
    class Trap:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "sprung"),))

    folder = write_drafter(tmp_path / "d", form="bin")
    torch.save({"fc.weight": Trap()}, folder / "pytorch_model.bin")
    refused(folder, "pytorch_model.bin cannot be read as plain weights")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    "name", ["org/never-published-drafter", "org/never published", "./nowhere", "/nowhere/at/all", "nowhere"]
)
def test_what_is_neither_folder_nor_hub_id_is_one_sentence(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    refused(name, "is not a folder here", local_files_only=True)


def test_offline_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    refused("org/never-published-drafter", "could not be fetched.*go online once, or give a folder")


def test_target_facts_come_from_plain_or_multimodal_configs():
    plain = {"hidden_size": 16, "num_hidden_layers": 8, "vocab_size": 64, "_name_or_path": "org/Toy-MoE"}
    assert read_target_facts(plain) == TARGET
    assert read_target_facts({"text_config": plain}, name="org/Toy-MoE") == TARGET
    with pytest.raises(CheckpointError, match="no num_hidden_layers"):
        read_target_facts({"hidden_size": 16, "vocab_size": 64})


def test_config_json_must_be_there_and_be_json(tmp_path):
    folder = write_drafter(tmp_path)
    (folder / "config.json").write_text('{"hidden_size": ')
    refused(folder, "config.json is not valid JSON")
    (folder / "config.json").write_text(json.dumps([1]))
    refused(folder, "holds a JSON list")
    (folder / "config.json").unlink()
    refused(folder, "has no config.json")
