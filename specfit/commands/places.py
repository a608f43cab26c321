"""Where a command writes: folders of runs and files, refused early, and nothing left behind by what fails."""

from __future__ import annotations

import argparse
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile

from specfit.safe_files import new_folder


@contextmanager
def run_folder(options: argparse.Namespace, title: str) -> Iterator[Path]:
    """--out, or a new folder below ./runs; an error leaves none that is empty."""
    with no_empty_folders(options.out or Path("runs")) as folder:
        if options.out is not None:
            yield folder
            return
        with no_empty_folders(new_folder(folder, title), ours=True) as folder:
            yield folder


@contextmanager
def output_file(path: Path, *, new: bool = True) -> Iterator[None]:
    """Make the folder of a file that is to be written at the end. Refused before anything takes long: a folder in its
    place, and with `new` a file."""
    if path.is_dir():
        raise ValueError(f"--out {path} is a folder; give the name of a file")
    if new and path.exists():
        raise ValueError(f"{path} is there already; give another --out, or move it away")
    with no_empty_folders(path.parent):
        with TemporaryFile(dir=path.parent):  # a folder that takes no files says so now
            pass
        yield


@contextmanager
def no_empty_folders(folder: Path, *, ours: bool = False) -> Iterator[Path]:
    """Make a folder; after an error, what was made (or is `ours`) and still is empty goes again."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
        yield folder
    except BaseException:
        for path in made or [folder] * ours:  # the deepest first
            with suppress(OSError):
                path.rmdir()
        raise


def publish(text: str, markdown: str, folder: Path) -> None:
    """Print a report and leave it in the folder too."""
    (folder / "report.md").write_text(markdown, encoding="utf-8")
    print(f"\n{text}\n{folder}")
