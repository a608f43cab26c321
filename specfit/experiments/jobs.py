"""The jobs of an experiment as values: record an atlas, fit the cost, run some cells.

A job says everything it needs, so it can be sent away (`work.py` does it, wherever it is).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specfit.experiments.asked import Experiment, WorkloadPart
from specfit.experiments.by_name import method_named, route_choice
from specfit.experiments.plan import Cell
from specfit.experiments.tuning import TUNED

if TYPE_CHECKING:
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
            device=experiment.device or ("cpu" if experiment.link is not None else None),  # it stands in for a real one
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
    tuning: str | None  # a world's file
    settings: Mapping[str, Any]  # that every run of it keeps, beside the engine's


Job = AtlasJob | FitJob | CellsJob


def atlas_needed(experiment: Experiment) -> bool:
    """Whether any method reads routes that come from an atlas, and pools come out as recorded: in float32 alone."""
    reads = any(_reads_routes(experiment, name) for name in experiment.methods)
    return reads and any(route_choice(name, 0).needs_atlas for name in experiment.routes) and _in_float32(experiment)


def _in_float32(experiment: Experiment) -> bool:
    try:
        return EngineSpec.recording(experiment).route_settings()["dtype"] == "float32"
    except ValueError:  # the checkpoint is on the workers only
        return experiment.dtype == "float32"


def weighs_cost(experiment: Experiment) -> bool:
    """Whether any method weighs time: one that reads routes, or a rule that is tuned on it."""
    return any(name in TUNED or _reads_routes(experiment, name) for name in experiment.methods)


def _reads_routes(experiment: Experiment, method: str) -> bool:
    return method_named(method, experiment.max_nodes).uses_routes
