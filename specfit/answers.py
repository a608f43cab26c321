"""Runs as Spec-Bench answer files, and Spec-Bench's own speed-up beside the paper's.

One JSON object a question and line, as Spec-Bench's evaluation writes them, so that its `speed.py` and `equal.py` read
them: `choices[0]` holds `turns` (texts), `decoding_steps` (cycles), `new_tokens` and `wall_time` (seconds) of every
turn, and `accept_lengths`, the tokens that each cycle committed. Two traps of those scripts: `equal.py` compares files
line by line and says nothing of lines that one of them lacks, and `speed.py` counts the baseline's tokens by tokenizing
its texts again, less one a turn for a start token, which many tokenizers (Qwen's) do not add.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from specfit.metrics import shared_requests
from specfit.records import RequestRecord, RunRecord
from specfit.run_folder import load_failures, load_run
from specfit.run_reading import load_sessions
from specfit.safe_files import replace_file


@dataclass(frozen=True, slots=True)
class Answers:
    """The lines of an answer file, and what its reader must know."""

    lines: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...]  # questions left out, with the reason

    def jsonl(self) -> bytes:
        """The file."""
        return b"".join(json.dumps(line, allow_nan=False).encode() + b"\n" for line in self.lines)


def answers_of(run: RunRecord, *, tstamp: float = 0.0, failures: Mapping[str, str] | None = None) -> Answers:
    """The answers of a run, in its questions' order. A question whose turns are not all there is left out and named.

    tstamp: seconds since 1970 that every line carries. failures: request ids and why they failed.
    """
    questions: dict[str, list[RequestRecord]] = {}
    for request in run.requests:
        questions.setdefault(str(request.question_id), []).append(request)
    model = f"{run.settings.get('target', 'unknown')}/{run.method}"
    lines, notes = [], []

    def why(name: str, otherwise: str) -> str:
        start = f"{run.settings.get('workload')}/{name}/"
        return next((reason for ident, reason in (failures or {}).items() if ident.startswith(start)), otherwise)

    order = {str(ident): place for place, ident in enumerate(run.settings.get("questions", ()))}
    # A question that failed first and was answered on resuming is last in the run, and `equal.py` pairs lines.
    for name in sorted(questions, key=lambda name: order.get(name, len(order))):
        turns = questions[name]
        asked = int(turns[0].extra.get("turns", 1))
        if len(turns) < asked:
            reason = why(name, "the run was cut short")
            notes.append(f"question {name} is left out: {len(turns)} of its {asked} turns are answered ({reason})")
            continue
        lines.append(_line(run, turns, model, tstamp))
    absent = [str(ident) for ident in run.settings.get("questions", ()) if str(ident) not in questions]
    notes += [f"question {name} is left out: {why(name, 'it is not answered yet')}" for name in absent]
    return Answers(tuple(lines), tuple(notes))


def _line(run: RunRecord, turns: list[RequestRecord], model: str, tstamp: float) -> dict[str, Any]:
    ident = json.dumps([model, turns[0].request_id, turns[0].output_tokens])
    return {
        "question_id": turns[0].question_id,
        "category": turns[0].category,
        "answer_id": hashlib.sha256(ident.encode()).hexdigest()[:22],
        "model_id": model,
        "choices": [
            {
                "index": 0,
                "turns": [request.output_text.strip() for request in turns],  # Spec-Bench strips, too
                "decoding_steps": [len(request.cycles) for request in turns],
                "new_tokens": [len(request.output_tokens) for request in turns],
                "wall_time": [request.request_ms / 1e3 for request in turns],
                "accept_lengths": [cycle.committed for request in turns for cycle in request.cycles],
            }
        ],
        "tstamp": tstamp,
    }


def write_answers(folder: str | Path, path: str | Path) -> Answers:
    """Write the answer file of a run folder; the same folder gives the same bytes.

    Raises RunError for a folder that is no run, ValueError for one without a whole answer.
    """
    folder, path = Path(folder), Path(path)
    opened = next(iter(load_sessions(folder)), None)
    tstamp = 0.0 if opened is None else datetime.fromisoformat(opened).timestamp()
    answers = answers_of(load_run(folder), tstamp=tstamp, failures=load_failures(folder))
    if not answers.lines:
        raise ValueError(f"{folder} holds no question with all its turns answered, so there is nothing to write")
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, answers.jsonl())
    return answers


def spec_bench_speedup(run: RunRecord, baseline: RunRecord) -> float | None:
    """Spec-Bench's number: mean over questions of tokens per second, over the baseline's mean; prefill is inside.

    A ratio of means: neither the paper's ratio of sums nor a mean of ratios. None where the runs share no question.
    Both sides count the tokens that were decoded; `speed.py` tokenizes the baseline's texts again.
    """
    pairs = shared_requests(run, baseline)
    rates: list[list[float]] = []
    for side in (0, 1):
        questions: dict[str, list[RequestRecord]] = {}
        for pair in pairs:
            questions.setdefault(str(pair[side].question_id), []).append(pair[side])
        rates.append(
            [
                1e3
                * sum(len(request.output_tokens) for request in turns)
                / sum(request.request_ms for request in turns)
                for turns in questions.values()
                if sum(request.request_ms for request in turns) > 0
            ]
        )
    if not rates[0] or not rates[1] or not fmean(rates[1]):
        return None
    return fmean(rates[0]) / fmean(rates[1])
