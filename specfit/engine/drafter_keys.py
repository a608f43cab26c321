"""Every key an EAGLE-3 config may hold that does not change the head's formulas, or only in one of its values.

A key in none of these tables, nor read by `drafter_config.py`, is refused by name: a new library version may have
given it a meaning, and a head that ignores it drafts badly without a word.
"""

from collections.abc import Mapping

from specfit.engine.checkpoint_files import CheckpointError


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Read by drafter_config.py and drafter_rope.py.
READ = _words(
    """
    hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim rms_norm_eps
    hidden_act vocab_size draft_vocab_size truncated_vocab_size max_position_embeddings max_sequence_length
    target_hidden_size norm_before_residual norm_before_fc fc_norm norm_output attention_bias mlp_bias
    rope_theta rope_scaling rope_parameters original_max_position_embeddings partial_rotary_factor
    eagle_aux_hidden_state_layer_ids num_aux_hidden_states eagle_config use_aux_hidden_state tie_word_embeddings
    sliding_window use_sliding_window max_window_layers layer_types architectures model_type
    speculators_model_type speculators_version speculators_config transformer_layer_config
    quantization_config compression_config
    """
)

# Training, generation, bookkeeping, or the target's own mixture of experts copied along: nothing for one dense layer.
WITHOUT_EFFECT = _words(
    """
    dtype torch_dtype transformers_version auto_map has_no_defaults_at_init base_model_ep_plan base_model_tp_plan
    base_model_pp_plan embed_requires_grad bias initializer_range attention_dropout hidden_dropout embd_pdrop
    resid_pdrop use_cache pretraining_tp keys_to_ignore_at_inference
    bos_token_id eos_token_id pad_token_id unk_token_id sep_token_id cls_token_id mask_token_id decoder_start_token_id
    add_cross_attention is_decoder is_encoder_decoder cross_attention_hidden_size tie_encoder_decoder
    chunk_size_feed_forward finetuning_task id2label label2id num_labels problem_type task_specific_params prefix
    output_attentions output_hidden_states output_scores output_router_logits return_dict return_dict_in_generate
    pruned_heads gradient_checkpointing tokenizer_class torchscript tf_legacy_loss use_bfloat16 name_or_path
    do_sample temperature top_k top_p typical_p repetition_penalty length_penalty diversity_penalty num_beams
    num_beam_groups num_return_sequences no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids
    begin_suppress_tokens suppress_tokens exponential_decay_length_penalty forced_bos_token_id forced_eos_token_id
    remove_invalid_values max_length min_length early_stopping suppress_tokens max_new_tokens
    num_experts num_local_experts num_experts_per_tok experts_per_token moe_intermediate_size norm_topk_prob
    decoder_sparse_step mlp_only_layers router_aux_loss_coef shared_expert_intermediate_size
    target_model_type target_model_name_or_path base_model_name_or_path _commit_hash
    target_model target_model_path num_speculative_tokens num_lookahead_tokens speculative_algorithm
    ignore_keys_at_rope_validation
    """
)

# Harmless in one value only.
HARMLESS_VALUES = {
    "use_qk_norm": (True, False),  # the tensors say it
    "use_mrope": (False,),
    "position_embedding_type": ("rope",),
    "clip_qkv": (None,),
    "logit_scale": (1, 1.0),
    "attention_multiplier": (None,),
    "residual_multiplier": (1, 1.0),
    "embedding_multiplier": (1, 1.0),
    "final_logit_softcapping": (None,),
    "attn_logit_softcapping": (None,),
}

# Inside `eagle_config` (SGLang, SpecForge, ModelOpt).
EAGLE_CONFIG_READ = {"eagle_aux_hidden_state_layer_ids", "use_aux_hidden_state"}
EAGLE_CONFIG_READ |= {"parallel_draft_heads_num_layers"}  # of heads that parallel_draft_step would ask for
EAGLE_CONFIG_HARMLESS = {
    "use_input_layernorm_in_first_layer": (True,),
    "use_last_layernorm": (True,),
    "next_layer_regular": (True,),
    "use_mtp_layernorm": (False,),
    "parallel_draft_step": (1,),
    "has_lm_head": (True, False),
}


# What a key must hold if it is there and not null.
KINDS = {
    dict: _words("transformer_layer_config eagle_config speculators_config rope_scaling rope_parameters"),
    list: _words("layer_types"),
    str: _words("model_type speculators_model_type hidden_act"),
    bool: _words(
        """
        norm_before_residual norm_before_fc fc_norm norm_output attention_bias mlp_bias tie_word_embeddings
        use_sliding_window use_aux_hidden_state
        """
    ),
    int: _words("draft_vocab_size truncated_vocab_size target_hidden_size num_aux_hidden_states max_window_layers"),
}
KIND_NAMES = {dict: "an object", list: "a list", str: "a name", bool: "true or false", int: "a whole number"}


def check_kinds(config: Mapping) -> None:
    """Refuse a known key that holds another kind of value: 'false' in quotes, a number where a table belongs."""
    for kind, keys in KINDS.items():
        for key in keys:
            value = config.get(key)
            if value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
                raise CheckpointError(f"{key} is {value!r} in config.json; expected {KIND_NAMES[kind]}")


def unknown_keys(config: Mapping, *, also: frozenset[str]) -> list[str]:
    """Keys with a value that nothing here accounts for. null, and names starting with an underscore, say nothing."""
    return sorted(
        key
        for key, value in config.items()
        if value is not None
        and not key.startswith("_")
        and key not in READ | WITHOUT_EFFECT | also
        and value not in HARMLESS_VALUES.get(key, ())
    )


def unknown_eagle_keys(eagle_config: Mapping) -> list[str]:
    """The same for the nested `eagle_config`; a known key with a value that changes the head counts as unknown."""
    return sorted(
        key
        for key, value in eagle_config.items()
        if value is not None and key not in EAGLE_CONFIG_READ and value not in EAGLE_CONFIG_HARMLESS.get(key, ())
    )
