"""One method's stream of requests: a run folder, the answers so far, and the expert cache between two questions.

The engine is lent to a stream for a question at a time. A stream begins with an empty expert cache, and brings back
what its last request left there before it goes on, so several streams can take turns on one engine (and a stopped one
can be resumed) without seeing each other's experts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specfit.cycle import Decoding, RouteSource, TruthSource
from specfit.kept_cache import Contents, keep_cache, kept_cache
from specfit.machine import describe_machine
from specfit.methods import Method
from specfit.objective import CostModel
from specfit.prompts import Prompt, decode_text, render, token_text
from specfit.records import CycleRecord, RequestRecord
from specfit.run_folder import RunWriter, load_run
from specfit.workloads import Question, Workload

if TYPE_CHECKING:
    from specfit.engine.engine import Engine


DECODING_ERRORS = (ValueError, ArithmeticError, RuntimeError, MemoryError)  # that spoil one request and not the next


class RequestStream:
    """Decodes questions one after the other into a run folder; close it to let go of the folder."""

    def __init__(
        self,
        engine: Engine,
        workload: Workload,
        folder: Path,
        *,
        method: Method,
        cost: CostModel | None,
        routes: RouteSource | None,
        truth: TruthSource | None,
        raw: bool,
        keep_going: bool,
        settings: Mapping[str, Any],
    ) -> None:
        """Opens or resumes the folder; RunError where it holds a run with other settings.

        keep_going: note a request that fails while it is decoded and go on, where otherwise its error is raised.
        """
        self._engine, self._workload, self._raw, self._keep_going = engine, workload, raw, keep_going
        self._decode: dict[str, Any] = {"method": method, "cost": cost, "routes": routes, "truth": truth}
        self._writer = RunWriter.open(
            folder, settings=settings, machine=describe_machine(), layers=engine.layers, experts=engine.experts
        )
        self._failed = False
        self._answers = _earlier_answers(self._writer)
        self._held: Contents = ((),) * engine.layers
        self._resumed = ""  # what the first request after a resumption says of it
        if self._answers:
            held = None if engine.offload.cleared else kept_cache(folder, self._writer.finished[-1])
            self._held = held or self._held
            how = "as its last request had left it" if held else "empty again"
            self._resumed = f"the run was resumed here, with the expert cache {how}"

    @property
    def finished(self) -> int:
        """Requests that the folder holds."""
        return len(self._writer.finished)

    def answer(self, question: Question, told: Callable[[int], None]) -> None:
        """Decode every turn that is not there yet. `told` hears the output tokens of the request in progress."""
        ids = [self._workload.request_id(question, turn) for turn in range(len(question.turns))]
        for turn, request_id in enumerate(ids):
            if request_id in self._writer.finished:
                continue
            said = [self._answers[earlier] for earlier in ids[:turn]]
            try:
                prompt = render(
                    self._engine.tokenizer, turn_messages(question, turn, said, raw=self._raw), raw=self._raw
                )
                room = self._engine.room(prompt.ids, self._workload.limits.new_tokens(len(prompt.ids)))
                self._engine.check_prompt(prompt.ids, room, drafts=self._decode["method"].max_nodes > 0)
            except ValueError as error:
                self._note_failure(request_id, error)
                return  # later turns need this one's answer
            decoding = self._engine.decode(prompt.ids, **self._decode, max_new_tokens=room)
            self._engine.offload.restore(self._held)
            try:
                record = self._request(request_id, question, prompt, decoding, told)
            except DECODING_ERRORS as error:
                if not self._keep_going:
                    raise
                self._note_failure(request_id, error)
                return
            self._held = self._engine.offload.contents()
            if not self._engine.offload.cleared:
                last = self._writer.finished[-1] if self._writer.finished else None
                keep_cache(self._writer.folder, request_id, self._held, finished=last)
            self._writer.append(record, tokens=_texts(self._engine.tokenizer, record))
            self._answers[request_id] = record.output_text
            self._resumed = ""
            told(0)

    def finish(self) -> None:
        """All questions were asked: mark the run complete, unless one of them failed."""
        if not self._failed:
            self._writer.finish()

    def close(self) -> None:
        """Let go of the folder; the stream can be resumed."""
        self._writer.close()

    def _note_failure(self, request_id: str, error: Exception) -> None:
        reason = str(error) or type(error).__name__
        self._writer.append_failure(
            request_id, reason if isinstance(error, ValueError) else f"{_kind(error)}: {reason}"
        )
        self._failed = True

    def _request(
        self, request_id: str, question: Question, prompt: Prompt, decoding: Decoding, told: Callable[[int], None]
    ) -> RequestRecord:
        cycles = tuple(_watched(decoding, told))
        self._engine.check_logits()
        notes = list(prompt.notes)
        unknown = [cycle.index for cycle in cycles if cycle.truth is None]
        if self._decode["truth"] is not None and unknown:
            notes.append(
                f"{len(unknown)} cycles, from cycle {unknown[0]} on, are not on the atlas's text: no truth kept"
            )
        extra: dict[str, Any] = {
            "reference": question.reference,
            "number": question.number,
            "turns": len(question.turns),
            "prompt_text": prompt.text,
            "template_hash": prompt.template_hash,
            "notes": notes,
        }
        if self._resumed:
            extra["resumed"] = self._resumed
        return RequestRecord(
            request_id=request_id,
            question_id=question.id,
            category=question.category,
            prompt_tokens=decoding.prompt,
            output_tokens=tuple(decoding.output),
            output_text=decode_text(self._engine.tokenizer, decoding.output),
            stop_reason=decoding.stop_reason,
            request_ms=decoding.request_ms,
            prefill_ms=decoding.prefill_ms,
            prefill=decoding.prefill_counts,
            cycles=cycles,
            extra=extra,
        )


def turn_messages(question: Question, turn: int, answers: Sequence[str], *, raw: bool) -> str | list[dict[str, str]]:
    """What a turn gives to the template: in raw mode its text alone, else the conversation so far."""
    if raw:
        return question.turns[turn]
    said: list[dict[str, str]] = []
    for text, answer in zip(question.turns[:turn], answers, strict=False):
        said += [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]
    return [*said, {"role": "user", "content": question.turns[turn]}]


def _kind(error: Exception) -> str:
    """Where the failure lies, in words: running out of memory is the usual one."""
    name = type(error).__name__
    return "out of memory" if isinstance(error, MemoryError) or "OutOfMemory" in name else name


def _watched(decoding: Decoding, told: Callable[[int], None]) -> Iterator[CycleRecord]:
    for cycle in decoding:
        told(len(decoding.output))
        yield cycle


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
