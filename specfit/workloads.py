"""What is decoded: questions with their limits, from the embedded corpus or from a Spec-Bench question file.

Spec-Bench files are JSON lines with `question_id`, `category`, `turns` (texts; two in some categories) and sometimes
`reference`. Texts are kept to the character: articles hold no-break spaces and may hold any Unicode line separator, so
lines end at LF alone. Which questions the paper decodes is data here (Appendix B), as are its token limits.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specfit.safe_files import parse_json


class WorkloadError(ValueError):
    """A question file or a choice of questions is not as it must be: one sentence for the person in front of it."""


@dataclass(frozen=True, slots=True)
class Question:
    """One question; every turn is a prompt of its own, after the turns and answers before it."""

    id: int | str
    category: str
    turns: tuple[str, ...]
    reference: Any = None  # as the file has it: often a tuple of answers, one a turn; None where there is none
    number: float | None = None  # the right final number, where an answer can be checked by it


@dataclass(frozen=True, slots=True)
class Limits:
    """How long an answer may get: new tokens, or prompt and new tokens together; both may hold at once."""

    max_new_tokens: int | None = None
    max_total_tokens: int | None = None

    def __post_init__(self) -> None:
        given = [limit for limit in (self.max_new_tokens, self.max_total_tokens) if limit is not None]
        if not given or min(given) < 1:
            raise WorkloadError(
                f"a workload needs max_new_tokens or max_total_tokens, 1 or more; got {self.max_new_tokens} and "
                f"{self.max_total_tokens}"
            )

    def new_tokens(self, prompt_tokens: int) -> int:
        """New tokens that a prompt of this many tokens may get; WorkloadError where the prompt leaves room for none."""
        room = [limit for limit in (self.max_new_tokens,) if limit is not None]
        if self.max_total_tokens is not None:
            room.append(self.max_total_tokens - prompt_tokens)
        if min(room) < 1:
            raise WorkloadError(
                f"the prompt has {prompt_tokens} tokens and the limit is {self.max_total_tokens} for prompt and answer "
                "together; raise the limit or leave the question out (prompts are never cut)"
            )
        return min(room)


@dataclass(frozen=True, slots=True)
class Workload:
    """Questions in the order in which they are decoded. Raises WorkloadError for none, or an id twice."""

    name: str
    questions: tuple[Question, ...]
    limits: Limits
    notes: tuple[str, ...] = ()  # what a report must say about it, a sentence each

    def __post_init__(self) -> None:
        if not self.questions:
            raise WorkloadError(f"workload {self.name!r} has no questions; ask for at least one")
        seen: set[str] = set()  # as text: 7 and "7" would give one request id
        for question in self.questions:
            if str(question.id) in seen:
                raise WorkloadError(f"workload {self.name!r} has question {question.id!r} twice")
            seen.add(str(question.id))

    def request_id(self, question: Question, turn: int = 0) -> str:
        """The id of a request in a run: unique in the workload, the same in every run of it."""
        return f"{self.name}/{question.id}/{turn}"


# -- the embedded corpus ---------------------------------------------------------------------------------------------


def embedded_workload(
    kind: str, *, split: str = "test", count: int = 60, first: int = 0, max_new_tokens: int = 200
) -> Workload:
    """`count` questions of the embedded corpus: "problems" (word problems) or "news" (reports to summarise)."""
    from specfit.embedded import corpus  # here: a Spec-Bench file needs no corpus

    draws: dict[str, Callable[..., Iterable[Any]]] = {"problems": corpus.problems, "news": corpus.news}
    if kind not in draws:
        raise WorkloadError(f"there is no embedded workload {kind!r}; choose one of {_names(draws)}")
    if count < 1:
        raise WorkloadError(f"a workload has at least one question; got count = {count}")
    try:
        rows = tuple(draws[kind](split, count, first=first))
    except ValueError as error:
        raise WorkloadError(str(error)) from None
    questions = tuple(Question(row.id, row.kind, (row.prompt,), row.answer, row.number) for row in rows)
    return Workload(kind if split == "test" else f"{kind}-{split}", questions, Limits(max_new_tokens=max_new_tokens))


# -- Spec-Bench ------------------------------------------------------------------------------------------------------

# Appendix B: ids and the limit on input and output tokens together.
PAPER_WORKLOADS = {
    "summarization": (tuple(range(242, 321, 2)), 2048),
    "gsm8k": (tuple(range(401, 481)), 512),
    "gsm8k-4090": (tuple(range(401, 480, 2)), 512),
}
CALIBRATION_IDS = (401, 402, 403)  # the paper's nine calibration states come from these


def paper_ids(name: str) -> tuple[tuple[int, ...], Limits]:
    """The question ids and limits of the paper's "summarization", "gsm8k" (A100) or "gsm8k-4090"."""
    if name not in PAPER_WORKLOADS:
        raise WorkloadError(f"the paper has no workload {name!r}; choose one of {_names(PAPER_WORKLOADS)}")
    ids, max_total_tokens = PAPER_WORKLOADS[name]
    return ids, Limits(max_total_tokens=max_total_tokens)


def spec_bench(
    path: str | Path,
    *,
    category: str | None = None,
    ids: Collection[int | str] | None = None,
    limit: int | None = None,
    limits: Limits | None = None,
    name: str | None = None,
) -> Workload:
    """Questions of a Spec-Bench question file, in the file's order.

    category: exactly this one ("math" and "math_reasoning" are two). ids: exactly these (242 and "242" are the same).
    limit: only the first so many of what is left.
    limits: 1024 new tokens, Spec-Bench's own, unless given. name: "spec-bench", with the category, unless given.
    Raises WorkloadError that names the physical line, the category or the ids at fault.
    """
    questions = read_questions(path)
    if category is not None:
        found = {question.category: None for question in questions}
        questions = tuple(question for question in questions if question.category == category)
        if not questions:
            raise WorkloadError(f"{path} has no category {category!r}; it has {_names(found)}")
    if ids is not None:
        present, wanted = {str(question.id) for question in questions}, {str(ident) for ident in ids}
        absent = [ident for ident in ids if str(ident) not in present]
        if absent:
            where = f"{path}" if category is None else f"category {category!r} of {path}"
            span = _span([question.id for question in questions])
            raise WorkloadError(f"{where} has no question {_names(absent)}; its ids are {span}")
        questions = tuple(question for question in questions if str(question.id) in wanted)
    if limit is not None and limit < 1:
        raise WorkloadError(f"a workload has at least one question; got limit = {limit}")
    notes: tuple[str, ...] = ()
    if {question.id for question in questions[:limit]} & set(CALIBRATION_IDS):
        notes = ("questions 401-403, from which the paper's calibration states come, are among those decoded here",)
    default_name = "spec-bench" if category is None else f"spec-bench-{category}"
    return Workload(name or default_name, questions[:limit], limits or Limits(max_new_tokens=1024), notes)


def read_questions(path: str | Path) -> tuple[Question, ...]:
    """All questions of a question file; WorkloadError names the line (counted in the file, from 1) at fault."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise WorkloadError(f"the question file {path} cannot be read: {error.strerror}") from None
    questions: list[Question] = []
    lines: dict[str, int] = {}  # of every id, as text
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not raw.strip():
            continue
        try:
            question = _question(parse_json(raw.decode("utf-8"), parse_constant=_refuse, parse_float=_finite))
            if str(question.id) in lines:
                raise ValueError(f"question {question.id!r} is on line {lines[str(question.id)]} already")
        except UnicodeDecodeError as error:
            raise WorkloadError(f"line {number} of {path} is not UTF-8 ({error.reason}); save it as UTF-8") from None
        except json.JSONDecodeError as error:
            why = f"{error.msg} at column {error.colno}"
            raise WorkloadError(f"line {number} of {path} is not JSON ({why}); expected one question a line") from None
        except ValueError as error:
            raise WorkloadError(f"line {number} of {path} is no question: {error}") from None
        lines[str(question.id)] = number
        questions.append(question)
    if not questions:
        raise WorkloadError(f"the question file {path} holds no questions")
    return tuple(questions)


def _refuse(constant: str) -> None:
    raise ValueError(f"it holds {constant}, which is not JSON")


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"it holds {_short(number)}, which is too large for a number")
    return value


def _question(row: Any) -> Question:
    """A question from its JSON object; ValueError names the field that is wrong."""
    if not isinstance(row, dict):
        raise ValueError(f"it is a JSON {type(row).__name__}; expected an object")
    missing = [key for key in ("question_id", "category", "turns") if key not in row]
    if missing:
        raise ValueError(f"it has no {' and no '.join(missing)}")
    ident, category, turns = row["question_id"], row["category"], row["turns"]
    if isinstance(ident, bool) or not isinstance(ident, int | str):
        raise ValueError(f"question_id is {ident!r}; expected an integer or text")
    if not isinstance(category, str):
        raise ValueError(f"category is {category!r}; expected text")
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) for turn in turns):
        raise ValueError(f"turns is {_short(turns)}; expected a list of texts, at least one")
    if not all(turn.strip() for turn in turns):
        raise ValueError(f"turn {next(n for n, turn in enumerate(turns, 1) if not turn.strip())} is empty")
    reference = row.get("reference")
    return Question(ident, category, tuple(turns), tuple(reference) if isinstance(reference, list) else reference)


def _names(values: Iterable[object]) -> str:
    listed = [repr(value) for value in values]
    return ", ".join(listed if len(listed) <= 20 else [*listed[:20], f"and {len(listed) - 20} more"])


def _span(ids: Collection[int | str]) -> str:
    numbers = sorted(ident for ident in ids if isinstance(ident, int))
    texts = sorted(ident for ident in ids if isinstance(ident, str))
    span = [f"{numbers[0]}..{numbers[-1]}"] if numbers else []
    return ", ".join(span + ([_names(texts)] if texts else [])) + f" ({len(ids)} in all)"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
