"""Reading a run folder (`specfit.run_folder` says what is in one): what counts, what is torn, what is damaged.

A torn last line is what a kill leaves and is passed over; anything else that is not as written is refused with the
file and the line, because a run with a hole in it would quietly give wrong means.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specfit.record_lines import RunError, cycle_from_line, request_from_line
from specfit.records import RunRecord
from specfit.routes import unpack_bitmaps
from specfit.safe_files import disk_errors, parse_json

FORMAT = {"format": "specfit-run", "version": 1}
OF_A_SESSION = {"started", "start_time", "machine", "pid"}  # may differ when a run is resumed


def load_run(folder: str | Path) -> RunRecord:
    """The run in a folder; `complete` is False for one cut short or still being written.

    Raises RunError for a folder that is no run or of another format version, or for damage (names file and line).
    """
    folder = Path(folder)
    with disk_errors(RunError, f"reading the run in {folder}", "restore the file from a copy, or run again elsewhere"):
        header = read_header(folder)
        found = scan(folder, header)
        width, layers, experts = row_bytes(header), header["layers"], header["experts"]
        packed = np.fromfile(folder / "routes.bin", np.uint8, count=found.rows * width).reshape(-1, width)
        bitmaps = unpack_bitmaps(packed)
        others = _other_machines(folder, header["machine"])
        data = (folder / "cycles.jsonl").read_bytes()[: found.cycles_size]
    lines = enumerate(data.split(b"\n")[:-1], start=1)
    requests, tokens = [], {}
    for number, line in enumerate(found.lines, start=1):
        cycles = []
        for index in range(line["cycles"]):
            at, raw = next(lines)
            with _at_line(folder / "cycles.jsonl", at):
                cycle = _json(raw)
                if (cycle["request_id"], cycle["index"]) != (line["request_id"], index):
                    raise ValueError(f"expected cycle {index} of request {line['request_id']!r}")
                cycles.append(cycle_from_line(cycle, bitmaps, layers=layers, experts=experts))
        with _at_line(folder / "requests.jsonl", number):
            requests.append(request_from_line(line, cycles))
            tokens.update({int(token): text for token, text in line["token_texts"].items()})
    return RunRecord(
        settings=header["settings"],
        machine=header["machine"] | ({"other_machines": others} if others else {}),
        requests=tuple(requests),
        layers=layers,
        experts=experts,
        tokens=tokens,
        complete=is_marked_complete(folder, len(requests)),
    )


def load_failures(folder: str | Path) -> dict[str, str]:
    """Requests that failed and were not finished since, with the reason of the last failure."""
    folder = Path(folder)
    path = folder / "failures.jsonl"
    finished = {line["request_id"] for line in scan(folder, read_header(folder)).lines}
    failures = _lines_that_parse(path, "request_id", "reason")
    return {line["request_id"]: line["reason"] for line in failures if line["request_id"] not in finished}


def load_sessions(folder: str | Path) -> list[str]:
    """When the run was opened for writing, each time: ISO 8601 with the offset."""
    return [str(line["opened"]) for line in _lines_that_parse(Path(folder) / "sessions.jsonl", "opened")]


@dataclass(frozen=True, slots=True)
class Found:
    """What of a folder counts: its request lines, and how much of each file belongs to them."""

    lines: list[dict[str, Any]]  # requests.jsonl
    rows: int  # of routes.bin
    cycles_size: int  # bytes of cycles.jsonl
    requests_size: int  # bytes of requests.jsonl, without a torn last line
    torn: bytes  # the torn last line
    unended: bool  # the last line is whole but its newline is missing


def scan(folder: Path, header: Mapping[str, Any]) -> Found:
    """Find the finished requests; RunError where files hold less than those say, or a line before the last is bad."""
    path = folder / "requests.jsonl"
    data = path.read_bytes()
    *whole, tail = data.split(b"\n")
    lines: list[dict[str, Any]] = []
    for number, raw in enumerate(whole, start=1):
        with _at_line(path, number):
            lines.append(_parse(raw))
    try:
        lines += [_parse(tail)] if tail else []
        torn = b""
    except ValueError:
        torn = tail
    seen: set[str] = set()
    cycles = rows = 0
    for number, line in enumerate(lines, start=1):
        with _at_line(path, number):
            if line["request_id"] in seen:
                raise ValueError(f"request {line['request_id']!r} is there already")
            seen.add(line["request_id"])
            cycles, rows = cycles + line["cycles"], rows + line["route_rows"]
    if (folder / "routes.bin").stat().st_size < rows * row_bytes(header):
        raise _damaged(folder / "routes.bin", f"it ends before row {rows}, which a finished request needs")
    return Found(
        lines, rows, _end_of_line(folder / "cycles.jsonl", cycles), len(data) - len(torn), torn, bool(tail and not torn)
    )


def _parse(raw: bytes) -> dict[str, Any]:
    """A request's line; ValueError for anything else."""
    line = _json(raw)
    if not {"request_id", "cycles", "route_rows", "token_texts"} <= set(line):
        raise ValueError("it is no request")
    return line


def _json(raw: bytes) -> dict[str, Any]:
    """An object of strict JSON; ValueError for anything else."""

    def refuse(name: str) -> None:
        raise ValueError(f"it holds {name}, which is not JSON")

    line = parse_json(raw.decode("utf-8"), parse_constant=refuse)
    if not isinstance(line, dict):
        raise ValueError("it is no JSON object")
    return line


def _lines_that_parse(path: Path, *keys: str) -> list[dict[str, Any]]:
    """The lines of a file of notes that are whole; notes are never worth stopping for."""
    found = []
    for raw in path.read_bytes().split(b"\n") if path.exists() else []:
        with suppress(ValueError):
            line = _json(raw)
            if set(keys) <= set(line):
                found.append(line)
    return found


def _end_of_line(path: Path, count: int) -> int:
    """Bytes of the first `count` lines."""
    data, end = path.read_bytes(), 0
    for line in range(count):
        end = data.find(b"\n", end) + 1
        if not end:
            raise _damaged(path, f"it has {line} lines and the finished requests need {count}")
    return end


def read_header(folder: Path) -> dict[str, Any]:
    """run.json, checked."""
    path = folder / "run.json"
    if not path.exists():
        what = "has no run.json" if folder.is_dir() else "is a file" if folder.exists() else "does not exist"
        raise RunError(f"{folder} is no run folder: it {what}; give the folder that `specfit run` wrote")
    try:
        header = _json(path.read_bytes())
        kind, version = header["format"], header["version"]
    except (ValueError, KeyError):
        raise _damaged(path, "it is no run header") from None
    if kind != FORMAT["format"]:
        raise RunError(f"{folder} holds {kind!r}, not {FORMAT['format']!r}; give the folder that `specfit run` wrote")
    if version != FORMAT["version"]:
        raise RunError(
            f"{folder} holds records of format version {version}; this specfit reads version {FORMAT['version']}, "
            "so open it with the specfit that wrote it"
        )
    kinds = {"layers": int, "experts": int, "settings": dict, "machine": dict}
    if not all(isinstance(header.get(name), kind) for name, kind in kinds.items()):
        raise _damaged(path, "layers, experts, settings or machine is missing, or of another kind")
    return header


def row_bytes(header: Mapping[str, Any]) -> int:
    """Bytes of one row of routes.bin."""
    return (int(header["layers"]) * int(header["experts"]) + 7) // 8


def _other_machines(folder: Path, first: Mapping[str, Any]) -> list[Any]:
    """Machines of later sessions that differ from the first one's."""
    others: list[Any] = []
    for session in _lines_that_parse(folder / "sessions.jsonl", "machine"):
        machine = session["machine"]
        if differences(of_the_run(first), of_the_run(machine)) and machine not in others:
            others.append(machine)
    return others


def is_marked_complete(folder: Path, requests: int) -> bool:
    """Whether the run was finished with so many requests."""
    try:
        return bool(parse_json((folder / "complete.json").read_bytes())["requests"] == requests)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def of_the_run(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in OF_A_SESSION}


def differences(there: Any, here: Any, name: str = "") -> list[str]:
    """Where two JSON values differ, as "name: there X, here Y", going into objects key by key."""
    if isinstance(there, dict) and isinstance(here, dict):
        dot = name and f"{name}."
        keys = list(there) + [key for key in here if key not in there]
        absent = object()
        pairs = [(there.get(key, absent), here.get(key, absent), f"{dot}{key}") for key in keys]
        return [
            text
            for old, new, path in pairs
            for text in (
                [f"{path}: only {'here' if old is absent else 'there'}"]
                if absent in (old, new)
                else differences(old, new, path)
            )
        ]
    same = type(there) is type(here) and there == here
    return [] if same else [f"{name}: there {_short(there)}, here {_short(here)}"]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def in_words(folder: Path, doing: str, kept: int | None = None) -> AbstractContextManager[None]:
    finished = "the finished requests are kept" if kept is None else f"its {kept} finished requests are kept"
    return disk_errors(RunError, f"{doing} in {folder}", f"{finished}; mend that and give the same command to resume")


def _damaged(path: Path, why: str) -> RunError:
    return RunError(f"{path} is damaged: {why}; restore it from a copy, or run again into another folder")


@contextmanager
def _at_line(path: Path, number: int) -> Iterator[None]:
    """Turn whatever a bad line raises into a RunError that names the line."""
    try:
        yield
    except (KeyError, TypeError, ValueError, IndexError) as error:
        why = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise _damaged(path, f"line {number}: {why}") from None
