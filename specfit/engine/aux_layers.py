"""Which target layers a drafter listens to. Vendors count them from two starting points.

Here id i means the residual stream that *enters* layer i, which is what layer i - 1 left behind and what transformers
calls `hidden_states[i]`. speculators and vLLM count so. Files with an `eagle_config` (SGLang, SpecForge, ModelOpt)
name the layer whose *output* is tapped, one less. Being off by one is not an error anywhere: it only drafts worse.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from specfit.engine.checkpoint_files import CheckpointError
from specfit.engine.target_facts import TargetFacts

Shapes = Mapping[str, tuple[int, ...]]  # shape of each stored tensor, by its speculators name


def read_aux_ids(
    raw: Mapping, *, nested: bool, target: TargetFacts, override: tuple[int, ...] | None
) -> tuple[tuple[int, ...], str]:
    """Tapped target layers, id i meaning the residual stream that enters layer i (leaves layer i - 1)."""
    layers = target.num_layers
    plain, shifted = stated_ids(raw)
    if override is not None:
        ids, rule = list(override), "given by the caller"
    elif plain is not None and shifted is not None and list(plain) != [check_id(i) + 1 for i in shifted]:
        raise CheckpointError(
            f"config.json names target layers twice and differently: {plain}, and {shifted} in eagle_config "
            "(where 1 stands for 2); pass aux_layer_ids="
        )
    elif plain is not None:
        ids, rule = plain, "eagle_aux_hidden_state_layer_ids, read as layers whose input is tapped"
    elif shifted is not None:
        check_list(shifted, layers)
        ids = [check_id(i) + 1 for i in shifted]
        rule = f"eagle_config says {list(shifted)}, layers whose output is tapped: one is added to each"
    else:
        ids, rule = [2, layers // 2, layers - 3], f"config.json names none, so 2, L/2 and L-3 of L = {layers}"
        if not 2 < layers // 2 < layers - 3:
            raise CheckpointError(
                f"config.json names no target layers, and the usual 2, L/2, L-3 are not three layers of a target with "
                f"{layers}; pass aux_layer_ids="
            )
    check_list(ids, layers)
    ids = [check_id(i) for i in ids]
    for wrong in (i for i in ids if not 0 <= i < layers):
        means = "the state after the last layer, which is not tapped" if wrong == layers else "no layer"
        raise CheckpointError(f"target layer id {wrong} is {means}; the target has layers 0 to {layers - 1}")
    if any(first >= second for first, second in pairwise(ids)):
        raise CheckpointError(f"target layer ids must ascend without repeats; got {ids}; pass aux_layer_ids=")
    return tuple(ids), rule


def stated_ids(raw: Mapping) -> tuple[Any, Any]:
    """The two spellings as config.json has them; an empty list names no layer and counts as absent."""
    key = "eagle_aux_hidden_state_layer_ids"
    plain, shifted = raw.get(key), (raw.get("eagle_config") or {}).get(key)
    return (None if plain == [] else plain), (None if shifted == [] else shifted)


def check_list(ids: object, layers: int) -> None:
    if not isinstance(ids, (list, tuple)) or not ids:
        raise CheckpointError(f"target layer ids must be a list of numbers below {layers}; got {ids!r}")


def check_id(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise CheckpointError(f"target layer id {value!r} is not a whole number; write it without quotes")
    if value < 0:
        raise CheckpointError(f"target layer id {value} is negative; count layers from 0")
    return value


def check_feature_width(shapes: Shapes, aux_ids: tuple[int, ...], target: TargetFacts, *, stated_count: object) -> None:
    found, expected = shapes["fc.weight"][-1], len(aux_ids) * target.hidden_size
    if found != expected:
        raise CheckpointError(
            f"fc.weight reads {found} numbers, {found / target.hidden_size:g} x the target's hidden_size "
            f"{target.hidden_size}, but {len(aux_ids)} target layers {aux_ids} give {expected}; pass aux_layer_ids= "
            "with the layers this head was trained on, or take the head made for this target"
        )
    if stated_count not in (None, len(aux_ids)):
        raise CheckpointError(f"num_aux_hidden_states is {stated_count}, but {len(aux_ids)} target layers are named")
