"""Method x workload x cache -> a run folder. The one file that joins the cycle, the engine and the records."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specfit.cycle import Decoding
from specfit.machine import describe_machine
from specfit.methods import Method
from specfit.objective import CostModel
from specfit.prompts import Prompt, decode_text, render, token_text
from specfit.records import CycleRecord, RequestRecord, RunRecord
from specfit.run_folder import RunWriter, load_run
from specfit.workloads import Question, Workload

if TYPE_CHECKING:
    from specfit.engine.atlas import Atlas
    from specfit.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class RouteChoice:
    """Where a method's route estimates come from: the atlas, with simulated noise below accuracy 1."""

    accuracy: float = 1.0  # share of routed experts that the estimate has right (Section 4.6)
    seed: int = 0

    def describe(self) -> dict[str, Any]:
        """JSON values for a run's settings."""
        return {"source": "atlas", **asdict(self)}


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run is, for a progress bar."""

    finished: int  # requests
    total: int
    tokens: int  # output tokens of the request in progress


def prompts_of(engine: Engine, workload: Workload, *, raw: bool = False) -> list[Prompt]:
    """The first turn of every question as the target gets it."""
    return [render(engine.tokenizer, question.turns[0], raw=raw) for question in workload.questions]


def ensure_atlas(
    path: Path,
    resident: Callable[[], Engine],
    workload: Workload,
    *,
    raw: bool = False,
    progress: Callable[[int], None] = lambda done: None,
) -> Atlas:
    """The atlas kept at `path`, or a new one recorded over the workload and kept there.

    resident: loads the engine that records, all its experts on the device and no link; its settings also tell whether
    the atlas there still serves. One made with other settings, or for other prompts, is recorded again.
    """
    from specfit.engine.atlas import Atlas, record_trajectory  # here: a run without routes needs no atlas

    with resident() as engine:
        texts = [(question.id, question.turns) for question in workload.questions]
        asked = hashlib.sha256(repr((texts, raw, asdict(workload.limits))).encode()).hexdigest()[:16]
        made_with = {**engine.route_settings, "questions": asked}
        if path.exists():
            kept = Atlas.load(path)
            if kept.made_with == made_with:
                return kept
        trajectories = []
        for done, question in enumerate(workload.questions, start=1):
            answers: list[str] = []
            for turn in range(len(question.turns)):
                try:
                    ids = render(engine.tokenizer, _messages(question, turn, answers, raw=raw), raw=raw).ids
                    room = engine.room(ids, workload.limits.new_tokens(len(ids)))
                except ValueError:
                    break  # the run itself notes it
                trajectories.append(record_trajectory(engine, ids, max_new_tokens=room))
                answers.append(decode_text(engine.tokenizer, trajectories[-1].output))
            progress(done)
        atlas = Atlas(trajectories, experts=engine.experts, made_with=made_with)
    atlas.save(path)
    return atlas


def _messages(question: Question, turn: int, answers: Sequence[str], *, raw: bool) -> str | list[dict[str, str]]:
    """What a turn gives to the template: in raw mode its text alone, else the conversation so far."""
    if raw:
        return question.turns[turn]
    said: list[dict[str, str]] = []
    for text, answer in zip(question.turns[:turn], answers, strict=False):
        said += [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]
    return [*said, {"role": "user", "content": question.turns[turn]}]


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
    progress: Callable[[Progress], None] = lambda at: None,
) -> RunRecord:
    """Decode a workload with one method into a run folder, or finish one that was cut short; returns the whole run.

    The request stream begins with an empty expert cache whose contents carry over between questions. A question that
    cannot be rendered or is too long is noted in the folder, with its reason, and the rest goes on.
    atlas: needed by methods that read routes; with it every record also keeps the truth about its pool.
    Raises RunError for a folder that holds another configuration, ValueError for a stale atlas or a missing cost.
    """
    if atlas is not None:
        atlas.check(engine.route_settings)
    choice = routes or RouteChoice()
    if method.uses_routes and atlas is None:
        raise ValueError(f"method {method.name!r} reads routes; record an atlas for the workload first")
    source = None
    if method.uses_routes and atlas is not None:
        source = atlas if choice.accuracy == 1 else atlas.noisy(choice.accuracy, seed=choice.seed)
    settings = {
        "method": method.name,
        "max_nodes": method.max_nodes,
        "adaptive_depth": method.adaptive_depth,
        **engine.settings,
        "workload": workload.name,
        "limits": asdict(workload.limits),
        "questions": [question.id for question in workload.questions],
        "raw": raw,
        "routes": choice.describe() if method.uses_routes else None,
        "cost": None if cost is None else asdict(cost),
    }
    writer = RunWriter.open(
        folder, settings=settings, machine=describe_machine(), layers=engine.layers, experts=engine.experts
    )
    engine.reset()
    failed = False
    with closing(writer):
        answers = _earlier_answers(writer)
        resumed = bool(answers)
        total = sum(len(question.turns) for question in workload.questions)
        for question in workload.questions:
            for turn in range(len(question.turns)):
                request_id = workload.request_id(question, turn)
                if request_id in writer.finished:
                    continue
                said = [answers[workload.request_id(question, earlier)] for earlier in range(turn)]
                try:
                    prompt = render(engine.tokenizer, _messages(question, turn, said, raw=raw), raw=raw)
                    room = engine.room(prompt.ids, workload.limits.new_tokens(len(prompt.ids)))
                except ValueError as error:
                    writer.append_failure(request_id, str(error))
                    failed = True
                    break  # later turns need this one's answer
                decoding = engine.decode(
                    prompt.ids,
                    method=method,
                    cost=cost,
                    routes=source,
                    truth=None if atlas is None else atlas.truth,
                    max_new_tokens=room,
                )
                cycles = _watched(decoding, lambda tokens: progress(Progress(len(writer.finished), total, tokens)))
                record = _request(request_id, question, prompt, decoding, cycles, engine, resumed=resumed)
                writer.append(record, tokens=_texts(engine.tokenizer, record))
                answers[request_id] = record.output_text
                progress(Progress(len(writer.finished), total, 0))
        if not failed:
            writer.finish()
    return load_run(folder)


def _watched(decoding: Decoding, told: Callable[[int], None]) -> Iterator[CycleRecord]:
    for cycle in decoding:
        told(len(decoding.output))
        yield cycle


def _request(
    request_id: str,
    question: Question,
    prompt: Prompt,
    decoding: Decoding,
    cycles: Iterator[CycleRecord],
    engine: Engine,
    *,
    resumed: bool,
) -> RequestRecord:
    done = tuple(cycles)
    extra: dict[str, Any] = {
        "reference": question.reference,
        "number": question.number,
        "prompt_text": prompt.text,
        "template_hash": prompt.template_hash,
        "notes": list(prompt.notes),
    }
    if resumed:
        extra["resumed"] = "the expert cache began empty again when the run was resumed"
    return RequestRecord(
        request_id=request_id,
        question_id=question.id,
        category=question.category,
        prompt_tokens=decoding.prompt,
        output_tokens=tuple(decoding.output),
        output_text=decode_text(engine.tokenizer, decoding.output),
        stop_reason=decoding.stop_reason,
        request_ms=decoding.request_ms,
        prefill_ms=decoding.prefill_ms,
        prefill=decoding.prefill_counts,
        cycles=done,
        extra=extra,
    )


def _texts(tokenizer: Any, record: RequestRecord) -> Mapping[int, str]:
    """Text of every token that a view of the request shows."""
    shown = {*record.output_tokens, *(token for cycle in record.cycles for token in cycle.pool.tokens)}
    for cycle in record.cycles:
        shown.update(cycle.truth.next_tokens if cycle.truth is not None else ())
    return {token: token_text(tokenizer, token) for token in sorted(shown)}


def _earlier_answers(writer: RunWriter) -> dict[str, str]:
    """Answers a resumed folder already holds: a second turn needs the first one's."""
    if not writer.finished:
        return {}
    return {request.request_id: request.output_text for request in load_run(writer.folder).requests}


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
