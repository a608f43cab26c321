"""`specfit experiment`: run what an experiment file asks for and the folder still lacks."""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from specfit.commands import options as add_options
from specfit.experiments.asked import Experiment
from specfit.experiments.dask import dask_executor
from specfit.experiments.driver import run_experiment
from specfit.experiments.file import read_experiment
from specfit.experiments.folder import ExperimentFolder
from specfit.experiments.plan import Timetable, cache_name, caches, cell_state, choose, in_time, plan_cells
from specfit.experiments.work import Told
from specfit.report import printable
from specfit.safe_files import safe_name


def add(commands: Any) -> None:
    experiment = commands.add_parser(
        "experiment", help="run a comparison that a file describes, or what is missing of it", allow_abbrev=False
    )
    experiment.add_argument("file", type=Path, metavar="FILE", help="see experiments/*.toml")
    add_options.out(experiment, "folder of the results (runs/experiment-NAME); an existing one is gone on with")
    experiment.add_argument("--only", metavar="PATTERN", help="cells whose name fits, as 'news-*' or '*-specfit'")
    experiment.add_argument("--dry-run", action="store_true", help="say what would run, and stop")
    experiment.add_argument("--dask", metavar="ADDRESS", help="run the cells on a Dask cluster, as tcp://host:8786")
    experiment.set_defaults(command=_experiment)


def _experiment(options: argparse.Namespace) -> None:
    experiment = read_experiment(options.file)
    folder = options.out or Path("runs") / safe_name(f"experiment-{experiment.name}")
    _say_plan(experiment, folder, options.only, dry=options.dry_run)
    if options.dry_run:
        return
    watcher = TerminalWatcher()
    away = nullcontext(None) if options.dask is None else dask_executor(options.dask)
    with watcher, away as executor:
        outcome = run_experiment(experiment, folder, watcher=watcher, only=options.only, executor=executor)
    for name, reason in outcome.failures.items():
        print(printable(f"not done: {name}: {reason}"))
    print(
        f"{len(outcome.done)} of {len(outcome.cells)} cells are done in {folder}; `specfit report {folder}` shows them"
    )
    if outcome.failures:
        parts = "one part is" if len(outcome.failures) == 1 else f"{len(outcome.failures)} parts are"
        raise ValueError(f"{parts} missing of the experiment; the reasons stand above")


def _say_plan(experiment: Experiment, folder: Path, only: str | None, *, dry: bool) -> None:
    """Cells, what is done, how long the rest takes, and how much memory."""
    opened = ExperimentFolder(folder, experiment)
    opened.check()
    for growth in opened.added:
        print(printable(f"this file asks for more than {folder} was made for: {growth}"))
    cells = choose(plan_cells(experiment), only)
    timetable = Timetable(cells)
    states = {cell.name: cell_state(experiment, cell, folder) for cell in cells}
    for cell in cells:
        timetable.note(cell, states[cell.name])
    if dry:
        width = max(len(cell.name) for cell in cells)
        for cell in cells:
            state = states[cell.name]
            seconds = "" if state.complete else f", {in_time(timetable.seconds(cell))}"
            print(f"{cell.name.ljust(width)}  {state.requests} requests, {state}{seconds}")
        print(printable(_memory(experiment)))
    missing = sum(not state.complete for state in states.values())
    left, total = "", timetable.total()
    if missing and total is None:
        left = "; how long that takes is unknown, because nothing like them has been measured in this folder yet"
    elif missing:
        left = f"; decoding them takes {in_time(total)}"
    print(f"{len(cells)} cells, {missing} to do{left}")


def _memory(experiment: Experiment) -> str:
    """What each cache's engine needs on this machine, by config.json alone; of a hub id, what is here already."""
    from specfit.engine.checkpoint_files import checkpoint_folder, open_config  # here: they load torch
    from specfit.engine.memory_sizes import shown
    from specfit.engine.plan import choose_slots, plan_target

    target, drafter = experiment.target, experiment.drafter
    try:
        if target != "embedded":
            target = str(open_config(target, local_files_only=True).folder)
        plan = plan_target(
            target,
            device=experiment.device or ("cpu" if experiment.link is not None else None),
            dtype=experiment.dtype,
            drafter=None if drafter is None else checkpoint_folder(drafter, local_files_only=True),
        )
    except ValueError as error:
        return f"memory: unknown ({' '.join(str(error).split())})"
    lines = []
    for slots, cleared in caches(experiment):
        try:
            one = replace(plan, name=experiment.target, slots=choose_slots(slots, plan.needs.experts))
            gpu = f", {shown(one.device_bytes)} of GPU memory" if one.on_gpu else ""
            said = f"{shown(one.host_bytes)} of HOST memory{gpu}, for a context of {one.context} tokens"
            one.check()
        except ValueError as error:
            said = f"does not fit here: {error}"
        lines.append(f"{cache_name(slots, cleared=cleared)}: {said}")
    return "\n".join(lines)


class TerminalWatcher:
    """Progress on stderr: a bar for the job in progress where there is a terminal, a line a job elsewhere."""

    def __init__(self) -> None:
        self._bar: tqdm[Any] | None = None
        self._left = "unknown"

    def __enter__(self) -> TerminalWatcher:
        return self

    def __exit__(self, *exc: object) -> None:
        self._close()

    def say(self, text: str) -> None:
        """One line for the person."""
        tqdm.write(printable(text), file=sys.stderr)

    def begin(self, title: str, total: int) -> Told:
        """A bar for this job; the one before it is over."""
        self._close()
        if not sys.stderr.isatty():
            self.say(title)
            return lambda done: None
        bar = self._bar = tqdm(total=total, desc=title, leave=False, dynamic_ncols=True)
        bar.set_postfix_str(f"all cells: {self._left}")

        def told(done: int) -> None:
            bar.update(done - bar.n)

        return told

    def end(self, left_s: float | None) -> None:
        """A job ended."""
        self._left = f"{in_time(left_s)} left"
        if not sys.stderr.isatty():
            self.say(f"  all cells: {self._left}")
        elif self._bar is not None:
            self._bar.set_postfix_str(f"all cells: {self._left}")

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
