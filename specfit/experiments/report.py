"""The report of an experiment: the paper's tables and figure data beside the published numbers, from its folder alone.

Nothing is computed but what the records say: no torch, no model, and a folder that is still being filled gives a report
of what is there and a list of what is missing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specfit.calibrate import Calibration
from specfit.experiments.document import Picture, Section, as_html, as_markdown, as_text
from specfit.experiments.folder import asked_for, job_failures, planned_cells
from specfit.experiments.tables import (
    Rows,
    cache_pressure,
    coefficients,
    equation_8,
    methods_table,
    rendered_prompts,
    selection_theory,
    speedups,
)
from specfit.records import RunRecord
from specfit.report import DEFINITIONS, cache_name, label, link_notes, summary_rows
from specfit.run_folder import load_failures, load_run
from specfit.safe_files import replace_file, safe_name

Drawing = Callable[[Sequence[RunRecord]], list[Picture]]


@dataclass(frozen=True, slots=True)
class Found:
    """What an experiment's folder holds."""

    folder: Path
    asked: Mapping[str, Any]
    runs: Mapping[str, RunRecord]  # by cell
    calibrations: Mapping[str, Calibration]  # by cache: "24-slots", "cleared"
    failures: Mapping[str, str]
    missing: tuple[str, ...]  # cells that are not there at all


def load_experiment(folder: str | Path) -> Found:
    """Everything that an experiment's folder holds; ExperimentError for a folder that is none."""
    folder = Path(folder)
    asked, cells = asked_for(folder), planned_cells(folder)
    there = [cell for cell in cells if (folder / cell / "run.json").exists()]
    runs = {cell: load_run(folder / cell) for cell in there}
    failures = {
        what: why
        for what, why in job_failures(folder).items()
        if not (runs[what].complete if what in runs else (folder / what).exists())
    }
    for cell in there:
        failed = load_failures(folder / cell)
        failures |= {f"{cell}, {request}": reason for request, reason in failed.items()}
    calibrations = {
        path.stem.removeprefix("calibration-"): Calibration.load(path)
        for path in sorted(folder.glob("calibration-*.json"))
    }
    return Found(folder, asked, runs, calibrations, failures, tuple(cell for cell in cells if cell not in runs))


def write_report(folder: str | Path, draw: Drawing | None = None) -> tuple[str, list[Path]]:
    """Write report.md, report.html and report/*.csv into the folder; returns the terminal's text and the files.

    draw: pictures of the runs for the page; None leaves it without.
    """
    found = load_experiment(folder)
    sections = report_sections(found)
    named = [replace(run, settings={**run.settings, "method": label(run)}) for run in found.runs.values()]
    pictures = tuple(draw(named)) if draw is not None and named else ()
    if pictures:
        sections = [*sections, Section("Figures", pictures=pictures)]
    title = f"Experiment {found.asked['name']}"
    files = {
        "report.md": as_markdown(sections, title=title),
        "report.html": as_html(sections, title=title),
        **{
            f"report/{safe_name(section.grid.name)}.csv": section.grid.csv()
            for section in sections
            if section.grid is not None
        },
    }
    written = []
    for name, text in files.items():
        path = found.folder / name
        path.parent.mkdir(exist_ok=True)
        replace_file(path, text.encode("utf-8", "backslashreplace"))
        written.append(path)
    return as_text(sections), written


def report_sections(found: Found) -> list[Section]:
    """The whole report as data."""
    groups = _by_workload(found)
    sections = [_setting(found)]
    for name, rows in groups.items():
        workload = found.asked["workloads"].get(name, {})
        sections.append(methods_table(name, rows, workload, protocol=found.asked["calibration"]["protocol"]))
        sections.append(speedups(name, rows))
        sections += equation_8(name, rows)
        if len({cache_name(run) for run, _ in rows}) > 1:
            sections.append(cache_pressure(name, rows))
    sections += selection_theory(groups)
    sections.append(coefficients(found.calibrations))
    sections += rendered_prompts(groups)
    sections.append(Section("What the columns say", notes=DEFINITIONS))
    return sections


def _by_workload(found: Found) -> dict[str, Rows]:
    runs = list(found.runs.values())
    groups: dict[str, Rows] = {}
    for run, row in zip(runs, summary_rows(runs), strict=True):
        groups.setdefault(str(run.settings["workload"]), []).append((run, {**row, "label": label(run)}))
    return groups


def _setting(found: Found) -> Section:
    asked, complete = found.asked, sum(run.complete for run in found.runs.values())
    draft = {"top_k": 2, "depth": 5, "max_pool": 18} | asked["draft"]
    text = [
        f"Target {asked['target']}, drafter {asked['drafter'] or 'its own'}; draft pools of top-{draft['top_k']}, "
        f"depth {draft['depth']}, at most {draft['max_pool']} nodes; K = {asked['max_nodes']}.",
        "Methods one after the other, each beginning with an empty expert cache that carries over between questions."
        if asked["order"] == "method"
        else "Methods take turns on every question, each with an expert cache of its own that carries over.",
        f"{complete} of {len(found.runs) + len(found.missing)} cells are complete.",
    ]
    machines = {json.dumps(_machine(run.machine), sort_keys=True): None for run in found.runs.values()}
    notes = [", ".join(f"{key}: {value}" for key, value in json.loads(machine).items()) for machine in machines]
    if len(machines) > 1:
        notes.append("the cells come from more than one machine, so their times may not compare")
    notes += link_notes(list(found.runs.values()))
    notes += [f"missing: {name}" for name in found.missing]
    notes += [f"failed: {what}: {why}" for what, why in found.failures.items()]
    return Section("Setting", tuple(text), notes=tuple(notes))


def _machine(machine: Mapping[str, Any]) -> dict[str, Any]:
    versions = machine.get("versions", {})
    shown = {
        key: machine[key] for key in ("gpu", "processor", "cores", "threads", "system", "python") if machine.get(key)
    }
    return shown | {key: value for key, value in versions.items() if value}
