"""How many experts each layer has, and how many each token takes, read from plain config JSON of many families.

Families spell the same three facts differently: E, k and which layers are sparse. A saved config may also use another
spelling than the one it was loaded from, so every spelling is accepted, and two that disagree are reported.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from specfit.engine.checkpoint_files import CheckpointError, refuse_quantized, some
from specfit.engine.target_facts import text_part, whole

EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
TOP_K_KEYS = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk", "moe_k", "top_k_experts")
EXPERTS, TOP_K = "the number of experts", "experts per token"
FIRST_DENSE = {"deepseek_v3": 3, "glm4_moe": 1}  # what these families take `first_k_dense_replace` to be if left out


@dataclass(frozen=True, slots=True)
class MoeShape:
    """Routed experts only; shared experts are dense weights that stay on the device."""

    experts: tuple[int, ...]  # (layers,) routed experts of each layer, 0 where it is dense
    top_k: tuple[int, ...]  # (layers,) experts each token takes, 0 where it is dense

    @property
    def sparse_layers(self) -> tuple[int, ...]:
        """Layers that route tokens to experts, ascending."""
        return tuple(layer for layer, count in enumerate(self.experts) if count)


def read_moe_shape(config: Mapping) -> MoeShape:
    """Raise CheckpointError for a dense or quantized model, and for keys that contradict each other."""
    refuse_quantized(config, what="the target")
    text = text_part(config)
    layers = whole(text, "num_hidden_layers", what="the target")
    experts = _per_layer(text, EXPERT_KEYS, layers, meaning=EXPERTS)
    top_k = _per_layer(text, TOP_K_KEYS, layers, meaning=TOP_K)
    sparse = sparse_layers(text, layers)
    for layer in sparse:
        if not min(1, experts[layer]) <= top_k[layer] <= experts[layer]:
            raise CheckpointError(
                f"layer {layer} gives each token {top_k[layer]} of {experts[layer]} experts; check config.json"
            )
    return MoeShape(
        experts=tuple(experts[layer] if layer in sparse else 0 for layer in range(layers)),
        top_k=tuple(top_k[layer] if layer in sparse else 0 for layer in range(layers)),
    )


def refuse_contradictions(config: Mapping) -> None:
    """CheckpointError for two spellings of one fact that disagree, or facts that exclude each other.

    The library would follow one of them silently, or fail in the middle of a forward.
    """
    text = text_part(config)
    experts = next(iter(_stated(text, EXPERT_KEYS, meaning=EXPERTS).values()), None)
    key, top_k = next(iter(_stated(text, TOP_K_KEYS, meaning=TOP_K).items()), ("", None))
    if isinstance(experts, int) and experts and isinstance(top_k, int) and not 1 <= top_k <= experts:
        raise CheckpointError(f"config.json gives each token {top_k} of {experts} experts ({key}); correct it")


def sparse_layers(text: Mapping, layers: int) -> set[int]:
    """Which of 0..layers-1 have experts. Each rule removes layers; a family uses one or two of them."""
    sparse = set(range(layers))
    kinds = text.get("mlp_layer_types")  # transformers 5: "sparse" or "dense" for each layer
    if kinds is not None:
        if len(kinds) < layers:
            raise CheckpointError(f"mlp_layer_types lists {len(kinds)} layers, num_hidden_layers is {layers}")
        return {layer for layer in sparse if kinds[layer] != "dense"}
    if text.get("moe_layers") is not None:  # Llama 4: the sparse layers themselves
        return sparse & set(text["moe_layers"])
    sparse -= set(text.get("mlp_only_layers") or ())  # Qwen
    step = text.get("decoder_sparse_step") or 1  # Qwen; counts layers from one
    sparse = {layer for layer in sparse if (layer + 1) % step == 0}
    dense_start = text.get("first_k_dense_replace")  # DeepSeek, GLM
    if dense_start is None:
        dense_start = FIRST_DENSE.get(str(text.get("model_type")), 0)
    dense_start = max(dense_start, text.get("num_dense_layers") or 0)  # LFM2
    sparse = {layer for layer in sparse if layer >= dense_start}
    every = text.get("moe_layer_freq") or 1  # DeepSeek: every n-th layer, or one flag for each layer
    if isinstance(every, (list, tuple)):
        sparse = {layer for layer in sparse if layer < len(every) and every[layer]}
    else:
        sparse = {layer for layer in sparse if layer % every == 0}
    if text.get("expert_layer_period"):  # Jamba
        sparse = {i for i in sparse if i % text["expert_layer_period"] == text.get("expert_layer_offset", 0)}
    if text.get("moe_layer_interval") or text.get("moe_layer_start_index") is not None:  # Ernie; counts from one
        interval, start = text.get("moe_layer_interval") or 1, text.get("moe_layer_start_index") or 0
        end = text.get("moe_layer_end_index", -1)
        end = layers - 1 if end in (-1, None) else end
        sparse = {layer for layer in sparse if start <= layer <= end and (layer + 1) % interval == 0}
    return sparse


def _stated(text: Mapping, keys: tuple[str, ...], *, meaning: str) -> dict:
    stated = {key: text[key] for key in keys if text.get(key) is not None}
    if len({str(value) for value in stated.values()}) > 1:
        pairs = ", ".join(f"{key}: {value}" for key, value in stated.items())
        raise CheckpointError(f"config.json contradicts itself about {meaning}: {pairs}; keep the right one")
    return stated


def _per_layer(text: Mapping, keys: tuple[str, ...], layers: int, *, meaning: str) -> list[int]:
    """One number for each layer from whichever key states it, as a number or as a list with one entry a layer."""
    stated = _stated(text, keys, meaning=meaning)
    if not stated:
        raise CheckpointError(
            f"config.json does not say {meaning} (looked for {', '.join(keys)}); "
            "specfit needs a mixture-of-experts target"
        )
    key, value = next(iter(stated.items()))
    if not isinstance(value, (list, tuple)):
        return [whole(text, key, what="the target")] * layers
    if len(value) != layers:
        raise CheckpointError(f"{key} lists {len(value)} layers ({some(value)}), num_hidden_layers is {layers}")
    return [0 if entry == 0 else whole({key: entry}, key, what="the target") for entry in value]  # 0: a dense layer
