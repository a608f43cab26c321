"""What an experiment asks for: its cells, each one method on one workload with one cache, and what is done already."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from specfit.experiments.asked import Experiment
from specfit.experiments.by_name import method_named
from specfit.experiments.toml_values import ExperimentError
from specfit.run_folder import load_failures
from specfit.run_reading import is_marked_complete, read_header, scan
from specfit.safe_files import safe_name


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of the matrix."""

    name: str  # of its run folder
    workload: str
    slots: int
    cleared: bool
    method: str
    routes: str | None  # by name; None where the method reads none
    seed: int

    @property
    def cache(self) -> str:
        """As in the names of folders: "24-slots" or "cleared"."""
        return cache_name(self.slots, cleared=self.cleared)


def cache_name(slots: int, *, cleared: bool) -> str:
    """ "24-slots", or "cleared" where it is emptied before every forward."""
    return "cleared" if cleared else f"{slots}-slots"


def caches(experiment: Experiment) -> list[tuple[int, bool]]:
    """(slots, cleared) of every cache that is compared, the cleared one first, as in the paper's tables."""
    without = [(max(experiment.slots), True)] if experiment.cleared else []
    return [*without, *((slots, False) for slots in experiment.slots)]


def plan_cells(experiment: Experiment) -> list[Cell]:
    """Every cell, in the order in which they run: cache by cache, because loading an engine takes long."""
    cells = []
    for slots, cleared in caches(experiment):
        for seed in experiment.seeds:
            for part in experiment.workloads:
                for method in experiment.methods:
                    reads = method_named(method, experiment.max_nodes).uses_routes
                    for routes in experiment.routes if reads else (None,):
                        words = [part.workload.name, cache_name(slots, cleared=cleared), method.replace(":", "-")]
                        # Names must stay when the file asks for more later, so they depend on no other cell.
                        words += [routes.replace(":", "-").replace(".", "_")] if routes and routes != "atlas" else []
                        words += [f"seed-{seed}"] if seed else []
                        name = safe_name("-".join(words))
                        cells.append(Cell(name, part.workload.name, slots, cleared, method, routes, seed))
    return cells


def choose(cells: Sequence[Cell], pattern: str | None) -> list[Cell]:
    """The cells whose name fits the pattern (`*` stands for anything); ExperimentError where none does."""
    if pattern is None:
        return list(cells)
    found = [cell for cell in cells if fnmatchcase(cell.name, pattern)]
    if not found:
        names = ", ".join(cell.name for cell in cells[:6]) + (" ..." if len(cells) > 6 else "")
        raise ExperimentError(f"no cell fits --only {pattern!r}; the cells are {names}")
    return found


def groups(experiment: Experiment, cells: Iterable[Cell]) -> list[list[Cell]]:
    """Cells that run as one job: each by itself, or interleaved all methods of one workload and cache."""
    if experiment.order == "method":
        return [[cell] for cell in cells]
    together: dict[tuple[str, int, bool, int], list[Cell]] = {}
    for cell in cells:
        together.setdefault((cell.workload, cell.slots, cell.cleared, cell.seed), []).append(cell)
    return list(together.values())


@dataclass(frozen=True, slots=True)
class CellState:
    """What a cell's folder holds."""

    requests: int  # asked for
    finished: int
    failed: tuple[tuple[str, str], ...]  # (request id, reason)
    complete: bool
    seconds: float  # measured by the finished requests

    @property
    def left(self) -> int:
        """Requests that are still to be decoded."""
        return self.requests - self.finished

    def __str__(self) -> str:
        if self.complete:
            return "done"
        if self.failed:
            return f"{self.finished} of {self.requests} done, {len(self.failed)} failed"
        return f"{self.finished} of {self.requests} done" if self.finished else "to do"


def cell_state(experiment: Experiment, cell: Cell, folder: Path) -> CellState:
    """What is done of a cell; RunError for a folder that is damaged."""
    asked = sum(len(question.turns) for question in experiment.workload(cell.workload).workload.questions)
    run = folder / cell.name
    if not (run / "run.json").exists():
        return CellState(asked, 0, (), False, 0.0)
    lines = scan(run, read_header(run)).lines
    return CellState(
        requests=asked,
        finished=len(lines),
        failed=tuple(load_failures(run).items()),
        complete=is_marked_complete(run, len(lines)) and len(lines) == asked,
        seconds=sum(line["request_ms"] for line in lines) / 1e3,
    )


class Timetable:
    """How long what is left will take, from what has been measured: the cell's own requests, or its method's elsewhere.

    Decoding alone: loading, atlases and calibration come on top.
    """

    def __init__(self, cells: Iterable[Cell]) -> None:
        self._cells = {cell.name: cell for cell in cells}
        self._states: dict[str, CellState] = {}

    def note(self, cell: Cell, state: CellState) -> None:
        """What a cell's folder holds now."""
        self._states[cell.name] = state

    def seconds(self, cell: Cell) -> float | None:
        """Seconds that the rest of a cell takes; None until anything like it has been measured."""
        state = self._states.get(cell.name)
        if state is not None and not state.left:
            return 0.0
        rate = self._rate(cell)
        return None if state is None or rate is None else rate * state.left

    def total(self) -> float | None:
        """Seconds for all cells; None while one is unknown."""
        found = [self.seconds(cell) for cell in self._cells.values()]
        known = [seconds for seconds in found if seconds is not None]
        return sum(known) if len(known) == len(found) else None

    def _rate(self, cell: Cell) -> float | None:
        """Seconds a request, from the most similar cells that have some."""
        alike = (
            lambda other: other == cell,
            lambda other: (other.workload, other.method, other.cache) == (cell.workload, cell.method, cell.cache),
            lambda other: (other.workload, other.method) == (cell.workload, cell.method),
            lambda other: other.workload == cell.workload,
            lambda other: True,
        )
        for similar in alike:
            states = [state for name, state in self._states.items() if similar(self._cells[name]) and state.finished]
            if states:
                return sum(state.seconds for state in states) / sum(state.finished for state in states)
        return None


def in_time(seconds: float | None) -> str:
    """ "about 3 min"; "unknown" before anything was measured."""
    if seconds is None:
        return "unknown"
    if seconds < 90:
        return f"about {seconds:.0f} s"
    minutes = seconds / 60
    return f"about {minutes:.0f} min" if minutes < 90 else f"about {minutes / 60:.1f} h"
