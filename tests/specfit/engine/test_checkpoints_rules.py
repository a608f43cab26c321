"""What a config means, layout by layer of meaning: fed-back states (A1), target layers (A2, A4, A6), RoPE (A6, A18).

Tests called A1, A2, ... follow public reports of heads that loaded and drafted badly, or did not load."""

import pytest
import torch

from specfit.engine.checkpoints import TargetFacts
from tests.checkpoint_toys import LAYOUTS, SHIFTED, read, refused, toy_head, two_steps, write_drafter

torch.set_num_threads(1)

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 32.0, "truncate": False, "beta_fast": 32.0, "beta_slow": 1.0}


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
    if way == "config" and ids != []:  # an empty list in a file names none: see A6
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


@pytest.mark.parametrize("value", [None, "absent", []])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a6_no_ids_means_the_usual_three(tmp_path, layout, value):
    shifted = layout in SHIFTED
    inner = {} if value == "absent" else {"eagle_aux_hidden_state_layer_ids": value}
    config = {"eagle_config": {"use_aux_hidden_state": True, **inner}} if shifted else {}
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
        ({"rope_parameters": "yarn"}, "rope_parameters is 'yarn' in config.json; expected an object"),
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
