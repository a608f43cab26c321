"""Does what an experiment still lacks: atlases, then cost coefficients, then the cells.

By default every job runs in this process, writing its run folders request by request. With an executor (anything in
the style of `concurrent.futures`: a process pool, a Dask cluster) jobs run wherever it puts them, and this process
writes what they give back. A job that fails is noted with its reason, what depends on it too, and the rest goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Executor, Future, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from specfit.experiments.asked import Experiment, WorkloadPart
from specfit.experiments.by_name import route_choice
from specfit.experiments.failing import reason, stop_for_the_disk
from specfit.experiments.folder import ExperimentFolder
from specfit.experiments.jobs import AtlasJob, CellsJob, EngineSpec, FitJob, Job, atlas_needed, weighs_cost
from specfit.experiments.plan import Cell, Timetable, cell_state, choose, groups, plan_cells
from specfit.experiments.toml_values import ExperimentError
from specfit.experiments.tuning import TUNED
from specfit.experiments.work import Bench, Told, do_away
from specfit.safe_files import replace_file, safe_name

TUNING = "tuning.npz"  # a copy of the tuning world: the folder holds all that its runs rest on


class Watcher(Protocol):
    """Hears how an experiment goes."""

    def say(self, text: str) -> None:
        """One line for the person."""
        ...

    def begin(self, title: str, total: int) -> Told:
        """A job begins; the result is told how much of it is done."""
        ...

    def end(self, left_s: float | None) -> None:
        """A job ended; about how long all cells that are left will take, None where that is unknown."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a session did."""

    cells: tuple[Cell, ...]  # that were asked for
    done: tuple[str, ...]  # names of the complete ones
    failures: Mapping[str, str]  # cells and files that are missing or incomplete, with the reason


def run_experiment(
    experiment: Experiment,
    folder: Path,
    *,
    watcher: Watcher,
    only: str | None = None,
    executor: Executor | None = None,
    bench: Bench | None = None,
) -> Outcome:
    """Run the cells that are not complete (whose name fits `only`). Stopped at any moment, the same call goes on.

    bench: keeps its engine for the next call; without one, the memory is given back at the end.
    Raises ExperimentError for a folder that holds something else or is in use, and where the disk takes no more.
    """
    cells = choose(plan_cells(experiment), only)
    with ExperimentFolder(folder, experiment) as opened:
        work = _Work(experiment, opened, watcher, executor, Timetable(cells), bench or Bench())
        try:
            return work.run(cells)
        finally:
            if bench is None:
                work.bench.close()


@dataclass(slots=True)
class _Work:
    """One session over one folder."""

    experiment: Experiment
    opened: ExperimentFolder
    watcher: Watcher
    executor: Executor | None
    timetable: Timetable
    bench: Bench
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return self.opened.folder

    def run(self, cells: Sequence[Cell]) -> Outcome:
        for cell in cells:
            self.timetable.note(cell, cell_state(self.experiment, cell, self.folder))
        missing = [cell for cell in cells if not cell_state(self.experiment, cell, self.folder).complete]
        jobs = [self._cells_job(group) for group in groups(self.experiment, missing)]
        if any(job.tuning for job in jobs) and not (self.folder / TUNING).exists():
            assert self.experiment.tuning is not None
            replace_file(self.folder / TUNING, Path(self.experiment.tuning).read_bytes())
        self._do(self._atlas_jobs(jobs))
        self._do(self._fit_jobs(jobs))
        self._do([(_title(job.cells), job) for job in jobs])
        done = []
        for cell in cells:
            state = cell_state(self.experiment, cell, self.folder)
            if state.complete:
                done.append(cell.name)
            elif cell.name not in self.failures:
                asked = "; ".join(f"{request}: {reason}" for request, reason in state.failed)
                self.failures[cell.name] = asked or "it was not finished"
        return Outcome(tuple(cells), tuple(done), self.failures)

    # -- which jobs --------------------------------------------------------------------------------------------------

    def _cells_job(self, cells: Sequence[Cell]) -> CellsJob:
        first = cells[0]
        return CellsJob(
            engine=EngineSpec.of(self.experiment, slots=first.slots, cleared=first.cleared),
            part=self.experiment.workload(first.workload),
            cells=tuple(cells),
            max_nodes=self.experiment.max_nodes,
            atlas=f"{safe_name(f'atlas-{first.workload}')}.npz" if atlas_needed(self.experiment) else None,
            cost=f"calibration-{first.cache}.json" if weighs_cost(self.experiment) else None,
            cost_given=self.experiment.calibration.cost is not None,
            head=self.experiment.head,
            tuning=TUNING if any(cell.method in TUNED for cell in cells) else None,
            settings={"seed": first.seed, "order": self.experiment.order},
        )

    def _atlas_jobs(self, jobs: Sequence[CellsJob]) -> list[tuple[str, Job]]:
        """Atlases that are needed and not there; one that is there is checked where it is used."""
        engine = EngineSpec.recording(self.experiment)
        wanted: dict[str, WorkloadPart] = {job.atlas: job.part for job in jobs if job.atlas is not None}
        return [
            (file, AtlasJob(engine, part, file)) for file, part in wanted.items() if not (self.folder / file).exists()
        ]

    def _fit_jobs(self, jobs: Sequence[CellsJob]) -> list[tuple[str, Job]]:
        part = self.experiment.calibration
        wanted = {job.cost: job.engine for job in jobs if job.cost and not (self.folder / job.cost).exists()}
        if part.cost is not None:
            data = Path(part.cost).read_bytes() if wanted else b""
            for file in wanted:
                replace_file(self.folder / file, data)  # a copy: the folder holds all that its runs rest on
            return []
        assert part.questions is not None
        return [
            (file, FitJob(engine, part.questions, part.protocol, self.experiment.max_nodes, self.experiment.seeds[0],
                          file))
            for file, engine in wanted.items()
        ]  # fmt: skip

    # -- doing them --------------------------------------------------------------------------------------------------

    def _do(self, jobs: Iterable[tuple[str, Job]]) -> None:
        """Do jobs by name; of cells whose inputs are missing, those that can do without."""
        ready: list[tuple[str, Job]] = []
        for name, job in jobs:
            lacking = [file for file in _inputs(job) if not (self.folder / file).exists()]
            if not lacking:
                ready.append((name, job))
                continue
            why = "; ".join(f"{file} is missing: {self.failures.get(file, 'it was not made')}" for file in lacking)
            if not isinstance(job, CellsJob):
                self._failed(name, job, why)
                continue
            able = tuple(cell for cell in job.cells if not _needs(cell, job, lacking))
            if len(able) < len(job.cells):
                unable = tuple(cell for cell in job.cells if cell not in able)
                self._failed(_title(unable), replace(job, cells=unable), why)
            if able:
                atlas, cost = (None if file in lacking else file for file in (job.atlas, job.cost))
                ready.append((_title(able), replace(job, cells=able, atlas=atlas, cost=cost)))
        if self.executor is None:
            for name, job in ready:
                told = self.watcher.begin(name, _size(job, self.experiment))
                try:
                    self.bench.do(job, self.folder, told)
                except Exception as error:
                    stop_for_the_disk(error)
                    self._failed(name, job, reason(error))
                self._ended(job)
        elif ready:
            self._do_elsewhere(ready, self.executor)

    def _do_elsewhere(self, jobs: Sequence[tuple[str, Job]], executor: Executor) -> None:
        futures: dict[Future[dict[str, bytes]], tuple[str, Job]] = {}
        sizes = {name: _size(job, self.experiment) for name, job in jobs}
        title = jobs[0][0] if len(jobs) == 1 else f"{len(jobs)} jobs on the workers"
        told, over = self.watcher.begin(title, sum(sizes.values())), 0
        for name, job in jobs:
            files = {file: (self.folder / file).read_bytes() for file in [*_inputs(job), *self._begun(job)]}
            futures[executor.submit(do_away, job, files)] = name, job
        try:
            for future in as_completed(futures):
                name, job = futures[future]
                try:
                    self.opened.store(future.result())
                    self.watcher.say(f"done: {name}")
                except ExperimentError:
                    raise  # this process's own disk
                except (Exception, CancelledError) as error:  # whatever an executor makes of a lost worker, too
                    self._failed(name, job, reason(error))
                over += sizes[name]
                told(over)
                self._ended(job)
        finally:
            for future in futures:
                future.cancel()

    def _begun(self, job: Job) -> list[str]:
        """Files of the runs that a job goes on with."""
        runs = [self.folder / cell.name for cell in _cells(job)]
        files = (path for run in runs if run.is_dir() for path in sorted(run.iterdir()) if path.name != "lock")
        return [path.relative_to(self.folder).as_posix() for path in files]

    def _ended(self, job: Job) -> None:
        for cell in _cells(job):
            self.timetable.note(cell, cell_state(self.experiment, cell, self.folder))
        self.watcher.end(self.timetable.total())

    def _failed(self, name: str, job: Job, reason: str) -> None:
        cells = _cells(job)
        unfinished = [cell for cell in cells if not cell_state(self.experiment, cell, self.folder).complete]
        for what in [cell.name for cell in unfinished] if cells else [name]:
            self.failures[what] = reason
            self.opened.note_failure(what, reason)
        self.watcher.say(f"FAILED {name}: {reason}")


def _inputs(job: Job) -> list[str]:
    """Files of the experiment's folder that a job reads."""
    if not isinstance(job, CellsJob):
        return []
    return [file for file in (job.atlas, job.cost, job.tuning) if file is not None]


def _needs(cell: Cell, job: CellsJob, lacking: Sequence[str]) -> bool:
    """Whether a cell cannot do without what is lacking: a method that reads no routes only reports with it."""
    if cell.method in TUNED and job.cost in lacking:
        return True
    if cell.routes is None:
        return False
    return job.cost in lacking or (job.atlas in lacking and route_choice(cell.routes, cell.seed).needs_atlas)


def _title(cells: Sequence[Cell]) -> str:
    """Short enough for a bar beside it, however many cells take turns."""
    return cells[0].name if len(cells) == 1 else f"{cells[0].name} and {len(cells) - 1} more in turns"


def _cells(job: Job) -> tuple[Cell, ...]:
    return job.cells if isinstance(job, CellsJob) else ()


def _size(job: Job, experiment: Experiment) -> int:
    """How much there is to be told of."""
    if isinstance(job, FitJob):
        return experiment.calibration.probes
    if isinstance(job, AtlasJob):
        return len(job.part.workload.questions)
    return len(job.cells) * sum(len(question.turns) for question in job.part.workload.questions)
