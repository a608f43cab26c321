"""Files that a crash cannot spoil, names that every file system takes, and disk errors in one sentence."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from io import FileIO
from pathlib import Path
from typing import Any

PLAIN_NAME = re.compile(r"[a-z0-9][a-z0-9_]*(-[a-z0-9_]+)*")
RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)")  # device names on Windows, whatever follows a dot
HASHED = re.compile(r".*-[0-9a-f]{10}")
WHY = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "a limit on file sizes is reached",
    errno.EROFS: "the disk is read-only",
    errno.EACCES: "permission is denied",
    errno.ENOLCK: "files cannot be locked there",
    errno.ENOTSUP: "files cannot be locked there",
}


def safe_name(text: str, *, limit: int = 60) -> str:
    """A file or folder name for `text`: lower-case letters, digits, "-" and "_", at most `limit` (>= 20) characters.

    A text that is such a name already stays; any other gets a hash of the whole text at its end, so different texts
    get different names even where only case, length or forbidden characters tell them apart.
    """
    plain = PLAIN_NAME.fullmatch(text) and not RESERVED.fullmatch(text) and not HASHED.fullmatch(text)
    if plain and len(text) <= limit:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:10]
    slug = re.sub(r"[^a-z0-9_]+", "-", text.lower()).strip("-_")[: limit - 11].rstrip("-_")
    return f"{slug}-{digest}" if slug else f"x-{digest}"


def new_folder(parent: str | Path, title: str) -> Path:
    """Make a folder in `parent` that did not exist: the title, the time, and a number if two start in one second."""
    stem = f"{safe_name(title)}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    Path(parent).mkdir(parents=True, exist_ok=True)
    count = 1
    while True:
        folder = Path(parent) / (stem if count == 1 else f"{stem}-{count}")
        try:
            folder.mkdir()
            return folder
        except FileExistsError:
            count += 1


def write_all(file: FileIO, data: bytes) -> None:
    """Write every byte or raise: an unbuffered file may take only a part, as when the disk fills up."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def replace_file(path: Path, data: bytes) -> None:
    """Write a whole file so that there is either the old one or the new one, also after a power cut."""
    beside = path.with_name(path.name + ".new")
    try:
        with open(beside, "wb", buffering=0) as file:
            write_all(file, data)
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:  # a full disk: give the room back, and say which file it was
        with suppress(OSError):
            beside.unlink()
        error.filename = error.filename or str(path)
        raise
    if os.name == "posix":
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def parse_json(text: str | bytes, **how: Any) -> Any:
    """`json.loads`; ValueError for anything that it does not take, also for what is nested too deeply for it."""
    try:
        return json.loads(text, **how)
    except RecursionError:
        raise ValueError("it is nested too deeply to be read") from None


def reason(error: OSError) -> str:
    """Why, without the file's name."""
    return WHY.get(error.errno or 0) or error.strerror or str(error)


def disk_problem(error: OSError) -> str:
    """Why a disk operation failed, in words."""
    why = reason(error)
    return f"{why} ({Path(os.fsdecode(error.filename)).name})" if error.filename else why


@contextmanager
def disk_errors(kind: type[Exception], doing: str, then: str) -> Iterator[None]:
    """Turn an OSError of the block into `kind` with one sentence: what failed, why, and what `then` holds."""
    try:
        yield
    except OSError as error:
        raise kind(f"{doing} failed: {disk_problem(error)}; {then}") from error
