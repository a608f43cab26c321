"""The route atlas: routes of the full candidate pool at every position of the reference text (Section 3.3).

Recorded beforehand with the target itself, outside every request timer. During a run each cycle's prefix and pool are
checked against it; a mismatch is an error that names both. Turning the stored expert ids into bitmaps happens inside
the timer, once a cycle. Besides routes an atlas holds the target's own next token at every node, so what any other
subtree would have committed is known.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from specfit.engine.greedy_walk import walk_greedily
from specfit.records import Truth
from specfit.routes import Routes, bitmaps_from_indices, noise_stream, noisy_indices
from specfit.safe_files import parse_json, replace_file
from specfit.tree import DraftPool
from specfit.world import World, WorldPrompt

if TYPE_CHECKING:
    from specfit.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class AtlasEntry:
    """One position: the full pool and what the target does with it; row 0 is the root, row 1 + v is node v."""

    tokens: tuple[int, ...]  # (n,)
    parents: tuple[int, ...]  # (n,)
    indices: NDArray[np.integer]  # (1 + n, layers, top_k) expert ids
    next_tokens: tuple[int, ...]  # (1 + n,)


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One prompt's reference text; entry i belongs to the cycle whose root is output[i]."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    entries: tuple[AtlasEntry, ...]


class Atlas:
    """Routes by prefix and pool. Calling it makes it a route source; `truth` makes it a truth source."""

    def __init__(self, trajectories: Iterable[Trajectory], *, experts: int, made_with: dict | None = None) -> None:
        self.trajectories = tuple(trajectories)
        self.experts = experts
        self.made_with = dict(made_with or {})  # settings that change routes or pools: target, drafter, draft
        self._current: Trajectory | None = None
        self._bitmaps: tuple[AtlasEntry | None, list[int]] = (None, [])

    def __call__(self, context: Sequence[int], pool: DraftPool) -> Routes:
        """Estimated routes of the pool after `context` (prompt and output, the root last)."""
        entry = self._entry(context, pool)
        if self._bitmaps[0] is not entry:
            self._bitmaps = entry, bitmaps_from_indices(entry.indices, experts=self.experts)
        root, *nodes = self._bitmaps[1]
        return Routes(root, tuple(nodes[: len(pool)]), entry.indices.shape[1], self.experts)

    def truth(self, context: Sequence[int], pool: DraftPool) -> Truth:
        """True routes of the pool and the target's next token at the root and at every node."""
        return Truth(self(context, pool), self._entry(context, pool).next_tokens[: 1 + len(pool)])

    def noisy(self, accuracy: float, *, seed: int = 0) -> Atlas:
        """A route source of the given accuracy (Section 4.6); the same seed gives the same noise in any order."""

        def disturb(trajectory: Trajectory) -> Trajectory:
            entries = []
            for position, entry in enumerate(trajectory.entries):
                rng = noise_stream(seed, trajectory.prompt, position)
                noise = noisy_indices(entry.indices, experts=self.experts, accuracy=accuracy, rng=rng)
                entries.append(AtlasEntry(entry.tokens, entry.parents, noise, entry.next_tokens))
            return Trajectory(trajectory.prompt, trajectory.output, tuple(entries))

        return Atlas(map(disturb, self.trajectories), experts=self.experts, made_with=self.made_with)

    @classmethod
    def of_world(cls, world: World) -> Atlas:
        """What a world says of routes, as an atlas for a live engine."""
        return cls(map(trajectory_of, world.prompts), experts=world.experts, made_with=dict(world.made_with))

    def check(self, settings: dict) -> None:
        """ValueError, naming what differs, unless the atlas was made with these settings (`Engine.route_settings`)."""
        differing = [key for key, value in settings.items() if self.made_with.get(key, value) != value]
        if differing:
            found = "; ".join(f"{key}: {self.made_with[key]} then, {settings[key]} now" for key in differing)
            raise ValueError(f"the atlas is stale ({found}); record it again with the present settings")

    def _entry(self, context: Sequence[int], pool: DraftPool) -> AtlasEntry:
        if self._current is None or not _lies_on(self._current, context):
            self._current = next((t for t in self.trajectories if _lies_on(t, context)), None)
        if self._current is None:
            raise ValueError(self._no_prefix(context))
        position = len(context) - len(self._current.prompt) - 1
        entry = self._current.entries[position]
        count = len(pool)
        if entry.tokens[:count] != pool.tokens or entry.parents[:count] != pool.parents:
            raise ValueError(_wrong_pool(entry, pool, len(context)))
        return entry

    def _no_prefix(self, context: Sequence[int]) -> str:
        given = f"the atlas has no entry for this prefix of {len(context)} tokens (it ends {list(context[-4:])})"
        for trajectory in self.trajectories:
            text = trajectory.prompt + trajectory.output
            if trajectory.prompt == tuple(context[: len(trajectory.prompt)]):
                both = enumerate(zip(text, context, strict=False))
                at = next((i for i, (a, b) in both if a != b), min(len(text), len(context)))
                if at >= min(len(text), len(context)):
                    return (
                        f"{given}: the recorded reference text ends after {len(text)} tokens and this run goes on; "
                        "record the atlas again, with a limit at least as long"
                    )
                return (
                    f"{given}: at position {at} the recorded reference text has token {text[at]} and this run has "
                    f"token {context[at]}; record the atlas again, with this target"
                )
        return f"{given}: its prompt is none of the {len(self.trajectories)} recorded ones; record it for this workload"

    def save(self, path: str | Path) -> None:
        """Write one .npz file, without pickle."""
        entries = [entry for trajectory in self.trajectories for entry in trajectory.entries]
        lengths = [[len(t.prompt), len(t.output), len(t.entries)] for t in self.trajectories]
        file = BytesIO()
        np.savez_compressed(
            file,
            about=np.array(json.dumps({"experts": self.experts, "made_with": self.made_with})),
            lengths=np.array(lengths, dtype=np.int64).reshape(-1, 3),
            text=np.array([x for t in self.trajectories for x in t.prompt + t.output], dtype=np.int64),
            nodes=np.array([len(entry.tokens) for entry in entries], dtype=np.int64),
            tokens=np.array([x for entry in entries for x in entry.tokens], dtype=np.int64),
            parents=np.array([x for entry in entries for x in entry.parents], dtype=np.int64),
            next_tokens=np.array([x for entry in entries for x in entry.next_tokens], dtype=np.int64),
            indices=np.concatenate([entry.indices for entry in entries]) if entries else np.zeros((0, 0, 0)),
        )
        replace_file(Path(path), file.getvalue())  # a killed run leaves the old atlas or none, never half of one

    @classmethod
    def load(cls, path: str | Path) -> Atlas:
        """Read what `save` wrote; ValueError for a file that is no atlas."""
        try:
            with Path(path).open("rb") as raw, np.load(raw, allow_pickle=False) as file:
                data = {name: file[name] for name in file.files}
            about = parse_json(str(data["about"]))
            return cls(_unpack(data), experts=about["experts"], made_with=about["made_with"])
        except (OSError, ValueError, KeyError, EOFError, TypeError, BadZipFile, zlib.error) as error:
            raise ValueError(f"{path} is no atlas ({error}); record one with `specfit atlas`") from error


def record_atlas(
    engine: Engine,
    prompts: Iterable[Sequence[int]],
    *,
    max_new_tokens: int,
    progress: Callable[[int], None] = lambda done: None,
) -> Atlas:
    """The atlas of some prompts.

    Every position is recorded, so it serves any policy, cost and cache; an engine with all experts resident records
    fastest, and an emulated link is not waited for. `progress` is told the number of finished prompts.
    """
    trajectories = []
    for prompt in prompts:
        trajectories.append(record_trajectory(engine, prompt, max_new_tokens=max_new_tokens))
        progress(len(trajectories))
    return Atlas(trajectories, experts=engine.experts, made_with=engine.route_settings)


def record_trajectory(engine: Engine, prompt: Sequence[int], *, max_new_tokens: int) -> Trajectory:
    """Decode one prompt greedily, one token a step, and query the target over the full pool at every position."""
    walk = walk_greedily(engine, prompt, max_new_tokens=max_new_tokens)
    entries = (AtlasEntry(s.pool.tokens, s.pool.parents, s.indices, s.next_tokens) for s in walk.steps)
    return Trajectory(tuple(prompt), walk.output, tuple(entries))


def trajectory_of(prompt: WorldPrompt) -> Trajectory:
    """What a world's prompt says of routes."""
    entries = [
        AtlasEntry(at.pool.tokens, at.pool.parents, at.indices.astype(np.int16, copy=False), at.next_tokens)
        for at in prompt.positions
    ]
    return Trajectory(prompt.prompt, prompt.output, tuple(entries))


def _lies_on(trajectory: Trajectory, context: Sequence[int]) -> bool:
    start = len(trajectory.prompt)
    position = len(context) - start - 1
    return (
        0 <= position < len(trajectory.entries)
        and tuple(context[:start]) == trajectory.prompt
        and tuple(context[start:]) == trajectory.output[: position + 1]
    )


def _wrong_pool(entry: AtlasEntry, pool: DraftPool, length: int) -> str:
    for node in range(len(pool)):
        here = f"token {pool.tokens[node]} under {pool.parents[node]}"
        if node >= len(entry.tokens):
            there = "no such node"
        else:
            there = f"token {entry.tokens[node]} under {entry.parents[node]}"
        if here != there:
            break
    return (
        f"the pool drafted after {length} tokens is not the atlas's: node {node} is {here} in this run and {there} in "
        "the atlas; it was recorded with another drafter or draft setting, so record it again"
    )


def _unpack(data: dict[str, NDArray]) -> Iterable[Trajectory]:
    text, nodes = data["text"].tolist(), data["nodes"].tolist()
    tokens, parents, after = (data[name].tolist() for name in ("tokens", "parents", "next_tokens"))
    at_text = at_entry = at_node = at_row = 0
    for prompt, output, count in data["lengths"].tolist():
        entries = []
        for size in nodes[at_entry : at_entry + count]:
            entries.append(
                AtlasEntry(
                    tuple(tokens[at_node : at_node + size]),
                    tuple(parents[at_node : at_node + size]),
                    data["indices"][at_row : at_row + 1 + size],
                    tuple(after[at_row : at_row + 1 + size]),
                )
            )
            at_node, at_row = at_node + size, at_row + 1 + size
        at_entry += count
        middle, end = at_text + prompt, at_text + prompt + output
        yield Trajectory(tuple(text[at_text:middle]), tuple(text[middle:end]), tuple(entries))
        at_text = end
