"""Drafter checkpoints: every layout gives the same head, and everything else is refused by name.

Tests called A1, A2, ... follow public reports of heads that loaded and drafted badly, or did not load.
"""

import json
import os
import stat

import pytest
import torch

from specfit.engine.checkpoints import CheckpointError, TargetFacts, read_drafter, read_target_facts
from tests.checkpoint_toys import (
    LAYOUTS,
    SHIFTED,
    TARGET,
    config_of,
    spread_offsets,
    tensors_of,
    toy_head,
    two_steps,
    write_drafter,
    write_folder,
)

torch.set_num_threads(1)

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 32.0, "truncate": False, "beta_fast": 32.0, "beta_slow": 1.0}


def read(folder, **changes):
    return read_drafter(folder, target=changes.pop("target", TARGET), **changes)


def refused(folder, message, **changes):
    with pytest.raises(CheckpointError, match=message) as caught:
        read(folder, **changes)
    assert "\n" not in str(caught.value)


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


# --- A1: norm_output means two things ---


@pytest.mark.parametrize("layout", ["speculators", "SpecForge / SGLang"])
def test_a1_norm_output_true_shows_from_the_second_step_on(tmp_path, layout):
    plain = read(write_drafter(tmp_path / "absent", layout=layout))[0]
    fed, _, report = read(write_drafter(tmp_path / "true", layout=layout, config={"norm_output": True}))
    assert fed.config.norm_output and not plain.config.norm_output
    assert torch.equal(two_steps(fed)[:3], two_steps(plain)[:3])
    assert not torch.allclose(two_steps(fed)[3], two_steps(plain)[3])
    assert any("norm_output=False" in warning for warning in report.warnings) == (layout != "speculators")


def test_a1_norm_output_false_is_plain_when_nested_and_asked_when_flat(tmp_path):
    assert not read(write_drafter(tmp_path / "n", config={"norm_output": False}))[0].config.norm_output
    for layout in LAYOUTS[2:]:
        folder = write_drafter(tmp_path / layout, layout=layout, config={"norm_output": False})
        refused(folder, "norm_output is false in a flat config.json.*pass norm_output=False")
        assert not read(folder, norm_output=False)[0].config.norm_output


# --- A2, A4, A6: which target layers ---


def test_a2_four_target_layers_in_a_development_version(tmp_path):
    head = toy_head(aux_layer_ids=(2, 46, 91, 93), norm_before_fc=True, norm_output=True, norm_before_residual=True)
    folder = write_drafter(tmp_path, head, config={"speculators_version": "0.8.0.dev0"})
    loaded, _, _ = read(folder, target=TargetFacts(16, 94, 64))
    assert loaded.fc.weight.shape == (16, 64) and loaded.input_norm.weight.shape == (64,)
    assert torch.equal(two_steps(loaded), two_steps(head.pack()))


@pytest.mark.parametrize("ids", [[2, 4], [2, 3, 4, 5]])
def test_a2_a_count_that_fc_does_not_have_is_named(tmp_path, ids):
    folder = write_drafter(tmp_path, config={"eagle_aux_hidden_state_layer_ids": ids})
    refused(folder, f"fc.weight reads 48 numbers, 3 x.*{len(ids)} target layers .* give {16 * len(ids)}")


def test_a2_the_target_of_another_width_is_named(tmp_path):
    folder = write_drafter(tmp_path, config={"target_hidden_size": 20})
    refused(folder, "width 20 .*has 16")
    refused(write_drafter(tmp_path / "null"), "fc.weight reads 48", target=TargetFacts(20, 8, 64))


def test_a_target_wider_than_the_drafter(tmp_path):
    head = toy_head(target_hidden_size=20)
    loaded, _, _ = read(write_drafter(tmp_path, head), target=TargetFacts(20, 8, 64))
    assert loaded.config.hidden_size == 16 and loaded.fc.weight.shape == (16, 60)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([2, 2, 3], "ascend without repeats; got .2, 2, 3."),
        ([3, 2, 1], "ascend without repeats"),
        ([-1, 1, 2], "-1 is negative"),
        ([1, 2, 8], "8 is the state after the last layer"),
        ([1, 2, 9], "9 is no layer; the target has layers 0 to 7"),
        (["1", "2", "3"], "'1' is not a whole number"),
        ([1.5, 2, 3], "1.5 is not a whole number"),
        ([True, 2, 3], "True is not a whole number"),
        ([], "must be a list of numbers"),
        ("2,4,5", "must be a list of numbers"),
    ],
)
@pytest.mark.parametrize("way", ["config", "override"])
def test_a4_impossible_target_layers_are_refused(tmp_path, ids, message, way):
    if way == "config":
        refused(write_drafter(tmp_path, config={"eagle_aux_hidden_state_layer_ids": ids}), message)
    elif not isinstance(ids, str):
        refused(write_drafter(tmp_path), message, aux_layer_ids=ids)


def test_a4_the_same_rules_hold_after_adding_one(tmp_path):
    for ids, message in (([1, 3, 7], "8 is the state after"), ([-1, 1, 2], "negative"), (["1", "2", "3"], "whole")):
        eagle = {"eagle_aux_hidden_state_layer_ids": ids}
        refused(write_drafter(tmp_path, layout=SHIFTED[0], config={"eagle_config": eagle}), message)


def test_a4_the_first_layer_may_be_tapped(tmp_path):
    folder = write_drafter(tmp_path, config={"eagle_aux_hidden_state_layer_ids": [0, 2, 3]})
    assert read(folder)[0].config.aux_layer_ids == (0, 2, 3)


def test_a4_two_spellings_that_disagree_are_refused(tmp_path):
    both = {"eagle_aux_hidden_state_layer_ids": [2, 4, 5]}
    agree = write_drafter(tmp_path / "agree", layout=SHIFTED[0], config=both)
    assert read(agree)[0].config.aux_layer_ids == (2, 4, 5)
    both = {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}
    refused(write_drafter(tmp_path / "not", layout=SHIFTED[0], config=both), "twice and differently")


@pytest.mark.parametrize("place", ["top", "eagle_config"])
def test_a4_heads_on_the_last_state_alone_are_refused(tmp_path, place):
    config = {"use_aux_hidden_state": False}
    config = config if place == "top" else {"eagle_config": config}
    refused(write_drafter(tmp_path, layout="ModelOpt / SGLang", config=config), "use_aux_hidden_state is false")


@pytest.mark.parametrize("value", [None, "absent"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a6_no_ids_means_the_usual_three(tmp_path, layout, value):
    shifted = layout in SHIFTED
    config = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": None}} if shifted else {}
    config["eagle_aux_hidden_state_layer_ids"] = value
    loaded, _, report = read(write_drafter(tmp_path, layout=layout, config=config))
    assert loaded.config.aux_layer_ids == (2, 4, 5)
    assert "2, L/2 and L-3 of L = 8" in str(report)


@pytest.mark.parametrize(
    ("layers", "ids"), [(48, (2, 24, 45)), (36, (2, 18, 33)), (94, (2, 47, 91)), (7, (2, 3, 4)), (6, None), (4, None)]
)
def test_a6_the_usual_three_need_a_deep_enough_target(tmp_path, layers, ids):
    folder = write_drafter(tmp_path, config={"eagle_aux_hidden_state_layer_ids": None})
    target = TargetFacts(16, layers, 64)
    if ids:
        assert read(folder, target=target)[0].config.aux_layer_ids == ids
    else:
        refused(folder, f"three layers of a target with {layers}; pass aux_layer_ids=", target=target)
        assert read(folder, target=target, aux_layer_ids=(0, 1, 2))


# --- A6, A18: RoPE ---


def theta_of(folder, **changes):
    head, _, report = read(folder, **changes)
    return head.config.rope_parameters["rope_theta"], str(report)


@pytest.mark.parametrize("layout", ["speculators", "SpecForge / SGLang", "ModelOpt / SGLang", "nebius"])
@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 500000.0, "rope_scaling": None, "rope_parameters": None},
        {"rope_theta": 500000, "rope_scaling": "absent", "rope_parameters": "absent"},
        {
            "rope_theta": "absent",
            "rope_scaling": None,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        },
        {"rope_theta": None, "rope_parameters": {"rope_theta": 500000.0}},
        {"rope_theta": 500000.0, "rope_parameters": {"type": "default", "rope_theta": 500000}},
        {"rope_theta": "absent", "rope_scaling": {"rope_type": "default", "rope_theta": 500000}},
        {"rope_theta": "absent", "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 5e5}}},
    ],
    ids=range(7),
)
def test_a6_theta_is_read_from_every_spelling(tmp_path, layout, rope):
    folder = write_drafter(tmp_path, layout=layout, layer={"rope_parameters": "absent"} | rope)
    head = read(folder)[0]
    expected = toy_head(rope_parameters={"rope_type": "default", "rope_theta": 500000.0})
    assert torch.equal(head.rope.frequencies, expected.rope.frequencies)
    assert torch.equal(two_steps(head), two_steps(expected.pack()))


@pytest.mark.parametrize("layout", ["SafeAILab", "AngelSlim"])
def test_trainers_that_ignored_theta_are_read_as_they_trained(tmp_path, layout):
    folder = write_drafter(tmp_path, layout=layout, config={"rope_theta": 1000000.0})
    theta, report = theta_of(folder)
    assert theta == 10000.0 and "warning: config.json says rope_theta 1e+06, 10000 is used" in report
    assert theta_of(folder, rope_theta=1e6)[0] == 1e6


def test_a_missing_theta_is_said(tmp_path):
    theta, report = theta_of(write_drafter(tmp_path, layer={"rope_parameters": "absent"}))
    assert theta == 10000.0 and "theta 10000, default: config.json names none" in report


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        ({"rope_theta": 1e6}, r"contradicts itself about theta \(rope_theta: 1000000.0, .*rope_theta: 10000.0\)"),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "'longrope' is not supported"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic' is not supported"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "'yarn' needs factor"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "'llama3' needs low_freq_factor"),
        ({"rope_parameters": {"rope_type": "yarn", "type": "linear", "factor": 2.0}}, "both 'yarn'.*'linear'"),
        ({"rope_parameters": {"rope_type": "default", "mrope_section": [1, 1]}}, "no parameter mrope_section"),
        ({"rope_parameters": {"rope_theta": "10000"}}, "expected a number above 1"),
        ({"rope_parameters": {"rope_theta": 0}}, "expected a number above 1"),
        ({"rope_parameters": "yarn"}, "expected an object or null"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling says rope_type: linear"),
    ],
    ids=range(12),
)
def test_impossible_rope_is_refused(tmp_path, rope, message):
    refused(write_drafter(tmp_path, layer=rope), message)


@pytest.mark.parametrize(
    "scaling", [LLAMA3, YARN, {"rope_type": "linear", "factor": 4.0}], ids=lambda s: s["rope_type"]
)
@pytest.mark.parametrize("original", [64, None])
@pytest.mark.parametrize("style", ["flat", "nested", "type"])
def test_a18_scaled_frequencies_equal_transformers(tmp_path, scaling, original, style):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    scaling = scaling | (
        {"original_max_position_embeddings": original} if original and "linear" not in scaling.values() else {}
    )
    written = {("type" if key == "rope_type" and style == "type" else key): value for key, value in scaling.items()}
    if style == "nested":
        layer = {"rope_parameters": written | {"rope_theta": 500000.0}, "rope_theta": "absent"}
    else:
        layer = {"rope_scaling": written, "rope_theta": 500000.0}
    ids = {"bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "pad_token_id": None}
    folder = write_drafter(tmp_path, layout="SpecForge / SGLang", config=ids, layer=layer)
    head, _, report = read(folder)
    library = LlamaRotaryEmbedding(
        LlamaConfig(
            head_dim=4,
            hidden_size=16,
            num_attention_heads=4,
            max_position_embeddings=128,
            rope_parameters=scaling | {"rope_theta": 500000.0},
        )
    )
    assert torch.equal(head.rope.frequencies, library.inv_freq)
    assert head.rope.scale == library.attention_scaling
    missing = original is None and scaling["rope_type"] != "linear"
    assert any("no original_max_position_embeddings: 128 is used" in w for w in report.warnings) == missing


def test_a18_the_name_of_the_folder_and_of_the_only_file_do_not_matter(tmp_path):
    folder = write_drafter(tmp_path / "llama3-ealge3")
    (folder / "model.safetensors").rename(folder / "eagle_weights.safetensors")
    assert torch.equal(two_steps(read(folder)[0]), two_steps(toy_head().pack()))


# --- A8: ties, and what the target lends ---


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a8_a_tie_flag_beside_an_own_head_is_ignored_with_a_note(tmp_path, layout):
    head, _, report = read(write_drafter(tmp_path, layout=layout, layer={"tie_word_embeddings": True}))
    assert torch.equal(two_steps(head), two_steps(toy_head().pack()))
    assert report.warnings == ("tie_word_embeddings is true, and the file has an lm_head of its own, which is used",)


@pytest.mark.parametrize("tied", [True, False])
def test_a8_a_small_vocabulary_needs_its_own_head(tmp_path, tied):
    folder = write_drafter(tmp_path, layer={"tie_word_embeddings": tied}, tensors={"lm_head.weight": None})
    refused(folder, "no lm_head.weight; for 24 draft tokens it cannot be tied to an embedding of 64 rows")


def test_a8_a_whole_vocabulary_may_be_tied_or_lent(tmp_path):
    head = toy_head(draft_vocab_size=64)
    tied = write_drafter(tmp_path / "t", head, layer={"tie_word_embeddings": True}, tensors={"lm_head.weight": None})
    loaded, _, _ = read(tied)
    assert torch.equal(loaded.lm_head.weight, loaded.embed_tokens.weight)
    untied = write_drafter(tmp_path / "u", head, tensors={"lm_head.weight": None})
    refused(untied, "pass the target's as target_lm_head=")
    lent = torch.randn(64, 16)
    assert torch.equal(read(untied, target_lm_head=lent)[0].lm_head.weight, lent)
    refused(untied, r"target_lm_head has shape \(24, 16\)", target_lm_head=lent[:24])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_head_without_an_embedding_takes_the_targets(tmp_path, layout):
    name = next(name for name in tensors_of(toy_head(), layout) if "embed" in name)
    folder = write_drafter(tmp_path, layout=layout, tensors={name: None})
    head, _, report = read(folder)
    assert report.needs_target_embedding and "still to be shared" in str(report)
    with pytest.raises(ValueError, match="share_embedding"):
        two_steps(head)
    table = toy_head().embed_tokens.weight.detach().clone()
    head.share_embedding(table)
    lent, _, report = read(folder, target_embedding=table)
    assert not report.needs_target_embedding
    assert lent.embed_tokens.weight.data_ptr() == table.data_ptr()
    for each in (head, lent):
        assert torch.equal(two_steps(each), two_steps(toy_head().pack()))


def test_an_embedding_of_another_width_cannot_be_lent(tmp_path):
    folder = write_drafter(tmp_path, toy_head(target_hidden_size=20), tensors={"embed_tokens.weight": None})
    refused(folder, "the target's is 20 wide where the drafter is 16", target=TargetFacts(20, 8, 64))
    refused(
        write_drafter(tmp_path / "b", tensors={"embed_tokens.weight": None}),
        "has shape",
        target_embedding=torch.ones(64, 8),
    )


# --- A10, A16: things that are not EAGLE-3 heads ---


def test_a10_an_eagle_1_head_is_named(tmp_path):
    config = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "bias": True,
        "vocab_size": 64,
        "num_attention_heads": 4,
        "intermediate_size": 24,
    }
    tensors = {
        "fc.weight": torch.zeros(16, 32),
        "fc.bias": torch.zeros(16),
        "embed_tokens.weight": torch.zeros(64, 16),
        **{f"layers.0.self_attn.{part}_proj.weight": torch.zeros(16, 16) for part in "qkvo"},
        "layers.0.post_attention_layernorm.weight": torch.zeros(16),
    }
    refused(write_folder(tmp_path, config, tensors), r"EAGLE-1/2 head.*not 2 x 16.*fc.weight is \(16, 32\)")


def test_a16_a_head_in_a_plain_llama_coat(tmp_path):
    head = toy_head(head_dim=8, num_heads=3, num_kv_heads=3)  # 16 / 3 is no head size
    config = {"truncated_vocab_size": 24, "draft_vocab_size": 24, "rope_theta": 150000, "rope_scaling": YARN}
    loaded, _, report = read(write_drafter(tmp_path, head, layout="nebius", config=config))
    assert loaded.config.head_dim == 8 and report.layout == "nebius"
    rope = loaded.config.rope_parameters
    assert rope["rope_theta"] == 150000.0 and rope["truncate"] is False and rope["factor"] == 32.0


def test_a16_two_vocabulary_sizes_must_agree(tmp_path):
    folder = write_drafter(tmp_path, layout="nebius", config={"draft_vocab_size": 32})
    refused(folder, "two draft vocabularies, .*'draft_vocab_size': 32, 'truncated_vocab_size': 24")


def test_a16_a_one_layer_language_model_is_no_head(tmp_path):
    tensors = {f"model.{name}": value for name, value in tensors_of(toy_head(), "speculators").items()}
    tensors = {name: value for name, value in tensors.items() if "fc" not in name and "2" not in name}
    folder = write_folder(tmp_path, config_of(toy_head(), "nebius"), tensors)
    refused(folder, "no EAGLE-3 head: it has no fc.weight")


def test_other_speculators_are_refused_by_name(tmp_path):
    refused(write_drafter(tmp_path / "a", config={"speculators_model_type": "dflash"}), "'dflash' speculator")
    refused(write_drafter(tmp_path / "b", config={"speculators_config": {"algorithm": "mlp"}}), "'mlp' speculator")


def test_other_layer_types_are_refused_by_name(tmp_path):
    refused(write_drafter(tmp_path, layer={"model_type": "gemma3"}), "model_type 'gemma3'")


@pytest.mark.parametrize("key", ["quantization_config", "compression_config"])
def test_quantized_heads_are_refused_from_config_alone(tmp_path, key):
    folder = write_drafter(tmp_path, config={key: {"quant_method": "fp8"}})
    refused(folder, f"{key}: fp8")


# --- A12: more than one layer ---


def test_a12_layers_past_the_first_take_h(tmp_path):
    head = toy_head(num_layers=2)
    assert head.layers[1].self_attn.q_proj.weight.shape == (16, 16)
    assert "layers.1.hidden_norm.weight" not in head.state_dict()
    wide = {"layers.1.self_attn.q_proj.weight": torch.zeros(16, 32)}
    refused(write_drafter(tmp_path / "w", head, tensors=wide), r"layers.1.self_attn.q_proj.weight has shape \(16, 32\)")
    norm = {"layers.1.hidden_norm.weight": torch.ones(16)}
    refused(write_drafter(tmp_path / "n", head, tensors=norm), "layers.1.hidden_norm.weight.*no place")
    refused(write_drafter(tmp_path / "m", layer={"num_hidden_layers": 2}), r"lacks layers.1\.")
    refused(write_drafter(tmp_path / "x", head, layer={"num_hidden_layers": 1}), r"holds layers.1\.")


# --- A14: sliding windows ---


@pytest.mark.parametrize(
    "layer",
    [
        {"sliding_window": 512, "use_sliding_window": False},
        {"sliding_window": 131072, "max_position_embeddings": 32768},
        {"sliding_window": None, "use_sliding_window": True},
        {"sliding_window": 8, "layer_types": ["full_attention"], "use_sliding_window": True},
        {"sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"]},  # the target's list
        {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 28},
    ],
    ids=range(6),
)
def test_a14_a_window_that_no_layer_uses_is_full_attention(tmp_path, layer):
    assert torch.equal(two_steps(read(write_drafter(tmp_path, layer=layer))[0]), two_steps(toy_head().pack()))


@pytest.mark.parametrize(
    "layer",
    [
        {"sliding_window": 8, "layer_types": ["sliding_attention"]},
        {"sliding_window": 8, "use_sliding_window": True},
        {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 0},
    ],
    ids=range(3),
)
def test_a14_a_window_in_use_is_refused(tmp_path, layer):
    refused(write_drafter(tmp_path, layer=layer), "8.*full attention only")


# --- A20, A22: the draft vocabulary ---


def test_a20_leftover_maps_of_a_whole_vocabulary_are_the_identity(tmp_path):
    maps = {"d2t": torch.zeros(64, dtype=torch.int64), "t2d": torch.ones(64, dtype=torch.bool)}
    _, vocabulary, report = read(write_drafter(tmp_path, toy_head(draft_vocab_size=64), tensors=maps))
    assert vocabulary.target_ids is None and report.warnings == ()
    assert torch.equal(vocabulary.to_target(torch.tensor([5, 63])), torch.tensor([5, 63]))


def test_a20_zeros_in_a_smaller_vocabulary_are_reported(tmp_path):
    zeros = torch.zeros(24, dtype=torch.int64)
    first = torch.arange(64) < 24
    for maps in ({"d2t": zeros, "t2d": first}, {"d2t": zeros, "t2d": None}):
        _, vocabulary, report = read(write_drafter(tmp_path, tensors=maps))
        assert vocabulary.target_ids.tolist() == list(range(24))
        assert "the first 24 target tokens; probably unset" in report.warnings[0]
    refused(
        write_drafter(tmp_path, tensors={"d2t": zeros}), "d2t names 24 target tokens, t2d 24, and they are not the same"
    )


@pytest.mark.parametrize("name", ["d2t", "draft_id_to_target_id", "model.d2t", "model.draft_id_to_target_id"])
def test_a22_renamed_maps_are_read(tmp_path, name):
    folder = write_drafter(tmp_path, tensors={"d2t": None, name: spread_offsets()})
    assert read(folder)[1].target_ids.tolist() == (spread_offsets() + torch.arange(24)).tolist()


def test_a22_a_map_of_target_ids_is_read(tmp_path):
    ids = spread_offsets() + torch.arange(24)
    assert torch.equal(read(write_drafter(tmp_path, tensors={"d2t": None, "hot_token_id": ids}))[1].target_ids, ids)


def test_a22_no_map_is_never_the_identity_of_a_smaller_vocabulary(tmp_path):
    refused(write_drafter(tmp_path / "a", tensors={"d2t": None}), "24 tokens, the target 64, and the file has no d2t")
    unknown = {"d2t": None, "draft_to_target": spread_offsets()}
    refused(write_drafter(tmp_path / "b", tensors=unknown), "draft_to_target")


@pytest.mark.parametrize(
    ("maps", "message"),
    [
        ({"d2t": spread_offsets() + torch.arange(24)}, "d2t holds target ids, going by t2d"),
        (
            {"d2t": torch.arange(24) + 3, "t2d": (torch.arange(64) > 2) & (torch.arange(64) < 27)},
            "d2t holds target ids",
        ),
        ({"d2t": torch.arange(24) * 3, "t2d": None}, "outside the target's 64"),
        ({"d2t": -torch.arange(24), "t2d": None}, "draft tokens 0 and 1 both map to target token 0"),
        ({"d2t": torch.full((24,), -1), "t2d": None}, "maps to target token -1"),
        ({"d2t": torch.zeros(16, dtype=torch.int64)}, r"d2t has shape \(16,\), draft_vocab_size asks for \(24,\)"),
        ({"t2d": torch.ones(60, dtype=torch.bool)}, r"t2d has shape \(60,\).*\(64,\)"),
        ({"t2d": torch.ones(64, dtype=torch.bool)}, "names 24 target tokens, t2d 64"),
        ({"d2t": spread_offsets() + 0.5}, "expected whole numbers"),
        ({"draft_id_to_target_id": spread_offsets() + 1}, "name different target tokens"),
    ],
    ids=range(10),
)
def test_broken_maps_are_refused(tmp_path, maps, message):
    refused(write_drafter(tmp_path, tensors=maps), message)


def test_draft_vocab_size_may_be_unsaid(tmp_path):
    whole = write_drafter(tmp_path / "w", toy_head(draft_vocab_size=64), config={"draft_vocab_size": "absent"})
    assert read(whole)[1].target_ids is None
    part = write_drafter(tmp_path / "p", config={"draft_vocab_size": None})
    assert read(part)[1].size == 24
    refused(
        write_drafter(tmp_path / "n", config={"draft_vocab_size": None}, tensors={"d2t": None}),
        r"lm_head.weight has shape \(24, 16\)",
    )


def test_token_ids_past_the_tokenizer_are_mapped_like_any_other(tmp_path):
    last = torch.arange(24) + 40 - torch.arange(24)
    mask = torch.arange(64) >= 40
    assert read(write_drafter(tmp_path, tensors={"d2t": last, "t2d": mask}))[1].to_target(torch.tensor(23)) == 63


def test_another_vocabulary_is_refused(tmp_path):
    refused(write_drafter(tmp_path), "vocab_size is 64, the target's is 80", target=TargetFacts(16, 8, 80))


# --- A24, A26 and the tensors in general ---


@pytest.mark.parametrize("layout", ["speculators", "SafeAILab"])
def test_a24_fused_projections_are_not_split_on_a_guess(tmp_path, layout):
    at = "midlayer" if layout == "SafeAILab" else "layers.0"
    gone = {f"{at}.self_attn.{part}_proj.weight": None for part in "qkv"}
    fused = {f"{at}.self_attn.qkv_proj.weight": torch.zeros(32, 32)}
    refused(
        write_drafter(tmp_path, layout=layout, tensors=gone | fused), f"{at}.self_attn.qkv_proj.weight.*order of rows"
    )


def test_a26_another_name_for_the_length(tmp_path):
    layer = {"max_position_embeddings": "absent", "max_sequence_length": 2048}
    head, _, report = read(write_drafter(tmp_path / "a", layout="SafeAILab", layer=layer))
    assert head.config.max_position_embeddings == 2048 and report.warnings == ()
    none = write_drafter(tmp_path / "n", layer={"max_position_embeddings": "absent"})
    assert "no max_position_embeddings" in read(none)[2].warnings[0]


def test_a26_groups_that_are_no_power_of_two(tmp_path):
    head = toy_head(num_heads=12, num_kv_heads=3, head_dim=4)
    assert torch.equal(two_steps(read(write_drafter(tmp_path, head))[0]), two_steps(head.pack()))


@pytest.mark.parametrize("key", ["hidden_size", "intermediate_size", "num_attention_heads", "vocab_size"])
def test_a_missing_size_is_named(tmp_path, key):
    refused(write_drafter(tmp_path / "m", layer={key: "absent"}), f"no {key}")
    refused(write_drafter(tmp_path / "w", layer={key: "16"}), f"{key}: '16'; expected a positive whole number")


def test_the_head_size_that_q_proj_has_is_used(tmp_path):
    head, _, report = read(write_drafter(tmp_path, layout="SafeAILab", layer={"head_dim": 128}))
    assert head.config.head_dim == 4 and "q_proj has 16 rows for 4 heads (config.json says 128)" in str(report)


def test_keys_without_a_meaning_here_are_named_and_may_be_waved_through(tmp_path):
    folder = write_drafter(tmp_path, config={"gated_attention": True, "_note": "x", "unset": None})
    refused(
        folder, r"gated_attention, unknown to specfit \(gated_attention: True\).*ignore_keys=\('gated_attention',\)"
    )
    assert read(folder, ignore_keys=["gated_attention"])
    nested = write_drafter(tmp_path / "n", layer={"attn_sinks": 4})
    refused(nested, "attn_sinks: 4")
    eagle = {"eagle_config": {"use_input_layernorm_in_first_layer": False}}
    refused(write_drafter(tmp_path / "e", layout=SHIFTED[1], config=eagle), "use_input_layernorm_in_first_layer: False")


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("fc.weight", torch.zeros(12, 48), r"fc.weight has shape \(12, 48\).*target_hidden_size.*\(16, 48\)"),
        ("lm_head.weight", torch.zeros(32, 16), r"lm_head.weight has shape \(32, 16\).*draft_vocab_size.*\(24, 16\)"),
        ("norm.weight", torch.zeros(1), r"norm.weight has shape \(1,\)"),
        ("norm.weight", None, "lacks norm.weight"),
        (
            "layers.0.mlp.up_proj.weight",
            torch.full((24, 16), float("nan")),
            "up_proj.weight holds 384 values that are NaN",
        ),
        ("lm_head.weight", torch.full((24, 16), float("inf")), "NaN or infinite"),
        ("norm.weight", torch.ones(16, dtype=torch.int8), "stored as torch.int8"),
        ("layers.0.self_attn.q_norm.weight", torch.ones(4), "q_norm.*model_type"),
        ("input_norm.weight", torch.ones(48), "input_norm.weight.*norm_before_fc"),
        ("layers.0.self_attn.q_proj.bias", torch.ones(16), "attention_bias"),
        ("layers.0.mlp.up_proj.weight_scale", torch.ones(1), "quantized"),
        ("midlayer.mlp.up_proj.weight", torch.ones(24, 16), "are both layers.0.mlp.up_proj.weight"),
    ],
    ids=range(12),
)
def test_every_wrong_tensor_is_named(tmp_path, name, tensor, message):
    refused(write_drafter(tmp_path, tensors={name: tensor}), message)


def test_names_in_messages_are_those_of_the_file(tmp_path):
    wrong = {"midlayer.mlp.up_proj.weight": torch.zeros(2, 2)}
    refused(
        write_drafter(tmp_path, layout="SafeAILab", tensors=wrong), r"midlayer.mlp.up_proj.weight has shape \(2, 2\)"
    )


def test_both_norms_before_fc_are_refused(tmp_path):
    refused(write_drafter(tmp_path, config={"norm_before_fc": True, "fc_norm": True}), "exclude each other")


def test_flat_layouts_find_query_norms_by_their_tensors(tmp_path):
    head = toy_head(qk_norm=True)
    for model_type in ("llama", "qwen3", "qwen3_moe", None):
        loaded, _, _ = read(write_drafter(tmp_path, head, layout="AngelSlim", config={"model_type": model_type}))
        assert loaded.config.qk_norm
    refused(write_drafter(tmp_path, layer={"model_type": "qwen3"}), "lacks layers.0.self_attn.q_norm.weight")


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
