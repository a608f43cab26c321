"""The drafter's own, smaller vocabulary: row i of its lm_head stands for target token i + d2t[i].

`d2t` holds offsets, and t2d, where a file has it, is a mask of the target tokens that can be drafted: it adds nothing
at inference, and is a free check of the offsets.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from specfit.engine.checkpoint_files import CheckpointError

OFFSETS = ("d2t", "draft_id_to_target_id")  # the same table under two names
TOKEN_IDS = ("hot_token_id", "hot_token_ids")  # SGLang's: target ids themselves


@dataclass(frozen=True, slots=True, eq=False)
class DraftVocabulary:
    size: int  # V_d
    target_size: int  # V_t
    target_ids: Tensor | None = field(repr=False)  # (V_d,) int64, None for the identity
    description: str = ""

    def to_target(self, draft_ids: Tensor) -> Tensor:
        """Target token ids of draft ids, any shape."""
        return draft_ids if self.target_ids is None else self.target_ids[draft_ids]

    def to(self, device: torch.device | str) -> "DraftVocabulary":
        """The same vocabulary with its table on `device`."""
        return self if self.target_ids is None else replace(self, target_ids=self.target_ids.to(device))


def read_vocabulary(maps: Mapping[str, Tensor], *, size: int, target_size: int) -> tuple[DraftVocabulary, str | None]:
    """The vocabulary and a warning, from the map tensors of a file (by their names without prefix).

    Raises CheckpointError where a map is missing, has another length, leaves the target's vocabulary, names a token
    twice or disagrees with t2d.
    """
    target_ids = _target_ids(maps, size)
    if target_ids is None:
        if size != target_size:
            raise CheckpointError(
                f"the drafter has {size} tokens, the target {target_size}, and the file has no d2t to say which; "
                "take a complete copy of the checkpoint"
            )
        return DraftVocabulary(size, target_size, None, f"all {size} target tokens"), None
    _check_mask(target_ids, maps.get("t2d"), maps.get("d2t"), target_size)
    _check_range(target_ids, target_size)
    first = torch.arange(size)
    if not torch.equal(target_ids, first):
        return DraftVocabulary(size, target_size, target_ids, f"{size} of {target_size} target tokens, by d2t"), None
    if size == target_size:
        return DraftVocabulary(size, target_size, None, f"all {size} target tokens (d2t changes none)"), None
    warning = f"d2t is all zeros: the draft vocabulary is the first {size} target tokens; probably unset by the trainer"
    return DraftVocabulary(size, target_size, target_ids, f"the first {size} of {target_size} target tokens"), warning


def _target_ids(maps: Mapping[str, Tensor], size: int) -> Tensor | None:
    """(V_d,) target ids from whichever tables there are; two of them must agree."""
    found = {}
    for name in (*OFFSETS, *TOKEN_IDS):
        if name not in maps:
            continue
        table = maps[name]
        if tuple(table.shape) != (size,):
            raise CheckpointError(
                f"{name} has shape {tuple(table.shape)}, draft_vocab_size asks for ({size},); they belong to "
                "different checkpoints"
            )
        broken = table.is_floating_point() and not torch.equal(table, table.round())
        if broken or table.dtype == torch.bool:
            raise CheckpointError(f"{name} holds {table.dtype} values; expected whole numbers")
        table = table.to(torch.int64)
        found[name] = table + torch.arange(size) if name in OFFSETS else table
    names = list(found)
    for other in names[1:]:
        if not torch.equal(found[names[0]], found[other]):
            raise CheckpointError(f"{names[0]} and {other} name different target tokens; remove the wrong one")
    return found[names[0]] if names else None


def _check_range(target_ids: Tensor, target_size: int) -> None:
    outside = ((target_ids < 0) | (target_ids >= target_size)).nonzero().flatten()
    if len(outside):
        row = int(outside[0])
        raise CheckpointError(
            f"draft token {row} maps to target token {int(target_ids[row])}, outside the target's {target_size}; "
            "d2t must hold offsets (target id minus row) for this target"
        )
    values, counts = target_ids.unique(return_counts=True)
    if len(values) < len(target_ids):
        token = int(values[counts > 1][0])
        rows = (target_ids == token).nonzero().flatten().tolist()
        raise CheckpointError(
            f"draft tokens {rows[0]} and {rows[1]} both map to target token {token}; siblings of a draft tree must "
            "differ, and d2t must hold offsets (target id minus row), not target ids"
        )


def _check_mask(target_ids: Tensor, mask: Tensor | None, offsets: Tensor | None, target_size: int) -> None:
    if mask is None:
        return
    if tuple(mask.shape) != (target_size,):
        raise CheckpointError(
            f"t2d has shape {tuple(mask.shape)}, the target's vocab_size asks for ({target_size},); "
            "this head belongs to another target"
        )
    drafted = mask.bool().nonzero().flatten()
    if torch.equal(target_ids.sort().values, drafted):
        return
    if offsets is not None and torch.equal(offsets.to(torch.int64).sort().values, drafted):
        raise CheckpointError("d2t holds target ids, going by t2d; expected offsets (target id minus row): convert it")
    raise CheckpointError(
        f"d2t names {len(target_ids)} target tokens, t2d {len(drafted)}, and they are not the same ones; "
        "take both from one checkpoint"
    )
