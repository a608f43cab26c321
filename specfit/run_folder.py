"""A run folder: everything one run leaves behind, safe against a kill at any moment, readable without us.

    run.json        format version, layers, experts, settings, machine; written once
    requests.jsonl  one line per finished request; a request counts only when its line is there
    cycles.jsonl    one line per cycle, in the order of the requests; written before the request's line
    routes.bin      rows of ceil(layers * experts / 8) bytes, little bit order; cycles name the rows they use
    failures.jsonl  one line per request that could not be done, with the reason
    expert_cache.json  what the expert caches held after the last request (`specfit.kept_cache`)
    sessions.jsonl  one line per time the run was opened for writing: when, and on which machine
    complete.json   how many requests the finished run has; missing or another number: the run was cut short
    lock            who is writing

`RunWriter` writes or resumes one, `load_run` gives the same records back, `save_run` stores a run held in memory. Only
whole requests survive a kill: on resuming, what follows the last request's line is cut away (a torn last line is kept
in requests.torn) and the request is done again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from specfit.folder_lock import FolderLock, folder_locked
from specfit.record_lines import RunError, cycle_line, json_line, plain, request_line
from specfit.records import RequestRecord, RunRecord
from specfit.routes import Routes, pack_bitmaps
from specfit.run_reading import (
    FORMAT,
    differences,
    in_words,
    load_failures,
    load_run,
    of_the_run,
    read_header,
    row_bytes,
    scan,
)
from specfit.safe_files import new_folder, replace_file, safe_name, write_all

__all__ = ["RunError", "RunWriter", "load_failures", "load_run", "new_folder", "safe_name", "save_run"]

DATA_FILES = ("routes.bin", "cycles.jsonl", "requests.jsonl")  # in the order in which a request is written
BEFORE_A_RUN = {"lock", "run.json.new"}  # what a writer killed while creating a run may leave


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
        self._finished: dict[str, None] = {}
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
        with in_words(folder, "opening the run"):
            _check_usable(folder)
            folder.mkdir(parents=True, exist_ok=True)
            with folder_locked(folder, lambda by: _in_use(folder, by)) as lock:
                writer = cls(folder, lock, layers=layers, experts=experts)
                try:
                    writer._start(header)
                except BaseException:
                    writer.close()  # the files that it has opened, too
                    raise
        return writer

    @property
    def finished(self) -> tuple[str, ...]:
        """Ids of the requests that the folder holds, in order."""
        return tuple(self._finished)

    def append(self, request: RequestRecord, *, tokens: Mapping[int, str] | None = None) -> None:
        """Store a finished request; when this returns, it survives a kill or a power cut.

        tokens: texts of token ids that occur in it; the first text of an id stays.
        Raises RunError for a request that is already there or holds what JSON cannot, and, after closing the run with
        its finished requests intact, when the disk takes no more.
        """
        if not self._files:
            raise RunError(
                f"the run in {self.folder} is closed; open it again to append request {request.request_id!r}"
            )
        if request.request_id in self._finished:
            raise RunError(f"request {request.request_id!r} is already in {self.folder}; skip the ids in `finished`")
        new_tokens = {token: text for token, text in (tokens or {}).items() if token not in self._known_tokens}
        rows: dict[int, int] = {}  # bitmap -> row; equal bitmaps of a request share one
        lines: list[bytes] = []
        for cycle in request.cycles:
            for routes in (cycle.estimate, cycle.truth.routes if cycle.truth else None, cycle.verified):
                self._check_shape(routes, request.request_id, cycle.index)
            lines.append(cycle_line(request.request_id, cycle, lambda b: rows.setdefault(b, self._rows + len(rows))))
        line = request_line(request, route_rows=len(rows), tokens=new_tokens)
        packed = pack_bitmaps(list(rows), layers=self._layers, experts=self._experts).tobytes()
        with in_words(self.folder, f"saving request {request.request_id!r}", kept=len(self._finished)):
            sizes = {name: os.fstat(file.fileno()).st_size for name, file in self._files.items()}
            try:
                for name, data in zip(DATA_FILES, (packed, b"".join(lines), line), strict=True):
                    write_all(self._files[name], data)
                    os.fsync(self._files[name].fileno())
                self._rows += len(rows)
                self._known_tokens.update(new_tokens)
                self._finished[request.request_id] = None
            except BaseException:  # a full disk, Ctrl-C: give the room back; where even that fails, `open` does it
                with suppress(OSError):
                    for name in reversed(DATA_FILES):
                        self._files[name].truncate(sizes[name])
                self._finished.pop(request.request_id, None)
                self.close()
                raise

    def append_failure(self, request_id: str, reason: str) -> None:
        """Note that a request could not be done; it is not finished, so a resumed run tries it again."""
        failure = {"request_id": request_id, "reason": reason, "at": _now()}
        self._append_line("failures.jsonl", failure, f"noting the failure of request {request_id!r}")

    def finish(self) -> None:
        """Mark the run complete and close it."""
        mark = json_line({"requests": len(self._finished)}, "complete.json")
        with in_words(self.folder, "marking the run complete", kept=len(self._finished)):
            if self._files:
                replace_file(self.folder / "complete.json", mark)
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
            first = read_header(self.folder)
            _check_same(self.folder, first, header)
            self._note_machine(first["machine"], header["machine"])
        else:
            for name in DATA_FILES:
                (self.folder / name).touch()
            replace_file(self.folder / "run.json", json.dumps(header, indent=1, allow_nan=False).encode() + b"\n")
        found = scan(self.folder, header)
        self._finished = {line["request_id"]: None for line in found.lines}
        self._known_tokens = {int(token) for line in found.lines for token in line["token_texts"]}
        self._rows = found.rows
        if found.torn:
            with open(self.folder / "requests.torn", "ab") as torn:
                torn.write(found.torn + b"\n")
        sizes = (found.rows * row_bytes(header), found.cycles_size, found.requests_size)
        for name, size in zip(DATA_FILES, sizes, strict=True):
            os.truncate(self.folder / name, size)
            self._files[name] = open(self.folder / name, "ab", buffering=0)  # noqa: SIM115 - closed by `close`
        if found.unended:
            write_all(self._files["requests.jsonl"], b"\n")
        self._append_line("sessions.jsonl", {"opened": _now(), "machine": header["machine"]}, "opening the run")

    def _append_line(self, name: str, line: Mapping[str, Any], doing: str) -> None:
        with in_words(self.folder, doing, kept=len(self._finished)), open(self.folder / name, "ab", 0) as file:
            write_all(file, json_line(line, doing))

    def _check_shape(self, routes: Routes | None, request_id: str, cycle: int) -> None:
        if routes is not None and (routes.layers, routes.experts) != (self._layers, self._experts):
            raise RunError(
                f"cycle {cycle} of request {request_id!r} has routes over {routes.layers} layers of {routes.experts} "
                f"experts; this run is about {self._layers} of {self._experts}"
            )

    def _note_machine(self, first: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        changes = differences(of_the_run(first), of_the_run(now))
        if changes:
            what = "; ".join(changes)
            self.notes += (
                f"this run began on another machine or with other versions ({what}), so its times may differ",
            )


def save_run(folder: str | Path, run: RunRecord) -> None:
    """Write a run held in memory to a new folder (or the rest of it to a folder that holds its beginning)."""
    writer = RunWriter.open(folder, settings=run.settings, machine=run.machine, layers=run.layers, experts=run.experts)
    try:
        for request in run.requests:
            if request.request_id not in writer.finished:
                writer.append(request, tokens=run.tokens)
        if run.complete:
            writer.finish()
    finally:
        writer.close()


def _now() -> str:
    """The time with its offset; durations are measured elsewhere, with a clock that cannot jump."""
    return datetime.now().astimezone().isoformat(timespec="milliseconds")


# -- may this run go on here? ----------------------------------------------------------------------------------------


def _in_use(folder: Path, by: str) -> RunError:
    return RunError(f"{folder} is being written by {by}; let it finish, stop it, or choose another folder")


def _check_usable(folder: Path) -> None:
    """RunError unless the folder is new, empty, or a run (also one killed while it was being created)."""
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file; a run needs a folder of its own")
    if not folder.exists() or (folder / "run.json").exists():
        return
    for path in sorted(folder.iterdir()):
        if path.name not in BEFORE_A_RUN and not (path.name in DATA_FILES and path.stat().st_size == 0):
            raise RunError(f"{folder} is no run but holds {path.name!r}; choose a new or an empty folder")


def _check_same(folder: Path, first: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """RunError that names every setting in which a resumed run differs."""
    changes = differences(
        {"layers": first["layers"], "experts": first["experts"], **of_the_run(first["settings"])},
        {"layers": now["layers"], "experts": now["experts"], **of_the_run(now["settings"])},
    )
    if changes:
        raise RunError(
            f"{folder} holds a run of another configuration ({'; '.join(changes)}); "
            "choose another folder, or give it the same settings to resume it"
        )
