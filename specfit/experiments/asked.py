"""An experiment as it was asked for: what `file.py` reads from a TOML file, checked, and described in JSON values."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from specfit.calibrate import probe_count
from specfit.workloads import Workload


@dataclass(frozen=True, slots=True)
class WorkloadPart:
    """Questions by name, with how they are given to the target."""

    workload: Workload
    raw: bool = False  # plain text, without a chat template
    paper: str | None = None  # the paper's ids that the file names: "summarization", "gsm8k", "gsm8k-4090"
    embedded: str | None = None  # kind of the embedded corpus: "problems" or "news"

    def describe(self) -> dict[str, Any]:
        """JSON values that change whenever a question, its text or a limit does."""
        questions = self.workload.questions
        texts = repr([(question.id, question.category, question.turns) for question in questions])
        return {
            "questions": [question.id for question in questions],
            "texts": _digest(texts.encode("utf-8", "surrogatepass")),
            "limits": asdict(self.workload.limits),
            "raw": self.raw,
            "paper": self.paper,
            "embedded": self.embedded,
        }


@dataclass(frozen=True, slots=True)
class CalibrationPart:
    """How the cost coefficients come about."""

    protocol: str = "consecutive"  # or "paper"
    questions: WorkloadPart | None = None  # what is decoded for it; None where `cost` is given
    cost: str | None = None  # a file of `specfit calibrate`, in place of a fit

    def describe(self) -> dict[str, Any]:
        """JSON values."""
        questions = None if self.questions is None else self.questions.describe()
        cost = None if self.cost is None else _digest(Path(self.cost).read_bytes())
        return {"protocol": self.protocol, "cost": cost, "questions": questions}

    @property
    def probes(self) -> int:
        """About how many cycles it measures for one cache."""
        return probe_count(self.protocol)


@dataclass(frozen=True, slots=True)
class Experiment:
    """A checked experiment file."""

    name: str
    workloads: tuple[WorkloadPart, ...]
    slots: tuple[int, ...]
    target: str = "embedded"
    drafter: str | None = None
    device: str | None = None  # CUDA if there is one
    dtype: str | None = None  # float32 on a CPU, else as stored
    threads: int = 1
    cleared: bool = False
    methods: tuple[str, ...] = ("ar", "eagle3", "specfit")
    routes: tuple[str, ...] = ("atlas",)
    head: str | None = None  # a trained route predictor's file; the embedded pair's ships with the package
    tuning: str | None = (
        None  # a world's file, of prompts on which methods that must know something beforehand are tuned
    )
    max_nodes: int = 7
    seeds: tuple[int, ...] = (0,)
    order: str = "method"
    draft: Mapping[str, int] = field(default_factory=dict)  # as DraftConfig
    link: Mapping[str, float] | None = None  # an emulated link's expert_ms and latency_ms
    calibration: CalibrationPart = field(default_factory=CalibrationPart)
    source: str = ""  # the file's text

    def describe(self) -> dict[str, Any]:
        """JSON values; two files that describe alike ask for the same experiment."""
        single = ("name", "target", "drafter", "device", "dtype", "threads", "cleared", "head", "max_nodes", "order")
        values = {name: getattr(self, name) for name in single}
        lists = {name: list(getattr(self, name)) for name in ("slots", "methods", "routes", "seeds")}
        tuning = {} if self.tuning is None else {"tuning": _digest(Path(self.tuning).read_bytes())}
        return {
            **values,
            **lists,
            **tuning,
            "cleared_slots": max(self.slots) if self.cleared else None,
            "draft": dict(self.draft),
            "link": None if self.link is None else dict(self.link),
            "calibration": self.calibration.describe(),
            "workloads": {part.workload.name: part.describe() for part in self.workloads},
        }

    def workload(self, name: str) -> WorkloadPart:
        """The workload of this name."""
        return next(part for part in self.workloads if part.workload.name == name)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
