"""The text of an answer while its tokens come, ended by the first stop string that it reaches.

A stop string may begin in one block of tokens and end in another, or in the middle of either; the answer's tokens are
then those up to and with the one that completes it, and its text ends before it. The tokenizer is an argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specfit.prompts import TextStream


class AnswerText:
    """Give it tokens as they come; `take` what has become certain. It is a `cycle.StopRule`."""

    def __init__(self, tokenizer: Any, stop: str | Sequence[str] = ()) -> None:
        """stop: strings that end the answer; special tokens have no text, so none of them can be one.

        Raises ValueError for a stop string that is none or empty.
        """
        self.stop = (stop,) if isinstance(stop, str) else tuple(stop)
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise ValueError(f"a stop string is {text!r}; expected a text of one character or more")
        self.ended_by = ""  # the stop string that was reached
        self._stream = TextStream(tokenizer)
        self._given = 0  # characters that were taken
        self._end: int | None = None  # characters of the text where a stop string cuts it

    @property
    def text(self) -> str:
        """The text so far, without the stop string."""
        return self._stream.text[: self._end]

    def __call__(self, tokens: Sequence[int]) -> int | None:
        """Take tokens; returns how many of them the answer keeps where a stop string ends it, else None."""
        if not self.stop:
            self._stream.push(tokens)
            return None
        for count, token in enumerate(tokens, start=1):
            seen = len(self._stream.text)
            self._stream.push([token])
            if self._reached(seen):
                return count
        return None

    def take(self) -> str:
        """Text that became certain since the last time: no later token can change it or make it part of a stop."""
        text = self.text
        held = 0 if self._end is not None else _longest_start(text, self.stop)
        piece = text[self._given : len(text) - held]
        self._given += len(piece)
        return piece

    def finish(self) -> str:
        """The end: the rest of the text, an unfinished character as one mark."""
        if self._end is None:
            self._stream.finish()
        piece = self.text[self._given :]
        self._given += len(piece)
        return piece

    def _reached(self, seen: int) -> bool:
        """Whether a stop string ends past the first `seen` characters; of several, the one that begins first counts."""
        text = self._stream.text
        found = [(text.find(stop, max(0, seen - len(stop) + 1)), len(stop), stop) for stop in self.stop]
        at, _, stop = min((hit for hit in found if hit[0] >= 0), default=(-1, 0, ""))
        if at < 0:
            return False
        self._end, self.ended_by = at, stop
        return True


def _longest_start(text: str, stops: Sequence[str]) -> int:
    """Length of the longest end of `text` that a stop string begins with."""
    longest = max((len(stop) for stop in stops), default=1) - 1
    sizes = range(min(longest, len(text)), 0, -1)
    return next((size for size in sizes if any(stop.startswith(text[-size:]) for stop in stops)), 0)
