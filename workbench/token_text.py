"""Text that came from a model, made safe to look at: every character shows as something, and none acts.

Control, format and direction characters, lone surrogates and unassigned code points become visible signs, so a token
can neither reorder, hide nor break what stands beside it. Escaping for HTML or SVG is the business of whoever writes
HTML or SVG (`xml.sax.saxutils.escape` here, `textContent` in the browser); this is about what the eye gets.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping

SIGNS = {"\n": "↵", "\r": "␍", "\t": "⇥", "\0": "␀", "\x1b": "␛", "\x7f": "␡"}
LABEL = 10  # columns of a node's label; the whole text is in its tooltip
WHOLE = 300  # characters of a tooltip


def visible(text: str, *, limit: int = WHOLE) -> str:
    """`text` on one line with every invisible character as a sign, cut to `limit` columns with an ellipsis.

    Spaces at either end show as ␣; an empty text shows as ∅.
    """
    if not text:
        return "∅"
    core = text.strip(" ")
    lead = len(text) - len(text.lstrip(" "))
    text = "␣" * len(text) if not core else "␣" * lead + core + "␣" * (len(text) - lead - len(core))
    shown = "".join(map(_sign, text[: limit + 1]))
    if _columns(shown) <= limit:
        return shown
    while _columns(shown) > limit - 1:
        shown = shown[:-1]
    return shown + "…"


def token_text(token: int, tokens: Mapping[int, str], *, limit: int = WHOLE) -> str:
    """What a token id shows as: its text, or the id where no text was recorded."""
    text = tokens.get(token)
    return f"#{token}" if text is None else visible(text, limit=limit)


def flowing(text: str) -> str:
    """`text` for a running paragraph: line breaks and spaces stay, every other invisible character is a sign."""
    return "".join(char if char in "\n " else _sign(char) for char in text.replace("\r\n", "\n"))


def _columns(text: str) -> int:
    """Width in columns of a fixed-width font: wide characters take two."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def _sign(char: str) -> str:
    if char in SIGNS:
        return SIGNS[char]
    category = unicodedata.category(char)
    if category in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
        return "\N{REPLACEMENT CHARACTER}" if category == "Cs" else f"⟨{ord(char):04X}⟩"
    return char
