"""An experiment's file (TOML): what is compared, on which questions, with which protocol. Read, checked, described.

    name = "embedded"            # of the results' folder
    target = "embedded"          # or a checkpoint folder (./..., /...), or a hub id; with drafter = "..." beside it
    slots = [24, 12]             # expert slots per layer, each a cache of its own
    cleared = true               # and once more without the cache, with the largest of these
    methods = ["ar", "eagle3", "specfit"]
    routes = ["atlas", "noisy:0.6", "head"]  # for the methods that read routes
    tuning = "calibration"       # or a file of `specfit record`: for "size-only" and "lambda-offline"
    seeds = [0]                  # every seed repeats everything, with other noise
    order = "method"             # the paper's; or "interleaved": all methods on a question before the next
    [draft] top_k, depth, max_pool      [link] expert_ms, latency_ms: an emulated link      [calibration] see below
    [[workload]] name, and embedded = "problems" or "news", or file = a Spec-Bench question file

Every key is checked, unknown ones are refused by name; paths are relative to the file's folder.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from specfit.calibrate import Calibration
from specfit.demo import CALIBRATION_TOKENS, calibration_workload
from specfit.experiments.asked import CalibrationPart, Experiment, WorkloadPart
from specfit.experiments.by_name import TRAINED, method_named, route_choice
from specfit.experiments.toml_values import (
    ExperimentError,
    either,
    flag,
    many,
    milliseconds,
    one_of,
    table,
    text,
    whole,
)
from specfit.experiments.tuning import tuning_file
from specfit.workloads import PAPER_WORKLOADS, Limits, Workload, embedded_workload, paper_ids, spec_bench

DRAFT = {"top_k": whole(1), "depth": whole(1), "max_pool": whole(1)}
LINK = {"expert_ms": milliseconds, "latency_ms": milliseconds}
IDS = either(many(either(whole(0), text, expected="")), one_of(*PAPER_WORKLOADS),
             expected=f"a list of question ids, each once, or one of {', '.join(PAPER_WORKLOADS)}")  # fmt: skip
FROM_FILE = {"file": text, "category": text, "ids": IDS, "limit": whole(1)}
LIMITS = {"max_new_tokens": whole(1), "max_total_tokens": whole(1)}
WORKLOAD = {
    "name": text,
    "embedded": one_of("problems", "news"),
    "count": whole(1),
    **FROM_FILE,
    **LIMITS,
    "raw": flag,
}
CALIBRATION = {
    "protocol": one_of("consecutive", "paper"),
    "cost": text,
    **FROM_FILE,
    "max_new_tokens": whole(1),
    "raw": flag,
}
TOP = {
    "name": text,
    "target": text,
    "drafter": text,
    "device": text,
    "dtype": one_of("float32", "bfloat16", "float16"),
    "threads": whole(1, 1024),
    "slots": many(whole(1)),
    "cleared": flag,
    "methods": many(text),
    "routes": many(text),
    "head": text,
    "tuning": text,
    "max_nodes": whole(1),
    "seeds": many(whole(0, (1 << 32) - 1)),
    "order": one_of("method", "interleaved"),
    "draft": lambda value, where: table(value, where, DRAFT),
    "link": lambda value, where: table(value, where, LINK, needs=("expert_ms",)),
    "calibration": lambda value, where: table(value, where, CALIBRATION),
    "workload": lambda value, where: value,  # each by itself below
}


def read_experiment(path: str | Path) -> Experiment:
    """The experiment of a file; ExperimentError names the key, or the line, that is not as it must be."""
    path = Path(path)
    try:
        source = path.read_bytes().removeprefix(b"\xef\xbb\xbf").decode("utf-8")
        given = tomllib.loads(source)
    except OSError as error:
        raise ExperimentError(f"the experiment file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ExperimentError(f"{path} is not UTF-8 ({error.reason}); save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ExperimentError(f"{path} is not TOML: {error}") from None
    except RecursionError:
        raise ExperimentError(f"{path} is nested too deeply to be read") from None
    try:
        return _experiment(given, path.parent, source)
    except ValueError as error:
        raise ExperimentError(f"{path}: {error}") from None


def _experiment(given: dict[str, Any], base: Path, source: str) -> Experiment:
    values = table(given, "", TOP, needs=("name", "slots", "workload"))
    parts = values.pop("workload")
    if not isinstance(parts, list) or not parts:
        raise ExperimentError("workload is not given as tables; write each under a heading [[workload]]")
    workloads = tuple(_workload(part, f"workload[{place}]", base) for place, part in enumerate(parts))
    names = [part.workload.name for part in workloads]
    for place, name in enumerate(names):
        if name in names[:place]:
            raise ExperimentError(f"two workloads are called {name!r}; give one of them another name")
    if "calibration" in names:
        raise ExperimentError("a workload may not be called 'calibration'; its files would be the calibration's")
    for key in ("target", "drafter"):
        if key in values:
            values[key] = _checkpoint(values[key], base)
    if "head" in values:
        values["head"] = str(_inside(base, values["head"]).resolve())
    target = values.get("target", "embedded")
    calibration = _calibration(values.pop("calibration", {}), base, embedded=target == "embedded")
    if target == "embedded" and values.get("drafter") is not None:
        raise ExperimentError("drafter: the embedded target brings its own; leave it out")
    made = Experiment(workloads=workloads, calibration=calibration, source=source, **values)
    for routes in made.routes:
        route_choice(routes, 0)
    _check_parts(made)
    return replace(made, tuning=tuning_file(made, base))


def _check_parts(made: Experiment) -> None:
    """ExperimentError where something that a cell will need is not given, or what is given serves no cell."""
    methods = [method_named(method, made.max_nodes) for method in made.methods]
    drafting = next((method.name for method in methods if method.max_nodes > 0), None)
    if made.target != "embedded" and made.drafter is None and drafting is not None:
        raise ExperimentError(
            f"drafter is missing: method {drafting!r} drafts; only the embedded target brings its own"
        )
    trained = next((routes for routes in made.routes if routes in TRAINED), None)
    if made.head is not None and trained is None:
        raise ExperimentError(f"head is given, but routes has none of {', '.join(TRAINED)}, which alone read it")
    if made.head is not None and not Path(made.head).is_file():
        raise ExperimentError(f"head: there is no file {made.head}; make one with `specfit train-routes`")
    if made.target != "embedded" and made.head is None and trained is not None:
        raise ExperimentError(
            f"head is missing: routes {trained!r} need a file of `specfit train-routes` for this target"
        )
    most = max(method.max_nodes for method in methods)
    if made.calibration.cost is not None and (known := Calibration.load(made.calibration.cost).cost.max_nodes) < most:
        raise ExperimentError(
            f"calibration.cost has coefficients for up to {known} nodes, and max_nodes is {made.max_nodes}; take fewer "
            "nodes, or fit with as many"
        )
    several = len(made.slots) > 1 or made.cleared
    if made.calibration.cost is not None and several and any(method.uses_routes for method in methods):
        raise ExperimentError(
            "calibration.cost serves one cache, and this file compares several; leave it out to fit each, or write a "
            "file for each cache"
        )


def _workload(given: Any, where: str, base: Path) -> WorkloadPart:
    values = table(given, where, WORKLOAD, needs=("name",))
    name, raw = values["name"], values.get("raw", False)
    limits = {key: values[key] for key in LIMITS if key in values}
    if ("embedded" in values) == ("file" in values):
        raise ExperimentError(f"{where} ({name}) needs either embedded or file, one of the two")
    if "file" in values:
        _only(values, where, "count", reason="count belongs to embedded workloads; a file has ids, category and limit")
        return _from_file(values, name, Limits(**limits) if limits else None, base, raw=raw)
    _only(values, where, "category", "ids", "limit", "max_total_tokens", reason="the embedded corpus has none")
    more = {key: values[key] for key in ("count", "max_new_tokens") if key in values}
    drawn = embedded_workload(values["embedded"], **more)
    return WorkloadPart(Workload(name, drawn.questions, drawn.limits, drawn.notes), raw, embedded=values["embedded"])


def _calibration(values: dict[str, Any], base: Path, *, embedded: bool) -> CalibrationPart:
    protocol, where = values.get("protocol", "consecutive"), "calibration"
    if "cost" in values:
        asked = (*FROM_FILE, "max_new_tokens", "raw")
        _only(values, where, "protocol", *asked, reason="cost gives fitted coefficients, so nothing is decoded")
        path = _inside(base, values["cost"]).resolve()
        return CalibrationPart(Calibration.load(path).protocol, None, str(path))  # refuses a file that is none
    limits = Limits(max_new_tokens=values.get("max_new_tokens", CALIBRATION_TOKENS))
    if "file" not in values:
        if not embedded:
            raise ExperimentError("calibration.file is missing: this target needs questions to fit its cost with")
        _only(values, where, *FROM_FILE, "raw", reason="without a file the embedded corpus's tuning split is used")
        return CalibrationPart(protocol, WorkloadPart(replace(calibration_workload(), limits=limits)))
    if "ids" not in values and "limit" not in values:
        values = {**values, "limit": 3}
    return CalibrationPart(protocol, _from_file(values, "calibration", limits, base, raw=values.get("raw", False)))


def _from_file(values: dict[str, Any], name: str, limits: Limits | None, base: Path, *, raw: bool) -> WorkloadPart:
    ids, paper = values.get("ids"), None
    if isinstance(ids, str):
        paper = ids
        ids, paper_limits = paper_ids(paper)
        limits = limits or paper_limits
    chosen = spec_bench(
        _inside(base, values["file"]), category=values.get("category"), ids=ids, limit=values.get("limit"),
        limits=limits, name=name,
    )  # fmt: skip
    return WorkloadPart(chosen, raw, paper)


def _only(values: Mapping[str, Any], where: str, *unwanted: str, reason: str) -> None:
    for key in unwanted:
        if key in values:
            raise ExperimentError(f"{where}.{key} does not fit here: {reason}")


def _inside(base: Path, name: str) -> Path:
    return base / Path(name).expanduser()


def _checkpoint(name: str, base: Path) -> str:
    """A path stays one wherever the command is given; everything else is a hub id, or "embedded"."""
    return str(_inside(base, name).resolve()) if name.startswith((".", "/", "~")) else name
