"""Word problems: a quantity in one of eight stories, three or four operations, one number at the end.

The prompt tells each operation in one of a few wordings; the answer tells it in exactly one, a line each, then the
number after `####`. All values stay between 1 and 99 and stand after a space, so every number is one token and the
arithmetic is a table look-up.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from specfit.embedded.wording import Text, Writer

NAMES = (
    ("Anna", "She"), ("Ben", "He"), ("Clara", "She"), ("David", "He"), ("Emma", "She"), ("Felix", "He"),
    ("Grace", "She"), ("Henry", "He"), ("Ida", "She"), ("Jonas", "He"), ("Kate", "She"), ("Leo", "He"),
    ("Mia", "She"), ("Noah", "He"), ("Olga", "She"), ("Paul", "He"), ("Rosa", "She"), ("Sam", "He"),
    ("Tina", "She"), ("Victor", "He"), ("Wanda", "She"), ("Yusuf", "He"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Story:
    """A setting: what is counted and how the prompt says that it grows or shrinks."""

    items: str  # what is counted
    groups: str  # what they come in
    gain: str  # template after "She ": more of them, with {n}
    loss: str  # template after "She ": fewer of them, with {n}


STORIES = (
    Story("apples", "baskets", "[picks|finds|is given] {n} more apples", "[eats|drops|gives away] {n} apples"),
    Story("stamps", "packs", "[collects|trades for|finds] {n} more stamps", "[loses|tears|gives away] {n} stamps"),
    Story("books", "boxes", "[borrows|receives|buys] {n} more books", "[returns|lends out|donates] {n} books"),
    Story("cookies", "trays", "[bakes|gets|makes] {n} more cookies", "[eats|burns|gives away] {n} cookies"),
    Story("marbles", "bags", "[wins|finds|is given] {n} more marbles", "[loses|drops|gives away] {n} marbles"),
    Story("flowers", "rows", "[plants|grows|receives] {n} more flowers", "[cuts|gives away|loses] {n} flowers"),
    Story("fish", "nets", "[catches|buys|is given] {n} more fish", "[frees|cooks|gives away] {n} fish"),
    Story("candles", "cartons", "[makes|buys|receives] {n} more candles", "[burns|breaks|gives away] {n} candles"),
)


@dataclass(frozen=True, slots=True)
class Operation:
    """One step: how the prompt tells it, how the answer tells it, and what it does to the quantity."""

    asks: str  # prompt template after "She "; empty: the story's own words
    tells: str  # the one answer line
    draw: Callable[[random.Random, int], dict[str, int]]  # quantity -> template values, `w` the result
    question: str = "How many {items} does {name} have now?"


def _groups(rng: random.Random, v: int) -> dict[str, int]:
    m, k = rng.randint(2, 6), rng.randint(2, 9)
    return {"m": m, "k": k, "p": m * k, "w": v + m * k}


def _share(rng: random.Random, v: int) -> dict[str, int]:
    n = rng.choice([n for n in range(2, 7) if v % n == 0] or [0])
    return {"n": n, "w": v // n if n else 0}


ADD = Operation(
    "",
    "Then {n} more {items} come in, so we add them: {v} + {n} = {w} {items}.",
    lambda rng, v: {"n": (n := rng.randint(2, 20)), "w": v + n},
)
SUBTRACT = Operation(
    "",
    "Then {n} {items} are gone, so we take them off: {v} - {n} = {w} {items}.",
    lambda rng, v: {"n": (n := rng.randint(2, 20)), "w": v - n},
)
GROUPS = Operation(
    "[buys|gets|orders] {m} {groups} with {k} {items} in each",
    "The {m} {groups} of {k} hold {m} * {k} = {p} {items}, which makes {v} + {p} = {w} {items}.",
    _groups,
)
HALVE = Operation(
    "[gives half of the {items} to a friend|leaves half of the {items} at school]",
    "Only half of the {items} stay, so we divide by two: {v} / 2 = {w} {items}.",
    lambda rng, v: {"w": v // 2 if v % 2 == 0 else 0},
)
DOUBLE = Operation(
    "[doubles the number of {items}|gets as many {items} again]",
    "The {items} become twice as many, so we double them: {v} * 2 = {w} {items}.",
    lambda rng, v: {"w": v * 2},
)
SELL = Operation(
    "[sells|trades] all the {items} for {n} coins each",
    "Each of the {v} {items} brings {n} coins, so we multiply: {v} * {n} = {w} coins.",
    lambda rng, v: {"n": (n := rng.randint(2, 5)), "w": v * n},
    "How many coins does {name} get?",
)
SHARE = Operation(
    "shares the {items} equally among {n} friends",
    "Each of the {n} friends gets the same part: {v} / {n} = {w} {items}.",
    _share,
    "How many {items} does each friend get?",
)
STEPS = (ADD, ADD, SUBTRACT, SUBTRACT, GROUPS, HALVE, DOUBLE)  # repeats are weights
ENDINGS = (None, None, None, SELL, SHARE)


def draw(rng: random.Random) -> Text:
    """One problem: a start of 5-30, then three or four operations that keep the quantity within 2-99."""
    story = rng.choice(STORIES)
    name, pronoun = rng.choice(NAMES)
    words: dict[str, object] = {"name": name, "items": story.items, "groups": story.groups}
    start, plan = _plan(rng)
    prompt, answer = Writer(rng), Writer(rng)
    prompt.fill("{name} [has|starts with|owns] {v} {items}.", words | {"v": start})
    answer.fill("Let us count the {items} of {name}. At the start there are {v} {items}.\n", words | {"v": start})
    for operation, values in plan:
        asks = operation.asks or (story.gain if operation is ADD else story.loss)
        prompt.fill(f" {pronoun} {asks}.", words | values)
        answer.fill(operation.tells + "\n", words | values)
    last, values = plan[-1]
    prompt.fill(" " + last.question, words)
    answer.fill("So the number we were asked for is {w}.\n#### {w}", values)
    return Text(prompt.text, answer.text, values["w"], tuple(answer.spans))


def _plan(rng: random.Random) -> tuple[int, list[tuple[Operation, dict[str, int]]]]:
    """A start value and the operations with their values; redrawn until every quantity lies within 2-99."""
    while True:
        start = value = rng.randint(5, 30)
        ending = rng.choice(ENDINGS)
        steps = rng.choices(STEPS, k=rng.randint(3, 4) - (ending is not None))
        plan = []
        for operation in (*steps, ending) if ending else steps:
            values = operation.draw(rng, value)
            plan.append((operation, values | {"v": value}))
            value = values["w"]
            if not 2 <= value <= 99:
                break
        else:
            return start, plan
