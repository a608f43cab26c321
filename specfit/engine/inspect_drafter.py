"""What a drafter's checkpoint was read as, with or without the target it is for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from specfit import embedded
from specfit.engine.acceptance_probe import Probe, probe
from specfit.engine.aux_layers import stated_ids
from specfit.engine.checkpoint_files import checkpoint_folder, read_config
from specfit.engine.checkpoints import LoadReport, read_drafter
from specfit.engine.drafter_config import Overrides, unwrapped
from specfit.engine.engine import Engine
from specfit.engine.target_facts import TargetFacts, read_target_facts, whole

UNKNOWN_LAYERS = 1 << 16  # stands for the number of layers of a target that nobody named
PROMPTS = (
    "Explain in a few sentences why the sky is blue.",
    "A shop sells pens at 3 for 2 euros. How much do 12 pens cost? Think step by step.",
    "Write a short story about a lighthouse keeper and a storm.",
    "Summarise the main causes of the French Revolution.",
)


def inspect_drafter(path_or_id: str | Path, *, overrides: Overrides | None = None) -> LoadReport:
    """Read a drafter as if for the target that it describes itself, and report. Raises CheckpointError."""
    source = embedded.drafter_folder() if path_or_id == "embedded" else path_or_id
    raw = unwrapped(read_config(checkpoint_folder(source)))
    overrides = overrides or Overrides()
    named = _names_layers(raw) or overrides.aux_layer_ids is not None
    _, _, report = read_drafter(
        source,
        target=_described_target(raw),
        aux_layer_ids=overrides.aux_layer_ids if named else (0, 1, 2),
        rope_theta=overrides.rope_theta,
        norm_before_residual=overrides.norm_before_residual,
        norm_output=overrides.norm_output,
        ignore_keys=overrides.ignore_keys,
    )
    if named:
        return report
    rule = "target layers 2, L/2 and L-3 of a target with L layers: config.json names none"
    return replace(report, rules=(rule, *report.rules[1:]))


def probe_drafter(
    engine: Engine,
    path_or_id: str | Path,
    prompts: Sequence[Sequence[int]],
    *,
    overrides: Overrides | None = None,
    max_new_tokens: int = 40,
    progress: Callable[[int], None] = lambda done: None,
) -> tuple[LoadReport, Probe]:
    """Read a drafter for an engine's target, and try whether another reading fits better."""
    model = engine.target.model
    name = str(engine.settings["target"])
    facts = read_target_facts(model.config.to_dict(), name="" if name == "embedded" else name)
    source = embedded.drafter_folder() if path_or_id == "embedded" else path_or_id
    given = overrides or Overrides()
    head, vocabulary, report = read_drafter(
        source,
        target=facts,
        aux_layer_ids=given.aux_layer_ids,
        rope_theta=given.rope_theta,
        norm_before_residual=given.norm_before_residual,
        norm_output=given.norm_output,
        ignore_keys=given.ignore_keys,
        dtype=model.dtype,
        device=engine.target.device,
        target_embedding=model.get_input_embeddings().weight,
        target_lm_head=model.get_output_embeddings().weight,
    )
    raw = unwrapped(read_config(checkpoint_folder(source)))
    thetas = [*_thetas(raw), *_thetas(model.config.to_dict())]
    found = probe(
        engine.target,
        head,
        vocabulary,
        prompts,
        thetas=thetas,
        max_new_tokens=max_new_tokens,
        eos=tuple(engine.eos),
        progress=progress,
    )
    return report, found


def probe_prompts(engine: Engine) -> list[tuple[int, ...]]:
    """A few questions as the target gets them: as chat where it has a template, else as plain text."""
    chat = getattr(engine.tokenizer, "chat_template", None) is not None
    return [engine.encode([{"role": "user", "content": text}] if chat else text) for text in PROMPTS]


def _described_target(raw: Mapping[str, Any]) -> TargetFacts:
    """The target's numbers as far as its drafter repeats them; the number of layers it does not."""
    layer = raw.get("transformer_layer_config") or raw
    verifier = (raw.get("speculators_config") or {}).get("verifier") or {}
    width = raw.get("target_hidden_size") or whole(layer, "hidden_size", what="the drafter")
    return TargetFacts(
        hidden_size=width,
        num_layers=UNKNOWN_LAYERS,
        vocab_size=whole(layer, "vocab_size", what="the drafter", default=raw.get("vocab_size")),
        name=verifier.get("name_or_path") or "" if isinstance(verifier, dict) else "",
    )


def _names_layers(raw: Mapping[str, Any]) -> bool:
    return any(ids is not None for ids in stated_ids(raw))


def _thetas(config: Mapping[str, Any]) -> list[float]:
    """Every rotary base that a config writes down, wherever it does."""
    found: list[float] = []
    for key, value in config.items():
        if key == "rope_theta" and isinstance(value, int | float):
            found.append(float(value))
        elif isinstance(value, dict):
            found += _thetas(value)
    return found
