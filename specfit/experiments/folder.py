"""An experiment's folder: what was asked for, what failed, and who is working in it.

experiment.json   what the file asked for, checked and written out; it must stay the same, or only grow
experiment.toml   the file itself
atlas-*.npz       routes of each workload; calibration-*.json: cost coefficients of each cache
tuning.npz        the world on which methods are tuned, where one needs that
CELL/             a run folder for every cell (`specfit.run_folder`)
failures.jsonl    one line per job that failed as a whole, with its reason
lock              who is working here
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from specfit.experiments.asked import Experiment
from specfit.experiments.by_name import TRAINED
from specfit.experiments.plan import plan_cells
from specfit.experiments.toml_values import ExperimentError
from specfit.experiments.tuning import TUNED
from specfit.folder_lock import FolderLock, folder_locked
from specfit.machine import now
from specfit.record_lines import json_line
from specfit.run_reading import differences
from specfit.safe_files import disk_errors, parse_json, replace_file, write_all

FORMAT = {"format": "specfit-experiment", "version": 1}
MAY_GROW = ("slots", "methods", "routes", "seeds", "workloads")  # more of these are new cells; the old ones stand
FAILURES = "failures.jsonl"
INCOMING, OUTGOING = ".incoming", ".outgoing"  # runs that come from elsewhere, and those whose place they take


class ExperimentFolder:
    """The folder of one experiment, locked from `with` to its end."""

    def __init__(self, folder: Path, experiment: Experiment) -> None:
        self.folder, self._experiment = folder, experiment
        self._lock: FolderLock | None = None

    def __enter__(self) -> Self:
        """Raises ExperimentError for a folder that holds another experiment or something else, or is in use."""
        with self._in_words("opening the experiment"):
            if self.folder.exists() and not self.folder.is_dir():
                raise ExperimentError(f"{self.folder} is a file; an experiment needs a folder")
            self.check()
            self.folder.mkdir(parents=True, exist_ok=True)
            with folder_locked(self.folder, self._in_use) as self._lock:
                self.check()  # again: another process may have written it while we waited for nothing
                self._put_back()
                self._write_down()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lock is not None:
            self._lock.release()

    def _in_use(self, by: str) -> ExperimentError:
        return ExperimentError(
            f"{self.folder} is being worked on by {by}; let it finish, stop it, or give another --out"
        )

    def check(self) -> None:
        """ExperimentError, naming what changed, unless the folder is new or holds this experiment, or a part of it."""
        if not self.folder.is_dir():
            return
        if not (self.folder / "experiment.json").exists():
            strange = sorted(path.name for path in self.folder.iterdir() if path.name not in BEFORE)
            if strange:
                raise ExperimentError(
                    f"{self.folder} is no experiment but holds {strange[0]!r}; give a new or an empty folder (--out)"
                )
            return
        there, here = asked_for(self.folder), self._experiment.describe()
        changes = [*differences(_fixed(there, here), _fixed(here, there)), *_taken_away(there, here)]
        if changes:
            raise ExperimentError(
                f"{self.folder} holds another experiment: {'; '.join(changes)}. Give another --out, or put the file "
                f"back as it was; only more {', '.join(MAY_GROW)} may be added to a folder"
            )

    @property
    def added(self) -> list[str]:
        """What this file asks for beyond what the folder was made for, in words."""
        if not (self.folder / "experiment.json").exists():
            return []
        there, here = asked_for(self.folder), self._experiment.describe()
        found = {key: [str(item) for item in here[key] if item not in there[key]] for key in MAY_GROW}
        return [f"{key}: {', '.join(items)}" for key, items in found.items() if items]

    def note_failure(self, what: str, reason: str) -> None:
        """Note that a job failed as a whole."""
        with self._in_words("noting a failure"), open(self.folder / FAILURES, "ab", 0) as file:
            write_all(file, json_line({"what": what, "reason": reason, "at": now()}, "a failure"))

    def store(self, files: Mapping[str, bytes]) -> None:
        """Write the files of a job that was done elsewhere; of a run folder they are all. Killed at any moment, the
        folder holds the old run or the new one."""
        with self._in_words("storing a job's results"):
            incoming, outgoing = self.folder / INCOMING, self.folder / OUTGOING
            shutil.rmtree(incoming, ignore_errors=True)
            outgoing.mkdir(exist_ok=True)
            for name, data in files.items():
                path = incoming / name
                path.parent.mkdir(parents=True, exist_ok=True)
                replace_file(path, data)
            for path in sorted(incoming.iterdir()) if files else []:
                there = self.folder / path.name
                if there.is_dir():  # the unfinished run that this one goes on with
                    there.replace(outgoing / path.name)
                path.replace(there)
            self._put_back()

    def _put_back(self) -> None:
        """Bring back a run that a kill caught on its way out, and clear away what else such a kill has left."""
        outgoing = self.folder / OUTGOING
        for path in sorted(outgoing.iterdir()) if outgoing.is_dir() else []:
            if not (self.folder / path.name).exists():
                path.replace(self.folder / path.name)
        shutil.rmtree(outgoing, ignore_errors=True)
        shutil.rmtree(self.folder / INCOMING, ignore_errors=True)

    def _write_down(self) -> None:
        cells = [cell.name for cell in plan_cells(self._experiment)]
        values = FORMAT | {"asked": self._experiment.describe(), "cells": cells}
        for name, data in (
            ("experiment.toml", self._experiment.source.encode()),
            ("experiment.json", json.dumps(values, indent=1, allow_nan=False).encode() + b"\n"),
        ):
            path = self.folder / name
            if not path.exists() or path.read_bytes() != data:
                replace_file(path, data)

    def _in_words(self, doing: str) -> AbstractContextManager[None]:
        then = "what is finished is kept; mend that and give the same command to go on"
        return disk_errors(ExperimentError, f"{doing} in {self.folder}", then)


BEFORE = {"lock", "experiment.toml", "experiment.toml.new", "experiment.json.new"}  # what a killed beginner may leave


def asked_for(folder: Path) -> dict[str, Any]:
    """What an experiment's folder was made for; ExperimentError where it holds none."""
    path = folder / "experiment.json"
    try:
        values = parse_json(path.read_bytes())
        kind, version, asked = values["format"], values["version"], values["asked"]
    except (OSError, ValueError, KeyError, TypeError):
        raise ExperimentError(f"{folder} holds no experiment (experiment.json is missing or damaged)") from None
    if {"format": kind, "version": version} != FORMAT or not isinstance(asked, dict):
        raise ExperimentError(f"{path} has format {kind!r} {version!r}; this specfit reads {FORMAT}")
    return asked


def planned_cells(folder: Path) -> list[str]:
    """The names of all cells that the folder was made for."""
    asked_for(folder)  # checks the file
    return [str(name) for name in parse_json((folder / "experiment.json").read_bytes()).get("cells", ())]


def is_experiment(folder: Path) -> bool:
    """Whether a folder is an experiment's."""
    return (folder / "experiment.json").is_file()


def job_failures(folder: Path) -> dict[str, str]:
    """The last reason of every job that failed as a whole; those that succeeded since are still among them."""
    found: dict[str, str] = {}
    path = folder / FAILURES
    for raw in path.read_bytes().split(b"\n") if path.exists() else []:
        try:
            line = parse_json(raw)
            found[str(line["what"])] = str(line["reason"])
        except (ValueError, KeyError, TypeError):  # a torn last line is only a note
            continue
    return found


def _taken_away(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """What the folder was made for and the file no longer asks for, in words."""
    gone = {key: [str(item) for item in there.get(key, ()) if item not in here[key]] for key in MAY_GROW}
    return [f"{key}: {', '.join(items)} only there" for key, items in gone.items() if items]


def _fixed(asked: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """`asked` without what may grow; of the workloads, those that both have."""
    fixed = {key: value for key, value in asked.items() if key not in MAY_GROW}
    if not all(set(TRAINED) & set(file.get("routes", ())) for file in (asked, other)):
        fixed.pop("head", None)  # a file without such routes may name none, and may ask for them later
    if not all(set(TUNED) & set(file.get("methods", ())) for file in (asked, other)):
        fixed.pop("tuning", None)
    interleaved = asked.get("order") == "interleaved" or other.get("order") == "interleaved"
    for key in MAY_GROW:
        mine, theirs = asked.get(key), other.get(key)
        if key == "workloads" and isinstance(mine, dict) and isinstance(theirs, dict):
            fixed[key] = {name: value for name, value in mine.items() if name in theirs}
        elif interleaved and key in ("methods", "routes"):
            fixed[key] = mine  # they take turns, so one more changes when the others run
    return fixed
