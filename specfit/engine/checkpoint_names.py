"""Which stored tensors make up each parameter of a model, by the renamings and conversions the library itself applies.

Checkpoints of one family come in several layouts: a tensor for each expert or one for all, `block_sparse_moe` or `mlp`,
w1/w3/w2 or gate/up/down, interleaved or transposed. Transformers keeps a table of rules for every family it reads; they
are taken from there, so whatever the library loads is understood here. Only the reading differs: tensor by tensor, and
an expert at a time, where the library stacks whole layers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

from specfit.engine.checkpoint_files import Checkpoint, CheckpointError

PLAIN = ("F64", "F32", "F16", "BF16", "I64", "I32", "BOOL")
UNNEEDED = re.compile(r"(^|\.)(mtp(\.|_)|rotary_emb\.|(original_)?inv_freq$|masked_bias$)")
EXPERT = re.compile(r"experts\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class Run:
    """Numbers that lie side by side in a stored tensor."""

    name: str
    start: int  # first number
    count: int


Runs = tuple[tuple[int, ...], list[int]]  # shape of an expert's part, and which stored tensors follow each other in it


@dataclass(slots=True)
class Stored:
    """The stored tensors behind one parameter, or behind several where the library cuts one up."""

    parameter: str  # the parameter they make, the first of several
    names: dict[str, list[str]] = field(default_factory=dict)  # source pattern -> stored names, experts ascending
    converter: WeightConverter | None = None  # None where one stored tensor is the parameter

    def read(self, checkpoint: Checkpoint, model: PreTrainedModel) -> dict[str, Tensor]:
        """The whole parameter, by name, on the CPU in the stored dtype."""
        if self.converter is None:
            return {self.parameter: checkpoint.read_tensor(self._only_name())}
        return self._convert(
            {
                pattern: [(name, checkpoint.read_tensor(name)) for name in names]
                for pattern, names in self.names.items()
            },
            model,
        )

    def read_expert(self, checkpoint: Checkpoint, model: PreTrainedModel, expert: int) -> Tensor:
        """One expert's part of an experts parameter; nothing else is read."""
        if self.converter is None:
            return checkpoint.read_part(self._only_name(), expert)
        parts = {}
        for pattern, names in self.names.items():
            if EXPERT.search(names[0]):
                parts[pattern] = [(names[expert], checkpoint.read_tensor(names[expert]))]
            else:
                parts[pattern] = [(names[0], checkpoint.read_part(names[0], expert).unsqueeze(0))]
        return self._convert(parts, model)[self.parameter][0]

    def expert_runs(
        self, checkpoint: Checkpoint, model: PreTrainedModel, expert: int, known: dict[Any, Runs]
    ) -> tuple[tuple[int, ...], list[Run]]:
        """Shape of one expert's part, and where its numbers lie in the file, one stored tensor after the other.

        The library's own conversion says so, once for tensors of the same kind (kept in `known`): it is given the
        numbers 0, 1, 2, ... in place of weights. Raises CheckpointError where it changes their order within a tensor.
        """
        parts = []  # (pattern, stored name, first number, shape)
        for pattern, names in self.names.items():
            single = EXPERT.search(names[0]) is not None
            name = names[expert] if single else names[0]
            shape = checkpoint.tensors[name].shape
            parts.append(
                (pattern, name, 0, shape) if single else (pattern, name, expert * math.prod(shape[1:]), shape[1:])
            )
        key = tuple((pattern, shape) for pattern, _, _, shape in parts)
        if key not in known:
            known[key] = self._place(parts, model)
        shape, order = known[key]
        runs = [Run(parts[part][1], parts[part][2], math.prod(parts[part][3])) for part in order]
        return shape, runs

    def _place(self, parts: list[tuple[str, str, int, tuple[int, ...]]], model: PreTrainedModel) -> Runs:
        sizes = [math.prod(shape) for _, _, _, shape in parts]
        starts = [sum(sizes[:part]) for part in range(len(parts))]
        numbers = {
            pattern: torch.arange(start, start + size).reshape(shape)
            for (pattern, _, _, shape), start, size in zip(parts, starts, sizes, strict=True)
        }
        placed = numbers[parts[0][0]]
        if self.converter is not None:
            given = {
                pattern: [(name, numbers[pattern] if EXPERT.search(name) else numbers[pattern].unsqueeze(0))]
                for pattern, name, _, _ in parts
            }
            placed = self._convert(given, model)[self.parameter][0]
        flat, order = placed.reshape(-1), list[int]()
        while len(rest := flat[sum(sizes[part] for part in order) :]):
            part = starts.index(int(rest[0])) if int(rest[0]) in starts else -1
            if part < 0 or not torch.equal(rest[: sizes[part]], torch.arange(starts[part], starts[part] + sizes[part])):
                raise CheckpointError(
                    f"{self.parameter} is stored in another order than it is used in (transposed or interleaved), so "
                    'it cannot stay in its file; leave experts="mapped" out'
                )
            order.append(part)
        return tuple(placed.shape), order

    def count_experts(self, checkpoint: Checkpoint) -> int:
        """How many experts an experts parameter has in the file.

        Raises CheckpointError for one that lacks a part: an expert between others, or gate without up.
        """
        counts = {}
        for pattern, names in self.names.items():
            numbers = [int(match[1]) for name in names if (match := EXPERT.search(name))]
            counts[pattern] = len(numbers) or checkpoint.tensors[names[0]].shape[0]
            gap = next((place for place, number in enumerate(numbers) if place != number), None)
            if gap is not None:
                missing = EXPERT.sub(f"experts.{gap}.", names[gap])
                raise CheckpointError(f"{missing} is missing; its shard was not fetched whole, so fetch it again")
        most = max(counts.values())
        for pattern in self.converter.source_patterns if self.converter else ():
            if counts.get(pattern, 0) < most:
                raise CheckpointError(
                    f"{self.parameter} lacks {pattern.replace('*', str(counts.get(pattern, 0)))} of {most} experts; "
                    "its shard was not fetched whole, so fetch it again"
                )
        return most

    def _only_name(self) -> str:
        (names,) = self.names.values()
        return names[0]

    def _convert(self, parts: dict[str, list[tuple[str, Tensor]]], model: PreTrainedModel) -> dict[str, Tensor]:
        assert self.converter is not None
        self.converter.collected_tensors.clear()  # one converter serves every parameter of its kind in turn
        self.converter.layer_targets.clear()
        for pattern, tensors in parts.items():
            for name, tensor in tensors:
                self.converter.add_tensor(self.parameter, name, pattern, tensor)
        try:
            made = self.converter.convert(self.parameter, model=model, config=model.config)
        except Exception as error:  # the library's operations raise whatever a wrong shape leads them to
            name = next(iter(parts.values()))[0][0]
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise CheckpointError(f"{name} and its like do not make up {self.parameter} ({reason})") from error
        return {name: tensor[0] if isinstance(tensor, list) else tensor for name, tensor in made.items()}


@dataclass(frozen=True, slots=True)
class NameTable:
    """Every parameter and saved buffer of a model that the checkpoint holds."""

    stored: dict[str, Stored]  # by parameter
    unneeded: tuple[str, ...]  # stored names that inference does not use


def name_table(checkpoint: Checkpoint, model: PreTrainedModel) -> NameTable:
    """Match a checkpoint's tensors with a model's. Raises CheckpointError for a tensor that the model has no place for.

    Also for tensors in a packed dtype, and for a parameter that is stored twice in two ways.
    """
    rules = get_model_conversion_mapping(model)
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    by_pattern = {pattern: rule for rule in converters for pattern in rule.source_patterns}
    wanted = model.state_dict()
    prefix = model.base_model_prefix
    stored: dict[str, Stored] = {}
    unneeded: list[str] = []
    for name in sorted(checkpoint.tensors, key=_natural):
        target, pattern = rename_source_key(name, renamings, converters, prefix, wanted)
        if target not in wanted and name in wanted:
            target, pattern = name, None
        if target not in wanted:
            if not _may_be_left(name, target, model):
                raise CheckpointError(
                    f"the checkpoint holds {name}, which a {model.config.model_type} does not have{_why(name)}"
                )
            unneeded.append(name)
            continue
        if checkpoint.tensors[name].dtype not in PLAIN:
            raise CheckpointError(
                f"{name} is stored as {checkpoint.tensors[name].dtype}; take the unquantized checkpoint"
            )
        found = stored.setdefault(target, Stored(target, {}, by_pattern[pattern] if pattern else None))
        if found.names and (pattern is None or found.converter is None):
            other = next(iter(found.names.values()))[0]
            raise CheckpointError(f"{other} and {name} are both {target}; keep the one this model was trained with")
        found.names.setdefault(pattern or "", []).append(name)
    return NameTable(stored, tuple(unneeded))


def count_unneeded(names: Iterable[str]) -> dict[str, int]:
    """Tensors that were left out, by the kind of name: {"mtp.*": 9}."""
    counts: dict[str, int] = {}
    for name in names:
        kind = "mtp.*" if "mtp" in name else re.sub(r"^(.*layers\.\d+)\..*$", r"\1.*", name)
        kind = "rotary inv_freq" if name.endswith("inv_freq") else kind
        counts[kind] = counts.get(kind, 0) + 1
    return counts


def check_finite(name: str, values: Tensor) -> None:
    if values.is_floating_point() and not torch.isfinite(values).all():
        raise CheckpointError(f"{name} holds NaN or infinite weights; fetch its file again")


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort key with numbers by value: experts.10 after experts.9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in name.split(".")]


def _may_be_left(name: str, target: str, model: PreTrainedModel) -> bool:
    """Multi-token-prediction layers, rotary tables (rebuilt here), and what the library itself leaves aside."""
    if UNNEEDED.search(name):
        return True
    layer = re.search(r"(?:^|\.)layers\.(\d+)\.", target)
    if layer and int(layer[1]) >= model.config.num_hidden_layers:
        return True
    ignored = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()
    return any(re.search(pattern, target) for pattern in ignored)


def _why(name: str) -> str:
    if re.search(r"scale|zero|qweight|blocks|packed", name):
        return "; it is part of a quantized checkpoint, so take the unquantized one"
    return ", so it is of another model"
