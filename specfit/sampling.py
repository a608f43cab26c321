"""What a person may ask of generation besides the greedy text, checked before anything runs. Plain values, no torch.

Sampling here needs no acceptance test and no draft probabilities. At every verified node the target draws its own next
token, and the accepted path goes on through the child that carries it. A draw reads the node's logits and one number
that belongs to its position in the text, nothing else, so the text is the one that plain sampling with these numbers
gives, whatever was drafted, selected or cached.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from numbers import Integral, Real


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn; the target's logits are changed as by the library's own processors of these names.

    Raises ValueError for what is no number, a temperature that is not above 0, a top_k below 1, a top_p outside (0, 1].
    """

    temperature: float = 1.0  # logits are divided by it
    top_k: int | None = None  # only the k most probable tokens
    top_p: float | None = None  # only the most probable tokens that together reach this probability
    seed: int = 0  # the same seed, prompt and settings give the same text with every method and cache

    def __post_init__(self) -> None:
        if not _is_real(self.temperature) or not 0 < self.temperature < math.inf:
            raise ValueError(
                f"temperature is {self.temperature!r}; expected a number above 0 (for the greedy text leave it out)"
            )
        if self.top_k is not None and not (_is_whole(self.top_k) and self.top_k >= 1):
            raise ValueError(f"top_k is {self.top_k!r}; expected a whole number of 1 or more, or None for all tokens")
        if self.top_p is not None and not (_is_real(self.top_p) and 0 < self.top_p <= 1):
            raise ValueError(f"top_p is {self.top_p!r}; expected a probability above 0 and at most 1, or None")
        if not _is_whole(self.seed):
            raise ValueError(f"seed is {self.seed!r}; expected a whole number")

    def number(self, position: int) -> float:
        """The random number that draws the token at `position` of the text, prompt included; in [0, 1)."""
        digest = hashlib.blake2b(f"specfit {int(self.seed)} {position}".encode(), digest_size=8).digest()
        return (int.from_bytes(digest, "little") >> 11) / (1 << 53)


def make_sampling(
    *, temperature: float | None = None, top_k: int | None = None, top_p: float | None = None, seed: int = 0
) -> Sampling | None:
    """Sampling where any of its settings but the seed is given, else None: the greedy text."""
    if temperature is None and top_k is None and top_p is None:
        return None
    return Sampling(1.0 if temperature is None else temperature, top_k, top_p, seed)


def check_limits(max_new_tokens: object, min_new_tokens: object) -> None:
    """ValueError unless both are whole numbers with 0 <= min <= max and max >= 1."""
    for name, value, least in (("max_new_tokens", max_new_tokens, 1), ("min_new_tokens", min_new_tokens, 0)):
        if not _is_whole(value) or value < least:  # type: ignore[operator]  # a whole number has an order
            raise ValueError(f"{name} is {value!r}; expected a whole number of {least} or more")
    if min_new_tokens > max_new_tokens:  # type: ignore[operator]
        raise ValueError(f"min_new_tokens is {min_new_tokens} and max_new_tokens {max_new_tokens}; expected no more")


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_real(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
