"""A world: all that decoding a set of prompts can ask of a drafter, a target and its routers, recorded once.

The pool at a position depends on the committed prefix alone, and the greedy text is the same for every policy. So one
pass over the prompts that keeps, at every position of the greedy text, the full pool with its path probabilities, the
experts of the root and of every node, and the target's next token after each of them, lets `specfit.replay` follow any
policy, cache size and modelled clock without a model. An atlas is a world without probabilities and prefills.

Expert ids are kept in the order in which the router names them, because the expert cache sees them in that order.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from specfit.embedded import world_folder
from specfit.objective import CycleState
from specfit.routes import Routes, bitmaps_from_indices
from specfit.safe_files import parse_json, replace_file
from specfit.tree import DraftPool

FORMAT, VERSION = "specfit world", 1
SHIPPED = {path.stem: path for path in sorted(world_folder().glob("*.npz"))}  # recorded worlds of the embedded pair


class WorldError(ValueError):
    """A world file, or what is asked of a world, is not as it must be: one sentence for the person in front of it."""


@dataclass(frozen=True, slots=True)
class Position:
    """One position of a greedy text: the full pool and what the target does with it; row 0 is the root, row 1 + v v."""

    pool: DraftPool  # n nodes
    indices: NDArray[np.integer]  # (1 + n, layers, top_k) expert ids, in router order
    next_tokens: tuple[int, ...]  # (1 + n,) the target's own next token after the root, then after each node
    _kept: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)  # what was worked out once

    @property
    def levels(self) -> tuple[DraftPool, ...]:
        """The pool after each drafted level, as the drafter yields it."""
        if "levels" not in self._kept:
            ends = [end for end in range(1, len(self.pool) + 1) if self._ends_level(end)]
            self._kept["levels"] = tuple(self.pool.prefix(end) for end in ends[:-1]) + (self.pool,) * bool(ends)
        return self._kept["levels"]

    def routes(self, experts: int) -> Routes:
        """True routes of the root and all nodes."""
        if "routes" not in self._kept:
            self._kept["routes"] = routes_of(self.indices, experts=experts)
        return self._kept["routes"]

    def _ends_level(self, end: int) -> bool:
        depths = self.pool.depths
        return end == len(depths) or depths[end] > depths[end - 1]


@dataclass(frozen=True, slots=True)
class WorldPrompt:
    """One prompt with its greedy text; position i belongs to the cycle whose root is output[i]."""

    request_id: str
    question_id: int | str
    category: str
    prompt: tuple[int, ...]  # token ids
    output: tuple[int, ...]  # token ids, with EOS if it came
    output_text: str
    limit: int  # new tokens that the prompt was given at most
    prefill: tuple[tuple[int, ...], ...]  # for each layer the distinct experts that the prompt used, last used last
    positions: tuple[Position, ...]  # (len(output) - 1,)
    extra: Mapping[str, Any] = field(default_factory=dict)  # JSON values, e.g. the reference answer


@dataclass(frozen=True, slots=True)
class World:
    """Recorded prompts in the order in which they are decoded. Raises WorldError for none, or parts that disagree."""

    workload: str
    prompts: tuple[WorldPrompt, ...]
    layers: int
    experts: int  # of the widest layer
    layer_experts: tuple[int, ...]  # (layers,) experts of each
    eos: frozenset[int]
    made_with: Mapping[str, Any]  # what pools and routes depend on: target, drafter, draft, dtype, questions
    tokens: Mapping[int, str] = field(default_factory=dict)  # text of every token that occurs
    skipped: Mapping[str, str] = field(default_factory=dict)  # request id -> why it could not be recorded

    def __post_init__(self) -> None:
        if not self.prompts:
            raise WorldError(f"the world of {self.workload!r} holds no prompts; record it with at least one")
        if len(self.layer_experts) != self.layers or max(self.layer_experts, default=0) != self.experts:
            raise WorldError(f"a world of {self.layers} layers x {self.experts} experts names {self.layer_experts}")
        for prompt in self.prompts:
            self._check_prompt(prompt)

    def __repr__(self) -> str:
        return (
            f"<World {self.workload}: {len(self.prompts)} prompts, {self.positions} positions, "
            f"{self.layers} layers x {self.experts} experts>"
        )

    @property
    def positions(self) -> int:
        """Positions of all prompts together."""
        return sum(len(prompt.positions) for prompt in self.prompts)

    def states(self) -> Iterator[CycleState]:
        """The state at every position with its full pool and true routes, in order."""
        for prompt in self.prompts:
            for position in prompt.positions:
                yield CycleState(position.pool, position.routes(self.experts))

    def first(self, count: int) -> World:
        """The world of the first `count` prompts."""
        if not 1 <= count <= len(self.prompts):
            raise WorldError(f"{count} prompts were asked of a world of {len(self.prompts)}; ask for 1 or more of them")
        return self._with(self.prompts[:count])

    def check(self, settings: Mapping[str, Any]) -> None:
        """WorldError, naming what differs, unless it was made with these settings (`Engine.route_settings`)."""
        differing = [key for key, value in settings.items() if self.made_with.get(key) != value]
        if differing:
            found = "; ".join(f"{key}: {self.made_with.get(key)} then, {settings[key]} now" for key in differing)
            raise WorldError(f"the world is stale ({found}); record it again with the present settings")

    def save(self, path: str | Path) -> None:
        """Write one .npz file, without pickle; `load` gives an equal world."""
        positions = [position for prompt in self.prompts for position in prompt.positions]
        pools = [position.pool for position in positions]
        about = {
            "format": FORMAT,
            "version": VERSION,
            "workload": self.workload,
            "layer_experts": self.layer_experts,
            "eos": sorted(self.eos),
            "made_with": dict(self.made_with),
            "tokens": {str(token): text for token, text in self.tokens.items()},
            "skipped": dict(self.skipped),
            "prompts": [
                {
                    "request_id": prompt.request_id,
                    "question_id": prompt.question_id,
                    "category": prompt.category,
                    "output_text": prompt.output_text,
                    "limit": prompt.limit,
                    "extra": dict(prompt.extra),
                }
                for prompt in self.prompts
            ],
        }
        lengths = [[len(p.prompt), len(p.output), len(p.positions), *map(len, p.prefill)] for p in self.prompts]
        narrow = np.uint8 if self.experts <= 256 else np.uint16
        used = [np.asarray(ids, dtype=narrow) for prompt in self.prompts for ids in prompt.prefill]
        nothing = np.zeros((0, self.layers, 0), dtype=narrow)
        file = BytesIO()
        np.savez_compressed(
            file,
            about=np.array(json.dumps(about)),
            lengths=np.array(lengths, dtype=np.int64),
            text=np.array([x for p in self.prompts for x in p.prompt + p.output], dtype=np.int64),
            prefill=np.concatenate(used) if used else np.zeros(0, dtype=narrow),
            nodes=np.array([len(pool) for pool in pools], dtype=np.int64),
            tokens=np.array([x for pool in pools for x in pool.tokens], dtype=np.int64),
            parents=np.array([x for pool in pools for x in pool.parents], dtype=np.int64),
            path_probs=np.array([x for pool in pools for x in pool.path_probs], dtype=np.float64),
            next_tokens=np.array([x for position in positions for x in position.next_tokens], dtype=np.int64),
            indices=np.concatenate([p.indices.astype(narrow) for p in positions]) if positions else nothing,
        )
        replace_file(Path(path), file.getvalue())

    @classmethod
    def load(cls, path: str | Path) -> World:
        """Read what `save` wrote; WorldError for a file that is no world, or one of another version."""
        try:
            with Path(path).open("rb") as raw, np.load(raw, allow_pickle=False) as file:
                data = {name: file[name] for name in file.files}
            about = parse_json(str(data["about"]))
            if about.get("format") != FORMAT:
                raise WorldError("it does not call itself one")
            if about["version"] != VERSION:
                raise WorldError(f"it has version {about['version']}, and this specfit reads {VERSION}")
            return _unpack(about, data)
        except (OSError, ValueError, KeyError, EOFError, TypeError, AttributeError, IndexError) as error:
            why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise WorldError(f"{path} is no world ({why}); record one with `specfit record`") from error
        except (BadZipFile, zlib.error, NotImplementedError) as error:
            raise WorldError(
                f"{path} is no world, or a torn one ({error}); record one with `specfit record`"
            ) from error

    def _with(self, prompts: Sequence[WorldPrompt]) -> World:
        fixed = (self.layers, self.experts, self.layer_experts, self.eos, self.made_with, self.tokens, self.skipped)
        return World(self.workload, tuple(prompts), *fixed)

    def _check_prompt(self, prompt: WorldPrompt) -> None:
        """That the parts of a prompt fit together: its text is the target's own, and every expert exists."""
        name = f"prompt {prompt.request_id!r}"
        if not prompt.prompt or not prompt.output or len(prompt.positions) != len(prompt.output) - 1:
            raise WorldError(
                f"{name} has {len(prompt.prompt)} tokens, {len(prompt.output)} output tokens and "
                f"{len(prompt.positions)} positions; expected a position for each output token but the last"
            )
        if len(prompt.prefill) != self.layers:
            raise WorldError(f"{name} has the experts of {len(prompt.prefill)} layers' prefill; expected {self.layers}")
        for layer, (used, experts) in enumerate(zip(prompt.prefill, self.layer_experts, strict=True)):
            if not used or not 0 <= min(used) <= max(used) < experts or len(set(used)) < len(used):
                raise WorldError(f"{name} names wrong experts in layer {layer}'s prefill; ids are 0..{experts - 1}")
        most = np.array(self.layer_experts)[:, None]
        for at, position in enumerate(prompt.positions):
            rows, indices = 1 + len(position.pool), position.indices
            if indices.ndim != 3 or indices.shape[:2] != (rows, self.layers) or len(position.next_tokens) != rows:
                raise WorldError(f"position {at} of {name} has routes of shape {indices.shape} for {rows} rows")
            if indices.size and not (indices.min() >= 0 and (indices < most).all()):
                raise WorldError(f"position {at} of {name} names an expert that its layer does not have")
            if position.next_tokens[0] != prompt.output[at + 1]:
                raise WorldError(f"position {at} of {name} predicts another token than the one that follows")


def embedded_world(name: str) -> World:
    """A recorded world that ships with the package.

    "problems" and "news" are the first 30 test questions of the embedded workloads; "calibration" holds prompts of the
    split kept for tuning, 6 of each kind.
    """
    if name not in SHIPPED:
        raise WorldError(f"no world {name!r} ships with the package; choose one of {', '.join(SHIPPED)}")
    return World.load(SHIPPED[name])


def check_same_models(world: World, target: str, drafter: str) -> None:
    """WorldError for a world, on which something is tuned, of another target or drafter than is used with it.

    A checkpoint's folder may be given by any path, so its name decides; "embedded" names the embedded pair's.
    """
    for kind, here in (("target", target), ("drafter", drafter)):
        there = str(world.made_with.get(kind))
        if Path(there).name != Path(here).name:
            raise WorldError(
                f"it was recorded with {kind} {there!r}, and what it shall serve has {here!r}; what is tuned on one "
                "model says nothing of another, so record other prompts with this one (`specfit record`)"
            )


def routes_of(indices: NDArray[np.integer], *, experts: int) -> Routes:
    """Routes of a root and its nodes, (1 + n, layers, top_k), the root first."""
    root, *nodes = bitmaps_from_indices(indices, experts=experts)
    return Routes(root, tuple(nodes), indices.shape[1], experts)


def _unpack(about: Mapping[str, Any], data: Mapping[str, NDArray]) -> World:
    layers = len(about["layer_experts"])
    text, used, nodes = _Reader(data["text"]), _Reader(data["prefill"]), _Reader(data["nodes"])
    columns = [_Reader(data[name]) for name in ("tokens", "parents", "path_probs")]
    after, rows = _Reader(data["next_tokens"]), _Reader(data["indices"], arrays=True)
    prompts = []
    for told, lengths in zip(about["prompts"], data["lengths"].tolist(), strict=True):
        prompt, output, count, *widths = lengths
        words, answer = text.take(prompt), text.take(output)
        prefill = tuple(used.take(width) for width in widths)
        positions = []
        for size in nodes.take(count):
            pool = DraftPool(*(column.take(size) for column in columns))
            positions.append(Position(pool, rows.take(1 + size), after.take(1 + size)))
        prompts.append(WorldPrompt(prompt=words, output=answer, prefill=prefill, positions=tuple(positions), **told))
    for reader in (text, used, nodes, *columns, after, rows):
        reader.finish()
    return World(
        workload=about["workload"],
        prompts=tuple(prompts),
        layers=layers,
        experts=max(about["layer_experts"], default=0),
        layer_experts=tuple(about["layer_experts"]),
        eos=frozenset(about["eos"]),
        made_with=about["made_with"],
        tokens={int(token): text for token, text in about["tokens"].items()},
        skipped=about["skipped"],
    )


class _Reader:
    """Takes a column apart from its beginning; as tuples of Python values, or as arrays."""

    def __init__(self, column: NDArray, *, arrays: bool = False) -> None:
        self._values: Any = column if arrays else column.tolist()
        self._arrays, self._at = arrays, 0

    def take(self, count: int) -> Any:
        start, self._at = self._at, self._at + count
        if count < 0 or self._at > len(self._values):
            raise WorldError("its columns are shorter than it says")
        part = self._values[start : self._at]
        return part if self._arrays else tuple(part)

    def finish(self) -> None:
        if self._at != len(self._values):
            raise WorldError("its columns are longer than it says")
