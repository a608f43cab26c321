"""From any published EAGLE-3 config.json to one `Eagle3Config`, with the rule behind every choice.

Two shapes exist: *nested* (speculators: the layer's numbers under `transformer_layer_config`) and *flat* (everyone
else). Flat files come from several trainers that mean different things by the same key, so the layout is named first
and each rule is written once per layout. Shapes of the stored tensors settle what configs leave open; the name of a
file or of an architecture never makes something an EAGLE-3 head.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from transformers.activations import ACT2FN

from specfit.engine.aux_layers import Shapes, check_feature_width, read_aux_ids
from specfit.engine.checkpoint_files import CheckpointError, refuse_quantized, some
from specfit.engine.drafter_keys import check_kinds, unknown_eagle_keys, unknown_keys
from specfit.engine.drafter_rope import read_rope
from specfit.engine.eagle3 import Eagle3Config
from specfit.engine.target_facts import TargetFacts, is_number, whole

UNSAID = "not in config.json"


@dataclass(frozen=True, slots=True)
class Overrides:
    """What the caller knows better than config.json; None leaves the choice to it."""

    aux_layer_ids: tuple[int, ...] | None = None  # id i taps the residual stream entering layer i
    rope_theta: float | None = None
    norm_before_residual: bool | None = None
    norm_output: bool | None = None
    ignore_keys: tuple[str, ...] = ()  # keys of config.json unknown to specfit that do not change the head


# Other kinds of drafters, by what their trainers call them; a shared layout would make some look like an EAGLE-3 head.
OTHER_HEADS = re.compile(r"DFlash|DSpark|Domino|PEagle|PEAGLE|Medusa|Hydra|NextN|MTP")

# Around a `text_config`: what says nothing about the head. All else there counts as if it stood inside.
OTHER_SENSES = re.compile(r"(text|vision|audio)_config|(image|video|audio|vision|mm|boi|eoi|boa|eoa)_\w+")


@dataclass(frozen=True, slots=True)
class HeadPlan:
    config: Eagle3Config
    layout: str
    rules: tuple[str, ...]  # "theta 10000: rope_theta of config.json"
    warnings: tuple[str, ...]


def unwrapped(raw: Mapping) -> Mapping:
    """A config whose head lies in `text_config`, as exports for targets that also see have it, as a flat one."""
    text = raw.get("text_config")
    if not isinstance(text, Mapping) or raw.get("hidden_size") is not None or raw.get("transformer_layer_config"):
        return raw
    outer = {key: value for key, value in raw.items() if value is not None and not OTHER_SENSES.fullmatch(key)}
    return {**text, **outer, "model_type": text.get("model_type")}


def plan_head(
    raw: Mapping,
    shapes: Shapes,
    names_on_disk: Collection[str],
    *,
    target: TargetFacts,
    overrides: Overrides,
    ignore_keys: tuple[str, ...] = (),
) -> HeadPlan:
    """Read config.json (`raw`) in the light of the tensors' shapes and the target.

    names_on_disk: tensor names as stored; they tell some layouts apart.
    Raises CheckpointError for anything that is not an EAGLE-3 head, or is one in a way this head cannot follow.
    """
    refuse_quantized(raw, what="the drafter")
    check_kinds(raw)
    nested = "transformer_layer_config" in raw or "speculators_model_type" in raw
    layer = (raw.get("transformer_layer_config") or {}) if nested else raw
    check_kinds(layer)
    layout = name_layout(raw, names_on_disk, nested=nested)
    refuse_other_heads(raw, layer, shapes)
    refuse_unknown_keys(raw, layer, ignore_keys)
    refuse_sliding_window(layer)

    width = whole(layer, "hidden_size", what="the drafter")
    target_width = raw.get("target_hidden_size") or target.hidden_size
    if target_width != target.hidden_size:
        raise CheckpointError(
            f"the drafter reads target states of width {target_width} (target_hidden_size), the target "
            f"{target.name} has {target.hidden_size}; this head belongs to another target"
        )
    vocab_size = whole(layer, "vocab_size", what="the drafter", default=raw.get("vocab_size"))
    if vocab_size != target.vocab_size:
        raise CheckpointError(
            f"the drafter's vocab_size is {vocab_size}, the target's is {target.vocab_size}; "
            "token ids would not mean the same, so take the head made for this target"
        )
    heads = whole(layer, "num_attention_heads", what="the drafter")
    aux_ids, aux_rule = read_aux_ids(raw, nested=nested, target=target, override=overrides.aux_layer_ids)
    check_feature_width(shapes, aux_ids, target, stated_count=raw.get("num_aux_hidden_states"))
    rope, theta_rule, warnings = read_rope(layer, layout=layout, theta=overrides.rope_theta)
    head_dim, head_dim_rule = read_head_dim(layer, shapes, width=width, heads=heads)
    positions, position_warning = read_positions(layer)
    activation = layer.get("hidden_act") or "silu"
    if activation not in ACT2FN:
        raise CheckpointError(f"hidden_act {activation!r} is no activation that transformers has; correct config.json")
    eps, eps_warning = read_eps(layer)
    residual, residual_rule = read_flag(raw, "norm_before_residual", overrides.norm_before_residual)
    residual_warning = None
    if nested and residual_rule == UNSAID:
        residual_warning = (
            "config.json names no norm_before_residual: false, as the speculators library reads that; vLLM takes true, "
            "so compare with norm_before_residual=True"
        )
    output, output_rule, output_warning = read_norm_output(raw, nested=nested, override=overrides.norm_output)
    qk_norm, qk_rule = read_qk_norm(layer, shapes, nested=nested)
    try:
        config = Eagle3Config(
            hidden_size=width,
            intermediate_size=whole(layer, "intermediate_size", what="the drafter"),
            num_layers=read_num_layers(layer, shapes),
            num_heads=heads,
            num_kv_heads=whole(layer, "num_key_value_heads", what="the drafter", default=heads),
            head_dim=head_dim,
            rms_norm_eps=eps,
            hidden_act=activation,
            vocab_size=vocab_size,
            draft_vocab_size=read_draft_vocab_size(raw, shapes, vocab_size),
            rope_parameters=rope,
            max_position_embeddings=positions,
            aux_layer_ids=aux_ids,
            target_hidden_size=target.hidden_size,
            qk_norm=qk_norm,
            norm_before_residual=residual,
            norm_before_fc=bool(raw.get("norm_before_fc")),
            fc_norm=bool(raw.get("fc_norm")),
            norm_output=output,
            attention_bias=bool(layer.get("attention_bias")),
            mlp_bias=bool(layer.get("mlp_bias")),
        )
    except CheckpointError:
        raise
    except ValueError as error:
        raise CheckpointError(f"config.json of the drafter: {error}") from error
    rules = (
        f"target layers {aux_ids}: {aux_rule}",
        f"theta {rope['rope_theta']:g}, {rope['rope_type']}: {theta_rule}",
        f"norm_before_residual {residual}: {residual_rule}",
        f"norm_output {output}: {output_rule}",
        f"q_norm and k_norm {qk_norm}: {qk_rule}",
        f"head_dim {head_dim}: {head_dim_rule}",
        f"positions: trained to {positions}; longer text works, and drafts worse",
    )
    notes = (position_warning, eps_warning, residual_warning, output_warning)
    warnings += [warning for warning in notes if warning]
    return HeadPlan(config, layout, rules, tuple(warnings))


def name_layout(raw: Mapping, names_on_disk: Collection[str], *, nested: bool) -> str:
    """Whose file this is: some keys mean different things to different trainers."""
    architectures = str(raw.get("architectures"))
    midlayer = any("midlayer." in name for name in names_on_disk)
    if nested:
        return "speculators"
    if "Eagle3LlamaForCausalLM" in architectures:
        return "AngelSlim"
    if raw.get("eagle_config") or re.search(r"\wEagle3\b", architectures):
        return "SpecForge / SGLang" if midlayer else "ModelOpt / SGLang"
    if raw.get("truncated_vocab_size") is not None:
        return "nebius"
    return "SafeAILab" if midlayer else "flat"


def refuse_other_heads(raw: Mapping, layer: Mapping, shapes: Shapes) -> None:
    """Other speculators, EAGLE-1/2 heads and ordinary language models, each by what gives it away."""
    for kind in (raw.get("speculators_model_type"), (raw.get("speculators_config") or {}).get("algorithm")):
        if kind not in (None, "eagle3"):
            raise CheckpointError(f"this is a {kind!r} speculator; specfit reads eagle3 heads")
    other = OTHER_HEADS.search(str(raw.get("architectures")))
    if other is not None:
        raise CheckpointError(f"this is a {other[0]} drafter (architectures); specfit reads eagle3 heads")
    latent = next((name for name in shapes if "kv_a_proj" in name or "kv_b_proj" in name), None)
    if latent is not None:
        raise CheckpointError(
            f"the drafter holds {latent}: its layer has DeepSeek's latent attention, specfit's head a Llama layer's; "
            "take a head with plain attention"
        )
    eagle = raw.get("eagle_config") or {}
    if False in (eagle.get("use_aux_hidden_state"), raw.get("use_aux_hidden_state")):
        raise CheckpointError(
            "use_aux_hidden_state is false: this head reads the target's last hidden state alone, as EAGLE-1/2 do; "
            "take a head trained on three or more target layers"
        )
    if "fc.weight" not in shapes:
        raise CheckpointError(
            f"this is no EAGLE-3 head: it has no fc.weight to take the target's states in (it holds {some(shapes)}); "
            "give the drafter's folder, not a language model's"
        )
    width, query = layer.get("hidden_size"), shapes.get("layers.0.self_attn.q_proj.weight")
    if query is not None and width and len(query) == 2 and query[1] == width:
        raise CheckpointError(
            f"this is an EAGLE-1/2 head, not EAGLE-3: q_proj reads {query[1]} numbers, not 2 x {width} (embedding and "
            f"feature), and fc.weight is {shapes['fc.weight']}; take the EAGLE-3 head of this target"
        )


def refuse_unknown_keys(raw: Mapping, layer: Mapping, ignore_keys: tuple[str, ...]) -> None:
    ignored = frozenset(ignore_keys)
    unknown = set(unknown_keys(raw, also=ignored)) | set(unknown_keys(layer, also=ignored))
    eagle = raw.get("eagle_config") or {}
    unknown |= {f"eagle_config.{key}" for key in unknown_eagle_keys(eagle) if key not in ignored}
    if unknown:
        name = min(unknown)
        value = eagle.get(name.split(".")[1]) if "." in name else raw.get(name, layer.get(name))
        raise CheckpointError(
            f"config.json of the drafter has {some(sorted(unknown))}, unknown to specfit ({name}: {value!r}); "
            f"if it does not change the head's formulas, pass ignore_keys=({name.split('.')[-1]!r},)"
        )


def refuse_sliding_window(layer: Mapping) -> None:
    """A window that is only written down is ignored; one that some layer uses is refused."""
    layers = layer.get("num_hidden_layers") or 1
    kinds = layer.get("layer_types")
    if kinds is not None:
        other = [kind for kind in kinds[:layers] if kind != "full_attention"]
        if other:
            raise CheckpointError(
                f"the drafter's layer_types ask for {other[0]} (window {layer.get('sliding_window')}); "
                "specfit's head has full attention only"
            )
        return
    window, first = layer.get("sliding_window"), layer.get("max_window_layers") or 0
    if layer.get("use_sliding_window") and window and layers > first:  # 0 is another way to write none
        raise CheckpointError(
            f"the drafter uses a sliding window of {window} (use_sliding_window is true); "
            "specfit's head has full attention only"
        )


def read_num_layers(layer: Mapping, shapes: Shapes) -> int:
    layers = whole(layer, "num_hidden_layers", what="the drafter", default=1)
    stored = {name.split(".")[1] for name in shapes if name.startswith("layers.")}
    if layers > len(stored):
        raise CheckpointError(
            f"the drafter lacks layers.{len(stored)}.*: config.json has num_hidden_layers {layers}, the file holds "
            f"{len(stored)}; they belong to different checkpoints"
        )
    return layers


def read_head_dim(layer: Mapping, shapes: Shapes, *, width: int, heads: int) -> tuple[int, str]:
    """config.json's head_dim or H / heads, whichever q_proj has: some trainers ignore the key."""
    stated = layer.get("head_dim")
    rows = shapes.get("layers.0.self_attn.q_proj.weight", (None,))[0]
    if stated is not None:
        stated = whole(layer, "head_dim", what="the drafter")
        if rows is None or rows == heads * stated or rows != heads * (width // heads):
            return stated, "head_dim of config.json"
        return width // heads, f"q_proj has {rows} rows for {heads} heads (config.json says {stated})"
    return width // heads, f"hidden_size / {heads} heads"


def read_positions(layer: Mapping) -> tuple[int, str | None]:
    for key in ("max_position_embeddings", "max_sequence_length"):
        if layer.get(key) is not None:
            return whole(layer, key, what="the drafter"), None
    return 2048, "config.json names no max_position_embeddings; 2048, the usual length, is assumed"


def read_eps(layer: Mapping) -> tuple[float, str | None]:
    eps = layer.get("rms_norm_eps")
    if eps is None:
        return 1e-6, "config.json names no rms_norm_eps; 1e-06, transformers' own, is used"
    if not (is_number(eps) and 0 <= eps < 1):
        raise CheckpointError(f"rms_norm_eps is {eps!r}; expected a small number such as 1e-06")
    return float(eps), None


def read_flag(raw: Mapping, key: str, override: bool | None) -> tuple[bool, str]:
    if override is not None:
        return override, "given by the caller"
    value = raw.get(key)
    return (False, UNSAID) if value is None else (value, "config.json")


def read_norm_output(raw: Mapping, *, nested: bool, override: bool | None) -> tuple[bool, str, str | None]:
    """Whether norm(g) rather than g is fed back. Flat files disagree about what the key means.

    Runtimes and speculators: feed back the normed state. SpecForge: normalise before lm_head, feed back the plain one.
    They agree where the key is absent; for false they already differ in the first draft step, so it is not guessed.
    """
    value, rule = read_flag(raw, "norm_output", override)
    if override is not None or nested or raw.get("norm_output") is None:
        return value, rule, None
    if value is False:
        raise CheckpointError(
            "norm_output is false in a flat config.json: to SGLang and vLLM that is the usual head, to SpecForge one "
            "without a norm before lm_head; pass norm_output=False if it is the usual one"
        )
    warning = (
        "norm_output is true in a flat config.json: read as SGLang and vLLM do (the normed state is fed back); "
        "SpecForge trains with the plain state, so compare with norm_output=False"
    )
    return value, "config.json, read as SGLang and vLLM do", warning


def read_qk_norm(layer: Mapping, shapes: Shapes, *, nested: bool) -> tuple[bool, str]:
    """speculators says it by the layer's model_type; elsewhere that is often the target's, so the tensors say it."""
    kind = layer.get("model_type")
    if nested:
        if kind not in (None, "llama", "qwen3"):
            raise CheckpointError(f"the drafter's layer has model_type {kind!r}; specfit reads llama and qwen3 layers")
        return kind == "qwen3", f"model_type {kind}"
    return "layers.0.self_attn.q_norm.weight" in shapes, "the tensors of the file"


def read_draft_vocab_size(raw: Mapping, shapes: Shapes, vocab_size: int) -> int:
    stated = {key: raw[key] for key in ("draft_vocab_size", "truncated_vocab_size") if raw.get(key) is not None}
    if len(set(stated.values())) > 1:
        raise CheckpointError(f"config.json gives two draft vocabularies, {stated}; keep the right one")
    if stated:
        size = whole(stated, next(iter(stated)), what="the drafter")
    else:  # unsaid means the whole vocabulary, unless head and map agree on a smaller one
        rows = shapes.get("lm_head.weight", (vocab_size,))[0]
        size = rows if shapes.get("d2t") == (rows,) else vocab_size
    if size > vocab_size:
        raise CheckpointError(f"draft_vocab_size {size} is larger than vocab_size {vocab_size}; check config.json")
    return size
