"""Reads an EAGLE-3 drafter from any published layout, and says which rule it followed for every open question.

The path is short: read all tensors, give them one set of names, plan the head from config.json and the shapes, check
every tensor, build. The target's side (`open_checkpoint`, `read_moe_shape`) is re-exported here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from specfit.engine.checkpoint_files import (
    Checkpoint,
    CheckpointError,
    TensorEntry,
    open_checkpoint,
    read_all,
    some,
)
from specfit.engine.draft_vocabulary import DraftVocabulary, read_vocabulary
from specfit.engine.drafter_config import HeadPlan, Overrides, plan_head, unwrapped
from specfit.engine.drafter_weights import StoredTensors, check_weights, empty_head, sort_tensors
from specfit.engine.eagle3 import Eagle3Config, Eagle3Head
from specfit.engine.moe_shape import MoeShape, read_moe_shape
from specfit.engine.target_facts import TargetFacts, read_target_facts

SAMPLED_ROWS = 256  # of an embedding, to compare it with another

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "DraftVocabulary",
    "Eagle3Config",
    "Eagle3Head",
    "LoadReport",
    "MoeShape",
    "TargetFacts",
    "TensorEntry",
    "open_checkpoint",
    "read_drafter",
    "read_moe_shape",
    "read_target_facts",
]


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a drafter was read as, one fact a line when printed."""

    source: str  # folder
    layout: str  # "speculators", "SafeAILab", ...
    rules: tuple[str, ...]  # each choice and where it comes from
    vocabulary: str
    unneeded: tuple[str, ...]  # tensors of the file that inference does not use
    warnings: tuple[str, ...]
    needs_target_embedding: bool  # call head.share_embedding(...) before drafting

    def __str__(self) -> str:
        lines = [f"drafter {self.source}", f"layout: {self.layout}", *self.rules, f"vocabulary: {self.vocabulary}"]
        if self.needs_target_embedding:
            lines.append("embedding: the target's, still to be shared with the head")
        if self.unneeded:
            lines.append(f"not used: {some(self.unneeded, 8)}")
        return "\n".join([*lines, *(f"warning: {warning}" for warning in self.warnings)])


def read_drafter(
    path_or_id: str | Path,
    *,
    target: TargetFacts,
    aux_layer_ids: tuple[int, ...] | None = None,
    rope_theta: float | None = None,
    norm_before_residual: bool | None = None,
    norm_output: bool | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    target_embedding: Tensor | None = None,
    target_lm_head: Tensor | None = None,
    ignore_keys: tuple[str, ...] = (),
    local_files_only: bool = False,
) -> tuple[Eagle3Head, DraftVocabulary, LoadReport]:
    """Read a drafter for `target` from a folder or hub id.

    aux_layer_ids ... norm_output: overrule config.json; ids name the layer whose *input* is tapped.
    target_embedding: (V_t, H_t), shared by a head whose file has no embedding; without it the report says so.
    target_lm_head: (V_t, H_t), for the heads that save no lm_head of their own and draft the whole vocabulary.
    ignore_keys: config keys unknown to specfit that you know not to change the head.
    Raises CheckpointError, one sentence, for anything that is not exactly an EAGLE-3 head of this target.
    """
    folder, config_json, stored = read_all(path_or_id, local_files_only=local_files_only)
    raw = unwrapped(config_json)
    tensors = sort_tensors(stored)
    overrides = Overrides(
        aux_layer_ids=aux_layer_ids,
        rope_theta=rope_theta,
        norm_before_residual=norm_before_residual,
        norm_output=norm_output,
    )
    plan = plan_head(raw, tensors.shapes, stored, target=target, overrides=overrides, ignore_keys=tuple(ignore_keys))
    config = plan.config
    borrowed, notes = _borrow(tensors, plan, raw, target, embedding=target_embedding, lm_head=target_lm_head)
    needs_embedding = "embed_tokens.weight" not in tensors.weights | borrowed
    head = empty_head(config)
    check_weights(tensors, head, from_target=frozenset(("embed_tokens.weight", *borrowed)))
    vocabulary, vocabulary_warning = read_vocabulary(
        tensors.maps, size=config.draft_vocab_size, target_size=config.vocab_size
    )
    if vocabulary_warning:
        notes.append(vocabulary_warning)
    _fill(head, tensors.weights, borrowed, dtype=dtype, device=device)
    report = LoadReport(
        source=str(folder),
        layout=plan.layout,
        rules=plan.rules,
        vocabulary=vocabulary.description,
        unneeded=tensors.unneeded,
        warnings=(*plan.warnings, *notes, *_verifier_warning(raw, target)),
        needs_target_embedding=needs_embedding,
    )
    return head, vocabulary.to(device), report


def _borrow(
    tensors: StoredTensors,
    plan: HeadPlan,
    raw: Mapping,
    target: TargetFacts,
    *,
    embedding: Tensor | None,
    lm_head: Tensor | None,
) -> tuple[dict[str, Tensor], list[str]]:
    """Tables a file leaves to the target, by name, and notes about ties."""
    config, borrowed, notes = plan.config, {}, []
    layer = raw.get("transformer_layer_config") or {}
    tied = bool(raw.get("tie_word_embeddings") or layer.get("tie_word_embeddings"))
    if "embed_tokens.weight" not in tensors.weights:
        if config.hidden_size != target.hidden_size:
            raise CheckpointError(
                f"the drafter has no embed_tokens.weight, and the target's is {target.hidden_size} wide where the "
                f"drafter is {config.hidden_size}; take a checkpoint that holds its own embedding"
            )
        if embedding is not None:
            borrowed["embed_tokens.weight"] = _of_target(embedding, target, "target_embedding")
            notes.append("the file has no embedding: the target's is used")
    elif embedding is not None and config.hidden_size == target.hidden_size and not raw.get("embed_requires_grad"):
        notes += _compare_embeddings(tensors.weights["embed_tokens.weight"], embedding)
    if "lm_head.weight" in tensors.weights:
        if tied:
            notes.append("tie_word_embeddings is true, and the file has an lm_head of its own, which is used")
        return borrowed, notes
    if config.draft_vocab_size != config.vocab_size:
        raise CheckpointError(
            f"the drafter has no lm_head.weight; for {config.draft_vocab_size} draft tokens it cannot be tied to an "
            f"embedding of {config.vocab_size} rows, so take a complete copy of the checkpoint"
        )
    own_embedding = (tensors.weights | borrowed).get("embed_tokens.weight")
    if tied and own_embedding is not None:
        borrowed["lm_head.weight"] = own_embedding
        notes.append("lm_head is tied to the embedding")
    elif lm_head is not None and config.hidden_size == target.hidden_size:
        borrowed["lm_head.weight"] = _of_target(lm_head, target, "target_lm_head")
        notes.append("the file has no lm_head: the target's is used")
    else:
        raise CheckpointError(
            "the drafter has no lm_head.weight; pass the target's as target_lm_head=, or take a complete copy"
        )
    return borrowed, notes


def _compare_embeddings(own: Tensor, target: Tensor) -> list[str]:
    """Trainers freeze the target's embedding; a file with another one was usually saved with an untrained table."""
    if own.shape != target.shape:
        return []
    rows = torch.linspace(0, len(own) - 1, min(len(own), SAMPLED_ROWS)).long()
    ours, theirs = own[rows].float(), target[rows.to(target.device)].float().cpu()
    alike = torch.nn.functional.cosine_similarity(ours, theirs, dim=-1).median()
    if alike > 0.9:
        return []
    return [
        f"the file's embedding is not the target's (of {len(rows)} tokens, half are alike by a cosine of at most "
        f"{alike:.2f}): if few drafts are accepted, remove embed_tokens.weight from the file, and the target's is used"
    ]


def _of_target(table: Tensor, target: TargetFacts, argument: str) -> Tensor:
    expected = (target.vocab_size, target.hidden_size)
    if tuple(table.shape) != expected:
        raise CheckpointError(f"{argument} has shape {tuple(table.shape)}, the target's facts ask for {expected}")
    return table.detach()


def _fill(
    head: Eagle3Head,
    own: dict[str, Tensor],
    borrowed: dict[str, Tensor],
    *,
    dtype: torch.dtype,
    device: torch.device | str,
) -> None:
    """Give an empty head its tensors, and make it ready for inference.

    Borrowed tensors stay shared where dtype and device allow.
    """
    placed = {name: weight.to(device=device, dtype=dtype) for name, weight in own.items()}
    for name, weight in borrowed.items():
        tied = next((placed[other] for other, source in own.items() if source is weight), None)
        placed[name] = tied if tied is not None else weight.to(device=device, dtype=dtype)
    if "embed_tokens.weight" not in placed:
        head.embed_tokens = None
    head.load_state_dict(placed, strict=True, assign=True)
    assert not any(weight.is_meta for weight in head.state_dict().values())
    head.eval().requires_grad_(False).pack()


def _verifier_warning(raw: Mapping, target: TargetFacts) -> list[str]:
    """A head for another model of the same sizes loads and drafts badly; its config may name its verifier."""
    verifier = (raw.get("speculators_config") or {}).get("verifier")
    verifier = verifier.get("name_or_path") if isinstance(verifier, dict) else verifier
    if not isinstance(verifier, str) or not verifier or not target.name:
        return []
    if verifier.rstrip("/").split("/")[-1].lower() == target.name.rstrip("/").split("/")[-1].lower():
        return []
    return [f"this head was trained for {verifier}, the target is {target.name}"]
