"""The jobs of an experiment, as any process can do them: record an atlas, fit the cost, run some cells.

A job says everything it needs, so it can be sent away; `do_away` does one in a temporary folder and gives back the
files, which the driver writes. A process keeps its last engine between jobs: loading a large model for every cell would
take longer than the cell.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from specfit.calibrate import Calibration, calibrate
from specfit.demo import CALIBRATION_TOKENS
from specfit.experiments.by_name import method_named, route_choice
from specfit.experiments.file import Experiment, WorkloadPart
from specfit.experiments.plan import Cell
from specfit.objective import CostModel
from specfit.run_reading import read_header
from specfit.runs import MethodRun, Progress, ensure_atlas, prompts_of, run_interleaved

if TYPE_CHECKING:
    from specfit.engine.atlas import Atlas
    from specfit.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """What `load_engine` is given."""

    target: str
    drafter: str | None
    device: str | None
    dtype: str | None
    threads: int
    draft: Mapping[str, int]
    slots: int | None
    cleared: bool = False
    link: Mapping[str, float] | None = None

    @classmethod
    def of(cls, experiment: Experiment, *, slots: int, cleared: bool) -> EngineSpec:
        """The engine that runs cells with this cache."""
        return cls(
            target=experiment.target,
            drafter=experiment.drafter,
            device=experiment.device,
            dtype=experiment.dtype,
            threads=experiment.threads,
            draft=experiment.draft,
            slots=slots,
            cleared=cleared,
            link=experiment.link,
        )

    @classmethod
    def recording(cls, experiment: Experiment) -> EngineSpec:
        """The engine that records atlases: routes depend on no cache and no link, so as fast as it goes."""
        slots = None if experiment.target == "embedded" else max(experiment.slots)
        spec = cls.of(experiment, slots=max(experiment.slots), cleared=False)
        return cls(**{name: getattr(spec, name) for name in cls.__slots__} | {"slots": slots, "link": None})

    def load(self) -> Engine:
        """The engine. Raises ValueError with one sentence for whatever does not fit."""
        from specfit.engine.drafter import DraftConfig
        from specfit.engine.engine import load_engine, use_threads
        from specfit.engine.link import EmulatedLink

        use_threads(self.threads)
        latency = 0.0 if self.link is None else self.link.get("latency_ms", 0.0)
        return load_engine(
            self.target,
            drafter=self.drafter,
            slots_per_layer=self.slots,
            cleared=self.cleared,
            link=None if self.link is None else EmulatedLink(self.link["expert_ms"], latency_ms=latency),
            draft=DraftConfig(**self.draft),
            device=self.device,
            dtype=self.dtype,
        )

    def route_settings(self) -> dict[str, Any]:
        """What the engine's `route_settings` will be."""
        from specfit.engine.drafter import DraftConfig
        from specfit.engine.engine import expected_route_settings

        more = {"drafter": self.drafter, "device": self.device, "dtype": self.dtype}
        return expected_route_settings(self.target, draft=DraftConfig(**self.draft), **more)


@dataclass(frozen=True, slots=True)
class AtlasJob:
    """Record a workload's atlas."""

    engine: EngineSpec
    part: WorkloadPart
    file: str  # of the experiment's folder


@dataclass(frozen=True, slots=True)
class FitJob:
    """Fit the cost coefficients of one cache."""

    engine: EngineSpec
    part: WorkloadPart
    protocol: str
    max_nodes: int
    seed: int
    file: str


@dataclass(frozen=True, slots=True)
class CellsJob:
    """Run one cell, or several that take turns."""

    engine: EngineSpec
    part: WorkloadPart
    cells: tuple[Cell, ...]
    max_nodes: int
    atlas: str | None
    cost: str | None  # a calibration's file
    cost_given: bool  # by the experiment's file, so not fitted here
    head: str | None  # a route predictor's file, on the machine that does the job
    settings: Mapping[str, Any]  # that every run of it keeps, beside the engine's


Job = AtlasJob | FitJob | CellsJob
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
        parts = [
            MethodRun(
                folder / cell.name,
                method_named(cell.method, job.max_nodes),
                route_choice(cell.routes or "atlas", cell.seed, job.head),
                weighs_cost=not _begun_without_cost(folder / cell.name),
            )
            for cell in job.cells
        ]

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


def _begun_without_cost(run: Path) -> bool:
    """Whether a run was begun before the experiment had methods that weigh time, or while their fit had failed."""
    return (run / "run.json").exists() and read_header(run)["settings"].get("cost") is None


def atlas_needed(experiment: Experiment) -> bool:
    """Whether any method reads routes that come from an atlas, and pools come out as recorded: in float32 alone."""
    reads = weighs_cost(experiment) and any(route_choice(name, 0).needs_atlas for name in experiment.routes)
    return reads and _in_float32(experiment)


def _in_float32(experiment: Experiment) -> bool:
    try:
        return EngineSpec.recording(experiment).route_settings()["dtype"] == "float32"
    except ValueError:  # the checkpoint is on the workers only
        return experiment.dtype == "float32"


def weighs_cost(experiment: Experiment) -> bool:
    """Whether any method reads routes, and with them the cost coefficients."""
    return any(method_named(name, experiment.max_nodes).uses_routes for name in experiment.methods)


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
