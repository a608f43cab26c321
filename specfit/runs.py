"""Method x workload x cache -> a run folder. The one file that joins the cycle, the engine and the records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specfit.cycle import RouteSource, TruthSource
from specfit.methods import Method
from specfit.objective import CostModel, CycleState
from specfit.prompts import Prompt, render
from specfit.records import RunRecord, Truth
from specfit.request_stream import RequestStream
from specfit.run_folder import load_run
from specfit.run_reading import read_header
from specfit.tree import DraftPool
from specfit.workloads import Workload

if TYPE_CHECKING:
    from specfit.engine.atlas import Atlas
    from specfit.engine.engine import Engine
    from specfit.engine.route_head import RouteHead

ROUTE_SOURCES = ("atlas", "head", "last-token", "prior")


@dataclass(frozen=True, slots=True)
class RouteChoice:
    """Where a method's route estimates come from.

    Raises ValueError for an unknown source, or an accuracy of any but the atlas.
    """

    accuracy: float = 1.0  # share of routed experts that an atlas's estimate has right (Section 4.6); below 1 is noise
    seed: int = 0  # of the noise
    source: str = "atlas"  # or "head" (trained predictor), "last-token", "prior" (each layer's most used experts)
    head: RouteHead | None = None  # of "head" and "prior"; the one that ships for the embedded pair unless given

    def __post_init__(self) -> None:
        if self.source not in ROUTE_SOURCES:
            raise ValueError(f"routes come from {', '.join(ROUTE_SOURCES)}; got {self.source!r}")
        if self.source != "atlas" and self.accuracy != 1:
            raise ValueError(f"a simulated accuracy is noise on an atlas's routes; {self.source!r} has its own")

    @property
    def needs_atlas(self) -> bool:
        """Whether the estimates come from an atlas of the workload."""
        return self.source == "atlas"

    def make(self, engine: Engine, atlas: Atlas | None) -> tuple[RouteSource, dict[str, Any]]:
        """The source, and JSON values that name it in a run's settings; ValueError where what it needs is not there."""
        if self.source == "atlas" and not fits_a_recording(engine):
            from specfit.engine.route_sources import TargetRoutes  # here: it loads torch

            asked = TargetRoutes(engine, accuracy=self.accuracy, seed=self.seed)
            return asked, {"source": "target", "accuracy": self.accuracy, "seed": self.seed}
        if self.source == "atlas":
            if atlas is None:
                raise ValueError("estimates from an atlas need one; record an atlas for the workload first")
            source = atlas if self.accuracy == 1 else atlas.noisy(self.accuracy, seed=self.seed)
            return source, {"source": self.source, "accuracy": self.accuracy, "seed": self.seed}
        from specfit.engine.route_sources import HeadRoutes, LastTokenRoutes, PriorRoutes  # here: they load torch

        if self.source == "last-token":
            return LastTokenRoutes(engine), {"source": self.source}
        predictor = (HeadRoutes if self.source == "head" else PriorRoutes)(engine, self.head)
        return predictor, {"source": self.source, "head": predictor.head.digest}


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run is, for a progress bar."""

    finished: int  # requests
    total: int
    tokens: int  # output tokens of the request in progress


def fits_a_recording(engine: Engine) -> bool:
    """Whether every method meets the pools and texts that an atlas holds: in float32. In half precision a forward of
    other rows rounds otherwise, and the exact routes are asked from the target itself, off the clock."""
    return engine.settings["dtype"] == "float32"


def prompts_of(engine: Engine, workload: Workload, *, raw: bool = False) -> list[Prompt]:
    """The first turn of every question as the target gets it."""
    return [render(engine.tokenizer, question.turns[0], raw=raw) for question in workload.questions]


def run_method(
    engine: Engine,
    workload: Workload,
    folder: str | Path,
    *,
    method: Method,
    cost: CostModel | None = None,
    atlas: Atlas | None = None,
    routes: RouteChoice | None = None,
    raw: bool = False,
    settings: Mapping[str, Any] | None = None,
    keep_going: bool = False,
    progress: Callable[[Progress], None] = lambda at: None,
) -> RunRecord:
    """Decode a workload with one method into a run folder, or finish one that was cut short; returns the whole run.

    The request stream begins with an empty expert cache whose contents carry over between questions, and over a stop
    and its resumption. A question that cannot be rendered or is too long is noted in the folder, with its reason, and
    the rest goes on.
    atlas: with it every record also keeps the truth about its pool. routes: what the method's policy reads; the atlas
    unless given.
    settings: more that makes the run this run. keep_going: note what goes wrong while decoding a question, too.
    Raises RunError for a folder that holds another configuration, ValueError for a stale atlas or a missing cost.
    """
    part = MethodRun(Path(folder), method, routes or RouteChoice())
    more: dict[str, Any] = {"raw": raw, "settings": settings or {}, "keep_going": keep_going, "progress": progress}
    return run_interleaved(engine, workload, [part], cost=cost, atlas=atlas, **more)[0]


@dataclass(frozen=True, slots=True)
class MethodRun:
    """One of several methods that decode the same workload in turns."""

    folder: Path
    method: Method
    routes: RouteChoice = field(default_factory=RouteChoice)
    settings: Mapping[str, Any] = field(default_factory=dict)  # more that makes this run this run


def run_interleaved(
    engine: Engine,
    workload: Workload,
    parts: Sequence[MethodRun],
    *,
    cost: CostModel | None = None,
    atlas: Atlas | None = None,
    raw: bool = False,
    settings: Mapping[str, Any] | None = None,
    keep_going: bool = False,
    progress: Callable[[Progress], None] = lambda at: None,
) -> list[RunRecord]:
    """`run_method` for several methods, question by question, so that a machine that drifts drifts for all of them.

    Every method has its own expert cache: before its turn the engine's slots are filled with what its last request left
    behind, outside every timer and without a copy being counted. Who comes first moves on by one with every question.
    keep_going: also where a method cannot begin at all; the others end before its error is raised.
    """
    if not fits_a_recording(engine):
        atlas = None
    if atlas is not None:
        atlas.check(engine.route_settings)
    engine.reset()
    with ExitStack() as opened:
        streams, refused = [], []
        for part in parts:
            try:
                stream = _stream(
                    engine, workload, part, cost=cost, atlas=atlas, raw=raw, settings=settings, keep_going=keep_going
                )
            except ValueError as error:
                if not keep_going or len(parts) == 1 or isinstance(error.__cause__, OSError):
                    raise
                refused.append(f"{part.folder.name}: {error}")
            else:
                streams.append(opened.enter_context(closing(stream)))
        total = len(streams) * sum(len(question.turns) for question in workload.questions)

        def told(tokens: int) -> None:
            progress(Progress(sum(stream.finished for stream in streams), total, tokens))

        for number, question in enumerate(workload.questions):
            for turn in range(len(streams)):
                streams[(number + turn) % len(streams)].answer(question, told)
        for stream in streams:
            stream.finish()
    if refused:
        raise ValueError("; ".join(refused))
    return [load_run(part.folder) for part in parts]


def _stream(
    engine: Engine,
    workload: Workload,
    part: MethodRun,
    *,
    cost: CostModel | None,
    atlas: Atlas | None,
    raw: bool,
    settings: Mapping[str, Any] | None,
    keep_going: bool,
) -> RequestStream:
    reads, truth = part.method.uses_routes, None if atlas is None else atlas.truth
    own = cost if reads or not _begun_without_cost(part.folder) else None
    source, about = part.routes.make(engine, atlas) if reads else (None, None)
    what = _run_settings(engine, workload, part, routes=about, cost=own, raw=raw) | dict(settings or {})
    return RequestStream(
        engine, workload, part.folder, method=with_memory(part, own), cost=own, routes=source,
        truth=truth if reads or truth is None else _where_known(truth), raw=raw, keep_going=keep_going, settings=what,
    )  # fmt: skip


def _begun_without_cost(run: Path) -> bool:
    """Whether a run was begun before there were coefficients: a method that reads no routes goes on without them."""
    return (run / "run.json").exists() and read_header(run)["settings"].get("cost") is None


def with_memory(part: MethodRun, cost: CostModel | None) -> Method:
    """A policy with a memory (it has `fresh`) begins a stream without one, or with what its finished requests left."""
    fresh = getattr(part.method.policy, "fresh", None)
    if fresh is None:
        return part.method
    method = replace(part.method, policy=fresh())
    for _, cycle in load_run(part.folder).cycles() if (part.folder / "run.json").exists() else ():
        if cycle.estimate is not None and cost is not None:
            method.select(CycleState(cycle.pool, cycle.estimate), cost)
    return method


def _where_known(truth: TruthSource) -> TruthSource:
    """None off the atlas's text, where a near-tie may lead: a method that reads no routes decodes on all the same."""

    def known(context: Sequence[int], pool: DraftPool) -> Truth | None:
        try:
            return truth(context, pool)
        except ValueError:
            return None

    return known


def _run_settings(
    engine: Engine,
    workload: Workload,
    part: MethodRun,
    *,
    routes: Mapping[str, Any] | None,
    cost: CostModel | None,
    raw: bool,
) -> dict[str, Any]:
    """What makes a run this run: another value is another run."""
    return {
        "method": part.method.name,
        "max_nodes": part.method.max_nodes,
        "adaptive_depth": part.method.adaptive_depth,
        **engine.settings,
        "workload": workload.name,
        "limits": asdict(workload.limits),
        "questions": [question.id for question in workload.questions],
        "raw": raw,
        "routes": routes,
        "cost": None if cost is None else asdict(cost),
        **part.settings,
    }


def find_runs(folders: Sequence[str | Path]) -> list[Path]:
    """The run folders among `folders` and right below them (an experiment's), in order; ValueError for none."""
    found: list[Path] = []
    for folder in map(Path, folders):
        inside = sorted(path.parent for path in folder.glob("*/run.json")) if folder.is_dir() else []
        here = [folder] if (folder / "run.json").exists() else inside
        if not here:
            what = "is no run folder and holds none" if folder.is_dir() else "does not exist"
            raise ValueError(f"{folder} {what}; give the folder that `specfit run` or `specfit demo` printed")
        found += here
    return found
