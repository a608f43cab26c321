"""Method x workload x cache -> a run folder. The one file that joins the cycle, the engine and the records."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specfit.cycle import RouteSource, TruthSource
from specfit.methods import Method
from specfit.objective import CostModel
from specfit.prompts import Prompt, decode_text, render
from specfit.records import RunRecord, Truth
from specfit.request_stream import DECODING_ERRORS, RequestStream, turn_messages
from specfit.run_folder import load_run
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


def ensure_atlas(
    path: Path,
    resident: Callable[[], AbstractContextManager[Engine]],
    workload: Workload,
    *,
    raw: bool = False,
    expected: Callable[[], Mapping[str, Any]] | None = None,
    keep_going: bool = False,
    progress: Callable[[int], None] = lambda done: None,
) -> Atlas:
    """The atlas kept at `path`, or a new one recorded over the workload and kept there.

    resident: lends the engine that records, all its experts on the device and no link; its settings also tell whether
    the atlas there still serves. One made with other settings, or for other prompts, is recorded again.
    expected: the engine's `route_settings` without loading it; a kept atlas that agrees with them needs no engine.
    keep_going: leave out a question on which decoding fails (methods that read routes will lack it), unless all do.
    """
    from specfit.engine.atlas import Atlas, Trajectory, record_trajectory  # here: a run without routes needs no atlas

    texts = [(question.id, question.turns) for question in workload.questions]
    asked = hashlib.sha256(repr((texts, raw, asdict(workload.limits))).encode()).hexdigest()[:16]
    kept = Atlas.load(path) if path.exists() else None
    if kept is not None and expected is not None and kept.made_with == {**expected(), "questions": asked}:
        return kept
    with resident() as engine:
        made_with = {**engine.route_settings, "questions": asked}
        if kept is not None and kept.made_with == made_with:
            return kept
        trajectories: list[Trajectory] = []
        failed: Exception | None = None
        for done, question in enumerate(workload.questions, start=1):
            answers: list[str] = []
            for turn in range(len(question.turns)):
                try:
                    ids = render(engine.tokenizer, turn_messages(question, turn, answers, raw=raw), raw=raw).ids
                    room = engine.room(ids, workload.limits.new_tokens(len(ids)))
                except ValueError:
                    break  # the run itself notes it
                try:
                    trajectories.append(record_trajectory(engine, ids, max_new_tokens=room))
                except DECODING_ERRORS as error:
                    if not keep_going:
                        raise
                    failed = error.with_traceback(None)  # which would hold on to memory that ran out
                    break
                answers.append(decode_text(engine.tokenizer, trajectories[-1].output))
            progress(done)
        if failed is not None and not trajectories:
            raise failed
        atlas = Atlas(trajectories, experts=engine.experts, made_with=made_with)
    atlas.save(path)
    return atlas


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
    weighs_cost: bool = True  # False: a method that reads no routes goes without coefficients, as its run was begun


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
    own = cost if reads or part.weighs_cost else None
    source, about = part.routes.make(engine, atlas) if reads else (None, None)
    what = _run_settings(engine, workload, part, routes=about, cost=own, raw=raw) | dict(settings or {})
    return RequestStream(
        engine, workload, part.folder, method=part.method, cost=own, routes=source,
        truth=truth if reads or truth is None else _where_known(truth), raw=raw, keep_going=keep_going, settings=what,
    )  # fmt: skip


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
