"""A recording that takes long, kept question by question, so that a stop or a kill costs one question at most.

    FILE.part/asked.json   what is being recorded: models, draft, questions, limits
    FILE.part/00007.npz    the eighth question, finished: a small world
    FILE.part/lock         who is recording

The folder lies beside the file that it is for, and goes when that is written, or when it ends up holding nothing.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from specfit.folder_lock import FolderLock, folder_locked
from specfit.run_reading import differences
from specfit.safe_files import disk_errors, parse_json, replace_file
from specfit.world import World


class RecordingError(ValueError):
    """A half-made recording is not as it must be: one sentence for the person in front of it."""


class HalfMade:
    """The finished questions of a recording that is to become `file`; locked from `with` to its end.

    asked: JSON values that decide what is recorded; those of an earlier, unfinished recording must be the same.
    Raises RecordingError, naming what differs, for a half-made recording of something else, and for one in use.
    """

    def __init__(self, file: Path, asked: Mapping[str, Any]) -> None:
        self.file = file
        self.folder = file.with_name(file.name + ".part")
        self._asked = json.loads(json.dumps(asked))  # tuples as the file gives them back
        self._lock: FolderLock | None = None

    def __enter__(self) -> Self:
        if self.folder.exists() and not self.folder.is_dir():
            raise RecordingError(f"{self.folder} is a file, where the finished questions of {self.file.name} are kept")
        with self._in_words("beginning"):
            self.folder.mkdir(parents=True, exist_ok=True)
            with folder_locked(self.folder, self._in_use) as self._lock:
                self._check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._lock is not None
        done = kind is None or not any(self.folder.glob("*.npz"))
        if done:  # while it is locked: what a newcomer begins afterwards is its own
            shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.release()
        if done and sys.platform == "win32":  # which removes no open file, so the lock is still there
            with suppress(OSError):
                (self.folder / "lock").unlink()
                self.folder.rmdir()

    def _in_use(self, by: str) -> RecordingError:
        return RecordingError(f"{self.file} is being recorded by {by}; let it finish, stop it, or name another file")

    def load(self, number: int) -> World | None:
        """A finished question."""
        path = self._path(number)
        return World.load(path) if path.exists() else None

    def keep(self, number: int, world: World) -> None:
        """Store a finished question; when this returns, it survives a kill or a power cut."""
        with self._in_words(f"keeping question {number + 1} of {self.file.name}"):
            world.save(self._path(number))

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:05d}.npz"

    def _check(self) -> None:
        path = self.folder / "asked.json"
        if not path.exists():
            replace_file(path, json.dumps(self._asked, indent=1).encode() + b"\n")
            return
        try:
            there = parse_json(path.read_bytes())
        except ValueError as error:
            raise RecordingError(f"{path} is damaged ({error}); remove {self.folder} to record anew") from None
        changes = differences(there, self._asked)
        if changes:
            raise RecordingError(
                f"{self.folder} holds a half-made recording with other settings ({'; '.join(changes)}); finish it with "
                "the command that began it, or remove that folder to record anew"
            )

    def _in_words(self, doing: str) -> Any:
        then = "what is finished is kept; mend that and give the same command to go on"
        return disk_errors(RecordingError, f"{doing} in {self.folder}", then)
