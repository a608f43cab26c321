import unicodedata

import pytest

from tests.workbench.worlds import ODD
from workbench.token_text import flowing, token_text, visible


@pytest.mark.parametrize("text", ODD.values())
def test_every_character_of_a_label_shows_and_none_acts(text):
    shown = visible(text, limit=10)
    assert shown
    assert not any(unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") for char in shown)
    shown.encode("utf-8")  # no lone surrogate, which JSON could not carry
    assert len(shown) <= 10


def test_spaces_line_breaks_and_length_are_told():
    assert visible(" the") == "␣the"
    assert visible("a  ") == "a␣␣"
    assert visible("   ") == "␣␣␣"
    assert visible("\n\t") == "↵⇥"
    assert visible("") == "∅"
    assert visible("abcdef", limit=4) == "abc…"
    assert visible("日本語文字", limit=6) == "日本…"  # wide characters take two columns
    assert visible("\u202eabc") == "⟨202E⟩abc"


def test_a_paragraph_keeps_its_lines_and_loses_its_tricks():
    assert flowing("one\r\ntwo\x00\u202e") == "one\ntwo␀⟨202E⟩"


def test_a_token_without_text_shows_its_id():
    assert token_text(7, {}) == "#7"
    assert token_text(7, {7: " x"}) == "␣x"
