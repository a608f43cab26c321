"""A run folder: everything one run leaves behind, safe against a kill at any moment, readable without us.

    run.json        format version, layers, experts, settings, machine; written once
    requests.jsonl  one line per finished request; a request counts only when its line is there
    cycles.jsonl    one line per cycle, in the order of the requests; written before the request's line
    routes.bin      rows of ceil(layers * experts / 8) bytes, little bit order; cycles name the rows they use
    sessions.jsonl  one line per time the run was opened for writing: when, and on which machine
    complete.json   how many requests the finished run has; missing or another number: the run was cut short
    lock            who is writing

`RunWriter` writes or resumes one, `load_run` gives the same records back, `save_run` stores a run held in memory. Only
whole requests survive a kill: on resuming, what follows the last request's line is cut away (a torn last line is kept
in requests.torn) and the request is done again.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from specfit.folder_lock import FolderLock
from specfit.record_lines import (
    RunError,
    cycle_from_line,
    cycle_line,
    json_line,
    plain,
    request_from_line,
    request_line,
)
from specfit.records import RequestRecord, RunRecord
from specfit.routes import Routes, pack_bitmaps, unpack_bitmaps

__all__ = ["RunError", "RunWriter", "load_run", "save_run"]

FORMAT = {"format": "specfit-run", "version": 1}
DATA_FILES = ("routes.bin", "cycles.jsonl", "requests.jsonl")  # in the order in which a request is written
BEFORE_A_RUN = {"lock", "run.json.new"}  # what a writer killed while creating a run may leave
OF_A_SESSION = {"start", "started", "start_time", "date", "machine", "pid"}  # may differ when a run is resumed


class RunWriter:
    """Appends finished requests to a run folder; `RunWriter.open` creates or resumes one.

    As a context manager it marks the run complete when the block ends without an exception; `close` alone never does.
    """

    def __init__(self, folder: Path, lock: FolderLock, *, layers: int, experts: int) -> None:
        """Use `RunWriter.open`."""
        self.folder = folder
        self.notes: tuple[str, ...] = ()  # what the person should know about this session, a sentence each
        self._layers, self._experts = layers, experts
        self._lock = lock
        self._files: dict[str, FileIO] = {}
        self._finished: list[str] = []
        self._known_tokens: set[int] = set()
        self._rows = 0

    @classmethod
    def open(
        cls,
        folder: str | Path,
        *,
        settings: Mapping[str, Any],
        machine: Mapping[str, Any],
        layers: int,
        experts: int,
    ) -> Self:
        """A writer for a new or empty folder, or for one that already holds this very run.

        settings: what makes the run this run, with at least "method"; a resumed run must have the same, apart from
        start times. machine: where it runs; a change is noted in `notes` and in the folder, not refused.
        Raises RunError for a folder that holds another configuration, something else, or another writer's lock.
        """
        folder = Path(folder)
        if layers < 1 or experts < 1:
            raise RunError(f"a run has at least one MoE layer and one expert; got {layers} layers of {experts} experts")
        if "method" not in settings:
            raise RunError(f"the settings of a run name its method; got only {sorted(settings)}")
        header = FORMAT | {
            "layers": layers,
            "experts": experts,
            "settings": plain(settings, "settings"),
            "machine": plain(machine, "machine"),
        }
        with _in_words(folder, "opening the run"):
            _check_usable(folder)
            folder.mkdir(parents=True, exist_ok=True)
            try:
                lock = FolderLock(folder / "lock")
            except BlockingIOError as error:
                raise RunError(
                    f"{folder} is being written by {error}; let it finish, stop it, or choose another folder"
                ) from None
            writer = cls(folder, lock, layers=layers, experts=experts)
            try:
                writer._start(header)
            except BaseException:
                writer.close()
                raise
        return writer

    @property
    def finished(self) -> tuple[str, ...]:
        """Ids of the requests that the folder holds, in order."""
        return tuple(self._finished)

    def append(self, request: RequestRecord, *, tokens: Mapping[int, str] | None = None) -> None:
        """Store a finished request; when this returns, it survives a kill or a power cut.

        tokens: texts of token ids that occur in it; the first text of an id stays.
        Raises RunError, and leaves the folder as it was, for a request that is already there or cannot be stored.
        """
        if not self._files:
            raise RunError(f"the run in {self.folder} is closed; open it again to append request {request.request_id!r}")
        if request.request_id in self._finished:
            raise RunError(f"request {request.request_id!r} is already in {self.folder}; skip the ids in `finished`")
        new_tokens = {token: text for token, text in (tokens or {}).items() if token not in self._known_tokens}
        rows: dict[int, int] = {}  # bitmap -> row; equal bitmaps of a request share one
        cycles = b""
        for cycle in request.cycles:
            for routes in (cycle.estimate, cycle.truth and cycle.truth.routes, cycle.verified):
                self._check_shape(routes, request.request_id, cycle.index)
            cycles += cycle_line(request.request_id, cycle, lambda b: rows.setdefault(b, self._rows + len(rows)))
        line = request_line(request, route_rows=len(rows), tokens=new_tokens)
        packed = pack_bitmaps(list(rows), layers=self._layers, experts=self._experts).tobytes()
        with _in_words(self.folder, f"saving request {request.request_id!r}", kept=len(self._finished)):
            self._write(dict(zip(DATA_FILES, (packed, cycles, line), strict=True)))
        self._rows += len(rows)
        self._known_tokens.update(new_tokens)
        self._finished.append(request.request_id)

    def finish(self) -> None:
        """Mark the run complete and close it."""
        with _in_words(self.folder, "marking the run complete", kept=len(self._finished)):
            if self._files:
                _replace(self.folder / "complete.json", json_line({"requests": len(self._finished)}, "complete.json"))
        self.close()

    def close(self) -> None:
        """Let go of the folder; the run can be resumed. A second call does nothing."""
        for file in self._files.values():
            file.close()
        self._files = {}
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()
        else:
            self.close()

    def _start(self, header: dict[str, Any]) -> None:
        """Create the run's files, or cut an existing run back to its last finished request."""
        if (self.folder / "run.json").exists():
            first = _read_header(self.folder)
            _check_same(self.folder, first, header)
            self._note_machine(first["machine"], header["machine"])
        else:
            for name in DATA_FILES:
                (self.folder / name).touch()
            _replace(self.folder / "run.json", json.dumps(header, indent=1, allow_nan=False).encode() + b"\n")
        found = _scan(self.folder, header)
        self._finished = [line["request_id"] for line in found.lines]
        self._known_tokens = {int(token) for line in found.lines for token in line["token_texts"]}
        self._rows = found.rows
        if found.torn:
            with open(self.folder / "requests.torn", "ab") as torn:
                torn.write(found.torn + b"\n")
        sizes = (found.rows * _row_bytes(header), found.cycles_size, found.requests_size)
        for name, size in zip(DATA_FILES, sizes, strict=True):
            os.truncate(self.folder / name, size)
            self._files[name] = open(self.folder / name, "ab", buffering=0)  # noqa: SIM115 - closed by `close`
        if found.unended:
            _write_all(self._files["requests.jsonl"], b"\n")
        with open(self.folder / "sessions.jsonl", "ab", buffering=0) as sessions:
            opened = datetime.now().astimezone().isoformat(timespec="milliseconds")
            _write_all(sessions, json_line({"opened": opened, "machine": header["machine"]}, "session"))

    def _write(self, parts: Mapping[str, bytes]) -> None:
        """Append to each file and flush it to the disk, in order; whatever goes wrong, the files end as they began."""
        sizes = {name: os.fstat(self._files[name].fileno()).st_size for name in parts}
        try:
            for name, data in parts.items():
                _write_all(self._files[name], data)
                os.fsync(self._files[name].fileno())
        except BaseException:
            try:
                for name, size in reversed(sizes.items()):
                    self._files[name].truncate(size)
            except OSError:
                self.close()  # the next `open` cuts the rest away
            raise

    def _check_shape(self, routes: Routes | None, request_id: str, cycle: int) -> None:
        if routes is not None and (routes.layers, routes.experts) != (self._layers, self._experts):
            raise RunError(
                f"cycle {cycle} of request {request_id!r} has routes over {routes.layers} layers of {routes.experts} "
                f"experts; this run is about {self._layers} of {self._experts}"
            )

    def _note_machine(self, first: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        changes = _differences(_without_session(first), _without_session(now))
        if changes:
            self.notes += (f"this run began on another machine ({'; '.join(changes)}); its times are not comparable",)


def load_run(folder: str | Path) -> RunRecord:
    """The run in a folder; `complete` is False for one cut short or still being written.

    Raises RunError for a folder that is no run or of another format version, or for damage (names file and line).
    """
    folder = Path(folder)
    with _in_words(folder, "reading the run"):
        header = _read_header(folder)
        found = _scan(folder, header)
        width, layers, experts = _row_bytes(header), header["layers"], header["experts"]
        packed = np.fromfile(folder / "routes.bin", np.uint8, count=found.rows * width).reshape(-1, width)
        bitmaps = unpack_bitmaps(packed)
        data = (folder / "cycles.jsonl").read_bytes()[: found.cycles_size]
    lines = enumerate(data.split(b"\n")[:-1], start=1)
    requests, tokens = [], {}
    for number, line in enumerate(found.lines, start=1):
        cycles = []
        for index in range(line["cycles"]):
            at, raw = next(lines)
            with _at_line(folder / "cycles.jsonl", at):
                cycle = json.loads(raw)
                if (cycle["request_id"], cycle["index"]) != (line["request_id"], index):
                    raise ValueError(f"expected cycle {index} of request {line['request_id']!r}")
                cycles.append(cycle_from_line(cycle, bitmaps, layers=layers, experts=experts))
        with _at_line(folder / "requests.jsonl", number):
            requests.append(request_from_line(line, cycles))
            tokens.update({int(token): text for token, text in line["token_texts"].items()})
    return RunRecord(
        settings=header["settings"],
        machine=header["machine"],
        requests=tuple(requests),
        layers=layers,
        experts=experts,
        tokens=tokens,
        complete=_marked_complete(folder, len(requests)),
    )


def save_run(folder: str | Path, run: RunRecord) -> None:
    """Write a run held in memory to a new folder (or the rest of it to a folder that holds its beginning)."""
    writer = RunWriter.open(
        folder, settings=run.settings, machine=run.machine, layers=run.layers, experts=run.experts
    )
    try:
        for request in run.requests:
            if request.request_id not in writer.finished:
                writer.append(request, tokens=run.tokens)
        if run.complete:
            writer.finish()
    finally:
        writer.close()
