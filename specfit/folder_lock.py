"""One writer per folder: a lock that the operating system frees when its holder dies, however it dies.

The file stays in the folder and says who holds it (process id, since when); the lock itself is the system's, so a
killed writer leaves nothing to clear up and two newcomers cannot both take over.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from io import FileIO
from pathlib import Path

from specfit.safe_files import parse_json

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

FAR = 1 << 30  # Windows locks bytes against reading too, so the locked byte lies far behind the text


class FolderLock:
    """Holds the lock file at `path` from construction to `release`.

    Raises BlockingIOError, whose text names the holder, while another holder lives; OSError where files cannot be
    locked.
    """

    def __init__(self, path: Path) -> None:
        self._file = open(path, "a+b", buffering=0)  # noqa: SIM115 - held open on purpose
        try:
            _take(self._file)
        except (BlockingIOError, PermissionError):
            self._file.close()
            raise BlockingIOError(holder(path)) from None
        except BaseException:
            self._file.close()
            raise
        try:
            self._file.truncate(0)
            since = datetime.now().astimezone().isoformat(timespec="seconds")
            self._file.write(json.dumps({"pid": os.getpid(), "since": since}).encode())
        except BaseException:
            self._file.close()
            raise

    def release(self) -> None:
        """Free the lock; a second call does nothing."""
        self._file.close()  # closing frees it


@contextmanager
def folder_locked(folder: Path, in_use: Callable[[str], Exception]) -> Iterator[FolderLock]:
    """Take a folder's lock, to be kept past the block; what fails inside the block frees it again.

    in_use: makes the error for a folder that somebody else holds, from words for who that is.
    """
    try:
        lock = FolderLock(folder / "lock")
    except BlockingIOError as error:
        raise in_use(str(error)) from None
    try:
        yield lock
    except BaseException:
        lock.release()
        raise


def holder(path: Path) -> str:
    """Who wrote the lock file last, in words."""
    try:
        who = parse_json(path.read_bytes())
        return f"process {who['pid']}, since {who['since']}"
    except (OSError, ValueError, KeyError, TypeError):  # it has taken the lock and not yet signed it
        return "another process"


def _take(file: FileIO) -> None:
    if sys.platform == "win32":
        file.seek(FAR)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
