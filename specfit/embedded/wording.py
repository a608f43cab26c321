"""A tiny template language: `[a|b|c]` is one of several wordings, `{name}` is a value, and values are remembered.

Both generators write their sentences with it. `fill` says where each value went, because training weighs copied names
and numbers more than the words around them; `pattern` turns a template into a regular expression that recognises any
of its wordings, which is how the evaluator tells which fact a sentence states.
"""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass

_PIECE = re.compile(r"\[([^\]]*)\]|\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Text:
    """A drawn prompt and answer, with the places of the answer's values."""

    prompt: str
    answer: str
    number: int | None  # problems: the final number
    copied: tuple[tuple[int, int], ...]  # (start, end) of values in `answer`


class Writer:
    """Collects text piece by piece and remembers where values stand."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        self.text = ""
        self.spans: list[tuple[int, int]] = []

    def fill(self, template: str, values: Mapping[str, object]) -> None:
        """Append `template`, one wording chosen per bracket and each `{name}` replaced by its value."""
        end = 0
        for piece in _PIECE.finditer(template):
            self.text += template[end : piece.start()]
            choices, name = piece.groups()
            if name is None:
                self.fill(self.rng.choice(choices.split("|")), values)
            else:
                start = len(self.text)
                self.text += str(values[name])
                self.spans.append((start, len(self.text)))
            end = piece.end()
        self.text += template[end:]

    def sentence(self, template: str, values: Mapping[str, object]) -> None:
        """Append a sentence after a space (none at the very start) with a capital first letter."""
        start = len(self.text) + bool(self.text)
        self.fill(" " + template if self.text else template, values)
        self.text = self.text[:start] + self.text[start : start + 1].upper() + self.text[start + 1 :]


def pattern(template: str) -> re.Pattern[str]:
    """A regular expression for every sentence `template` can give (first letter in either case)."""
    return re.compile(_expression(template), re.IGNORECASE)


def _expression(template: str) -> str:
    parts, end = [], 0
    for piece in _PIECE.finditer(template):
        parts.append(re.escape(template[end : piece.start()]))
        choices, name = piece.groups()
        parts.append(r"\w+(?: \w+)?" if name else "(?:" + "|".join(map(_expression, choices.split("|"))) + ")")
        end = piece.end()
    parts.append(re.escape(template[end:]))
    return "".join(parts)
