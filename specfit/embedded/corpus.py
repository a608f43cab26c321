"""The small world the embedded pair lives in: word problems and news reports, made by a seeded generator.

Spec-Bench's two extremes for a drafter are mathematical reasoning (the text is easy to foresee) and summarisation
(it is not). This generator makes a small English version of both: `problems` have one right wording, `news` summaries
leave the wording free. A row is a prompt, a reference answer and what a check needs to know about it.

Splits never share a prompt: a prompt belongs to the split its own hash says, and a draw that lands elsewhere is drawn
again. "train" made the weights, "tune" set the knobs, "test" is what the model card reports.

No torch here: sixty prompts take some milliseconds, and workloads call this on a laptop.
"""

import random
import zlib
from dataclasses import dataclass, field

from specfit.embedded import news as _news
from specfit.embedded import problems as _problems

_BUCKETS = {"train": (2, 3), "tune": (1,), "test": (0,)}  # prompt hash modulo 4 -> split


@dataclass(frozen=True, slots=True)
class Row:
    """One prompt with its reference answer."""

    id: int  # index within its split and kind, from 0
    kind: str  # "problems" | "news"
    prompt: str  # what the user says
    answer: str  # reference text, without the end token
    number: int | None = None  # problems: the final number
    copied: tuple[tuple[int, int], ...] = field(default=(), repr=False)  # (start, end) of values in `answer`


def problems(split: str, count: int, *, first: int = 0) -> tuple[Row, ...]:
    """Word problems `first` .. `first + count - 1` of a split: three or four operations on one quantity."""
    return tuple(_row("problems", split, index) for index in range(first, first + count))


def news(split: str, count: int, *, first: int = 0) -> tuple[Row, ...]:
    """Reports to summarise, `first` .. `first + count - 1` of a split; summary facts follow the report's order."""
    return tuple(_row("news", split, index) for index in range(first, first + count))


def _row(kind: str, split: str, index: int) -> Row:
    if split not in _BUCKETS:
        raise ValueError(f"unknown split {split!r}; use one of {', '.join(_BUCKETS)}")
    rng = random.Random(f"{split}/{kind}/{index}")  # text seeds are hashed by the library: the same on every machine
    draw = _problems.draw if kind == "problems" else _news.draw
    while True:
        text = draw(rng)
        if zlib.crc32(text.prompt.encode()) % 4 in _BUCKETS[split]:
            return Row(index, kind, text.prompt, text.answer, text.number, text.copied)
