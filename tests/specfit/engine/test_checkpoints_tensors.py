"""Every wrong size, key or tensor is named in one sentence (A24, A26), and junk never ends in a traceback."""

import copy

import pytest
import torch

from specfit.engine.checkpoints import CheckpointError
from specfit.engine.drafter_config import Overrides, plan_head
from specfit.engine.drafter_weights import sort_tensors
from tests.checkpoint_toys import (
    LAYOUTS,
    SHIFTED,
    TARGET,
    config_of,
    read,
    refused,
    tensors_of,
    toy_head,
    two_steps,
    write_drafter,
)

torch.set_num_threads(1)


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


# --- junk ---

JUNK = (None, "x", -1, 0, 1.5, [], {}, True, False, float("nan"), float("inf"), [None], {"a": 1}, 10**30)
MORE_KEYS = (
    "rope_parameters",
    "rope_scaling",
    "sliding_window",
    "layer_types",
    "num_aux_hidden_states",
    "eagle_config",
)
MORE_KEYS += ("speculators_config", "text_config", "quantization_config", "norm_output", "fc_norm", "norm_before_fc")
MORE_KEYS += ("partial_rotary_factor", "use_sliding_window", "max_window_layers", "truncated_vocab_size", "new_key")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_junk_in_any_key_is_read_or_refused_in_one_line(layout):
    stored = tensors_of(toy_head(), layout)
    shapes, whole = sort_tensors(stored).shapes, config_of(toy_head(), layout)
    nested = [(key, inner) for key, value in whole.items() if isinstance(value, dict) for inner in value]
    refusals = []
    for path in [(key,) for key in (*whole, *MORE_KEYS)] + nested:
        for junk in JUNK:
            config = copy.deepcopy(whole)
            table = config if len(path) == 1 else config[path[0]]
            table[path[-1]] = junk
            try:
                plan_head(config, shapes, stored, target=TARGET, overrides=Overrides())
            except CheckpointError as error:
                refusals.append(str(error))
    assert len(refusals) > 200
    assert all("\n" not in message and len(message) > 20 for message in refusals)
