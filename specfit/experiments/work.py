"""Does the jobs of an experiment (`jobs.py`), in any process.

`do_away` does one in a temporary folder and gives back the files, which the driver writes. A process keeps its last
engine between jobs: loading a large model for every cell would take longer than the cell.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from specfit.calibrate import Calibration, calibrate
from specfit.demo import CALIBRATION_TOKENS
from specfit.experiments.by_name import method_named, route_choice
from specfit.experiments.jobs import AtlasJob, CellsJob, EngineSpec, FitJob, Job
from specfit.experiments.plan import Cell
from specfit.experiments.tuning import TUNED, tuned
from specfit.objective import CostModel
from specfit.recording import ensure_atlas
from specfit.runs import MethodRun, Progress, prompts_of, run_interleaved
from specfit.world import World

if TYPE_CHECKING:
    from specfit.engine.atlas import Atlas
    from specfit.engine.engine import Engine


Told = Callable[[int], None]  # how much of the job is done: prompts, probes, or requests


class Bench:
    """One process's engine and atlas, kept from job to job."""

    def __init__(self) -> None:
        self._spec: EngineSpec | None = None
        self._engine: Engine | None = None
        self._atlas: tuple[bytes, Atlas] | None = None  # of a file with this digest

    def do(self, job: Job, folder: Path, told: Told = lambda done: None) -> None:
        """Do a job in a folder that holds the files it names. What it raises is its failure; the next job is not
        affected."""
        try:
            if isinstance(job, AtlasJob):
                self._record(job, folder, told)
            elif isinstance(job, FitJob):
                self._fit(job, folder, told)
            else:
                self._run(job, folder, told)
        except BaseException:
            self.close()  # nothing of a failed job may weigh on the next one, least of all its memory
            raise

    def close(self) -> None:
        """Give the memory back."""
        if self._engine is not None:
            self._engine.close()
        self._engine = self._spec = self._atlas = None

    def _record(self, job: AtlasJob, folder: Path, told: Told) -> None:
        def resident() -> AbstractContextManager[Engine]:
            return nullcontext(self._ready(job.engine))  # the next atlas is recorded with it, too

        ensure_atlas(
            folder / job.file, resident, job.part.workload, raw=job.part.raw, expected=job.engine.route_settings,
            keep_going=True, progress=told,
        )  # fmt: skip

    def _fit(self, job: FitJob, folder: Path, told: Told) -> None:
        from specfit.engine.route_sources import TargetRoutes  # here: it loads torch

        engine = self._ready(job.engine)
        questions = job.part.workload.questions
        fitted = calibrate(
            engine,
            [prompt.ids for prompt in prompts_of(engine, job.part.workload, raw=job.part.raw)],
            TargetRoutes(engine),
            protocol=job.protocol,
            max_nodes=job.max_nodes,
            max_new_tokens=job.part.workload.limits.max_new_tokens or CALIBRATION_TOKENS,
            names=[str(question.id) for question in questions],
            seed=job.seed,
            progress=told,
        )
        fitted.save(folder / job.file)

    def _run(self, job: CellsJob, folder: Path, told: Told) -> None:
        engine = self._ready(job.engine)
        cost: CostModel | None = None
        if job.cost is not None:
            fitted = Calibration.load(folder / job.cost)
            try:
                fitted.check(engine.settings)
            except ValueError as error:
                mend = (
                    "name one that fits under calibration.cost, or leave that out"
                    if job.cost_given
                    else f"remove {job.cost} from the experiment's folder to fit it anew"
                )
                raise ValueError(f"{error}; in an experiment: {mend}") from None
            cost = fitted.cost
        parts = [self._part(cell, job, folder, cost) for cell in job.cells]

        def progress(at: Progress) -> None:
            told(at.finished)

        run_interleaved(
            engine,
            job.part.workload,
            parts,
            cost=cost,
            atlas=None if job.atlas is None else self._atlas_of(folder / job.atlas),
            raw=job.part.raw,
            settings=job.settings,
            keep_going=True,
            progress=progress,
        )

    def _part(self, cell: Cell, job: CellsJob, folder: Path, cost: CostModel | None) -> MethodRun:
        method = method_named(cell.method, job.max_nodes)
        more: dict[str, Any] = {}
        if cell.method in TUNED:
            assert cost is not None and job.tuning is not None
            method, more = tuned(method, World.load(folder / job.tuning), cost)
        return MethodRun(
            folder / cell.name,
            method,
            route_choice(cell.routes or "atlas", cell.seed, job.head),
            settings=more,
        )

    def _ready(self, spec: EngineSpec) -> Engine:
        if self._engine is None or self._spec != spec:
            self.close()
            self._engine, self._spec = spec.load(), spec
        return self._engine

    def _atlas_of(self, path: Path) -> Atlas:
        from specfit.engine.atlas import Atlas

        digest = hashlib.sha256(path.read_bytes()).digest()  # a job that was sent has a folder of its own every time
        if self._atlas is None or self._atlas[0] != digest:
            self._atlas = digest, Atlas.load(path)
        return self._atlas[1]


# -- somewhere else ----------------------------------------------------------------------------------------------------

_BENCH = Bench()  # of a worker process, which does many jobs


def do_away(job: Job, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Do a job in a folder of its own that holds `files`; returns the new files by their path in it, and all files of
    run folders, which a job goes on with."""
    with TemporaryDirectory(prefix="specfit-") as scratch:
        folder = Path(scratch)
        for name, data in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(data)
        _BENCH.do(job, folder)
        found = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "lock")
        return {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in found
            if path.parent != folder or path.name not in files
        }
