"""Ties (A8), other kinds of heads (A10, A16), more layers (A12) and sliding windows (A14): read, or refused by name."""

import pytest
import torch

from specfit.engine.checkpoints import TargetFacts
from specfit.engine.inspect_drafter import inspect_drafter
from tests.checkpoint_toys import (
    LAYOUTS,
    config_of,
    read,
    refused,
    tensors_of,
    toy_head,
    two_steps,
    write_drafter,
    write_folder,
)

torch.set_num_threads(1)

YARN = {"rope_type": "yarn", "factor": 32.0, "truncate": False, "beta_fast": 32.0, "beta_slow": 1.0}


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


@pytest.mark.parametrize("name", ["DFlashDraftModel", "Qwen3DSparkModel", "PEagleDraftModel", "LlamaForCausalLMNextN"])
def test_other_drafters_in_a_flat_coat_are_refused_by_name(tmp_path, name):
    config = {"architectures": [name], "block_size": 4}
    refused(write_drafter(tmp_path, layout="SafeAILab", config=config), r"this is a \w+ drafter \(architectures\)")


def test_a_head_with_latent_attention_is_refused_by_its_tensor(tmp_path):
    latent = {
        "layers.0.self_attn.kv_a_proj_with_mqa.weight": torch.zeros(4, 32),
        "layers.0.self_attn.q_proj.weight": None,
    }
    folder = write_drafter(tmp_path, layout="ModelOpt / SGLang", tensors=latent, config={"kv_lora_rank": 4})
    refused(folder, "holds layers.0.self_attn.kv_a_proj_with_mqa.weight: its layer has DeepSeek's latent attention")


# --- the same head in other wrappings ---


@pytest.mark.parametrize("prefix", ["draft_model.", "module.", "model.model.", "eagle_module.model."])
@pytest.mark.parametrize("layout", ["speculators", "SafeAILab"])
def test_a_trainers_wrapper_around_the_names(tmp_path, layout, prefix):
    tensors = {f"{prefix}{name}": tensor for name, tensor in tensors_of(toy_head(), layout).items()}
    tensors["lm_head.weight"] = tensors.pop(f"{prefix}lm_head.weight")  # some wrap the body alone
    head, _, report = read(write_folder(tmp_path, config_of(toy_head(), layout), tensors))
    assert torch.equal(two_steps(head), two_steps(toy_head().pack())) and report.layout == layout


@pytest.mark.parametrize("outside", [(), ("architectures", "eagle_config"), ("draft_vocab_size", "rope_theta")])
def test_a_head_inside_a_text_config(tmp_path, outside):
    inner = config_of(toy_head(), "SpecForge / SGLang")
    outer = {key: inner.pop(key) for key in outside}
    more = {"model_type": "qwen3_vl_moe", "vision_config": {"depth": 3}, "image_token_id": 5, "text_config": inner}
    folder = write_folder(tmp_path, {**outer, **more}, tensors_of(toy_head(), "SpecForge / SGLang"))
    assert torch.equal(two_steps(read(folder)[0]), two_steps(toy_head().pack()))
    assert inspect_drafter(folder).layout == read(folder)[2].layout == "SpecForge / SGLang"


@pytest.mark.parametrize("key", ["logit_scale", "attention_multiplier", "new_unknown"])
def test_an_unknown_key_around_a_text_config_is_one_of_the_heads(tmp_path, key):
    config = {"model_type": "qwen3_vl_moe", key: 2.0, "text_config": config_of(toy_head(), "SpecForge / SGLang")}
    refused(write_folder(tmp_path, config, tensors_of(toy_head(), "SpecForge / SGLang")), key)


def test_keys_of_exporters_that_change_nothing(tmp_path):
    eagle = {
        "eagle_aux_hidden_state_layer_ids": [1, 3, 4],
        "parallel_draft_step": 1,
        "parallel_draft_heads_num_layers": 1,
    }
    config = {"eagle_config": eagle, "position_embedding_type": "rope", "num_speculative_tokens": 4}
    head, _, _ = read(write_drafter(tmp_path / "a", layout="ModelOpt / SGLang", config=config))
    assert torch.equal(two_steps(head), two_steps(toy_head().pack()))
    more = {"eagle_config": {**eagle, "parallel_draft_step": 3}}
    refused(write_drafter(tmp_path / "b", layout="ModelOpt / SGLang", config=more), "parallel_draft_step: 3")
    gelu = write_drafter(tmp_path / "c", layer={"hidden_act": "gelu_x"})
    refused(gelu, "hidden_act 'gelu_x' is no activation that transformers has")


def test_an_unsaid_norm_before_residual_is_warned_of_where_libraries_disagree(tmp_path):
    warned = "names no norm_before_residual: false, as the speculators library reads that; vLLM takes true"
    for layout, told in (("speculators", True), ("SafeAILab", False)):
        folder = write_drafter(tmp_path / layout, layout=layout, config={"norm_before_residual": "absent"})
        assert (warned in str(read(folder)[2].warnings)) == told
    assert read(tmp_path / "speculators", norm_before_residual=True)[2].warnings == ()


def test_an_embedding_that_is_not_the_targets_is_warned_of(tmp_path):
    """A trainer that kept the target's frozen, and saved a table that it never trained."""
    own, other = toy_head().embed_tokens.weight.detach(), torch.randn(64, 16)
    folder = write_drafter(tmp_path / "a", config={"norm_before_residual": False})
    assert read(folder, target_embedding=own.bfloat16())[2].warnings == ()
    assert "the file's embedding is not the target's" in read(folder, target_embedding=other)[2].warnings[0]
    trained = write_drafter(tmp_path / "b", config={"embed_requires_grad": True})
    assert read(trained, target_embedding=other)[2].warnings == ()


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
        {"sliding_window": 0, "use_sliding_window": True},
        {"sliding_window": 8, "layer_types": ["full_attention"], "use_sliding_window": True},
        {"sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"]},  # the target's list
        {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 28},
    ],
    ids=range(7),
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
