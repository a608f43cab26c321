"""Which rotary positions a drafter was trained with: flat or nested spelling, and two trainers that ignored theirs."""

from collections.abc import Mapping

from specfit.engine.checkpoint_files import CheckpointError
from specfit.engine.rope import ROPE_TYPES
from specfit.engine.target_facts import is_number, whole

# Their training code built RoPE with the default base, whatever config.json says (SpecForge issue 265, sfllm PR 32:
# acceptance on GSM8K 2.56 with 10000, 2.37 with the written 1000000).
IGNORED_THETA = ("SafeAILab", "AngelSlim")
DEFAULT_THETA = 10000.0

REQUIRED = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
}
OPTIONAL = {"yarn": ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate")}
ORIGINAL = "original_max_position_embeddings"
ALWAYS = ("type", "rope_type", "rope_theta", ORIGINAL, "partial_rotary_factor")


def read_rope(config: Mapping, *, layout: str, theta: float | None) -> tuple[dict, str, list[str]]:
    """Return rope parameters in transformers-5 form, the rule theta came from, and warnings.

    config: the part of config.json with the layer's numbers. theta: the caller's override.
    """
    stated = _stated(config)
    kind = stated.get("rope_type") or stated.get("type") or "default"
    if stated.get("type") not in (None, kind):
        raise CheckpointError(f"RoPE is both {kind!r} (rope_type) and {stated['type']!r} (type); keep the right one")
    if kind not in ROPE_TYPES:
        raise CheckpointError(f"rope_type {kind!r} is not supported; specfit reads {', '.join(ROPE_TYPES)}")
    missing = [key for key in REQUIRED[kind] if stated.get(key) is None]
    if missing:
        raise CheckpointError(f"rope_type {kind!r} needs {missing[0]}, which config.json does not give; add it")
    unknown = sorted(set(stated) - {*REQUIRED[kind], *OPTIONAL.get(kind, ()), *ALWAYS})
    if unknown:
        raise CheckpointError(f"rope_type {kind!r} has no parameter {unknown[0]}; remove it or correct the type")
    for partial in (config.get("partial_rotary_factor"), stated.get("partial_rotary_factor")):
        if partial not in (None, 1):
            raise CheckpointError(f"partial_rotary_factor {partial} is not supported; specfit turns whole heads")
    rope = {key: stated[key] for key in (*REQUIRED[kind], *OPTIONAL.get(kind, ())) if stated.get(key) is not None}
    for key, value in rope.items():
        if key != "truncate" and not (is_number(value) and 0 < value < 1e9):
            raise CheckpointError(f"RoPE {key} is {value!r}; expected a positive number")
    base, rule, warnings = _theta(config, stated, layout=layout, override=theta)
    if kind in ("llama3", "yarn"):
        original = stated.get(ORIGINAL) or config.get(ORIGINAL)
        original = original or config.get("max_position_embeddings") or config.get("max_sequence_length")
        if original is None:
            raise CheckpointError(f"rope_type {kind!r} needs {ORIGINAL}; add it to config.json")
        original = whole({ORIGINAL: original}, ORIGINAL, what="the drafter")
        if stated.get(ORIGINAL) is None:
            warnings.append(f"RoPE scaling names no {ORIGINAL}: {original} is used")
        rope[ORIGINAL] = original
    return {"rope_type": kind, "rope_theta": base, **rope}, rule, warnings


def _stated(config: Mapping) -> dict:
    """rope_parameters and rope_scaling joined; null means absent, and a table per layer type means its full one."""
    joined: dict = {}
    for source in ("rope_scaling", "rope_parameters"):
        table = config.get(source) or {}
        table = table.get("full_attention", table)
        if not isinstance(table, Mapping):
            raise CheckpointError(f"{source} holds {table!r} for full attention; expected an object")
        for key, value in table.items():
            if value is None:
                continue
            if key in joined and joined[key] != value:
                raise CheckpointError(
                    f"rope_scaling says {key}: {joined[key]}, rope_parameters says {value}; keep one of them"
                )
            joined[key] = value
    return joined


def _theta(config: Mapping, stated: Mapping, *, layout: str, override: float | None) -> tuple[float, str, list[str]]:
    written = {"rope_theta": config.get("rope_theta"), "rope_parameters.rope_theta": stated.get("rope_theta")}
    values: dict = {key: value for key, value in written.items() if value is not None}
    for key, value in (*values.items(), *([("rope_theta=", override)] if override is not None else [])):
        if not (is_number(value) and 1 < value < float("inf")):
            raise CheckpointError(f"{key} is {value!r}; expected a number above 1, such as 10000")
    if override is not None:
        return float(override), "given by the caller", []
    if len({float(value) for value in values.values()}) > 1:
        pairs = ", ".join(f"{key}: {value}" for key, value in values.items())
        raise CheckpointError(f"config.json contradicts itself about theta ({pairs}); pass rope_theta=")
    if layout in IGNORED_THETA:
        said = next(iter(values.values()), DEFAULT_THETA)
        rule = f"{layout} heads are trained with {DEFAULT_THETA:g} whatever config.json says"
        if said == DEFAULT_THETA:
            return DEFAULT_THETA, rule, []
        warning = (
            f"config.json says rope_theta {said:g}, {DEFAULT_THETA:g} is used because {rule}; "
            f"if this head drafts better with its own, pass rope_theta={said:g}"
        )
        return DEFAULT_THETA, rule, [warning]
    if not values:
        return DEFAULT_THETA, f"config.json names none, so {DEFAULT_THETA:g} as in transformers", []
    return float(next(iter(values.values()))), f"{next(iter(values))} of config.json", []
