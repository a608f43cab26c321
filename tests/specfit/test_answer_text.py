"""Text and stop strings while tokens come: as if they came one by one, wherever blocks begin and end."""

from __future__ import annotations

import random
from typing import Any

import pytest

from specfit.answer_text import AnswerText
from specfit.prompts import decode_text
from tests.specfit.test_prompts import BYTES, byte_ids

tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")


def fed(data: bytes, blocks: list[int], *stop: str) -> tuple[int | None, str, list[str]]:
    """Feed the bytes in blocks; tokens kept where a stop string ended it, the text, and the pieces given out."""
    text, ids, pieces = AnswerText(BYTES, stop), byte_ids(data), []
    done = 0
    for block in blocks:
        kept = text(ids[done : done + block])
        pieces.append(text.take())
        if kept is not None:
            pieces.append(text.finish())
            return done + kept, text.text, pieces
        done += block
    pieces.append(text.finish())
    return None, text.text, pieces


@pytest.mark.parametrize("blocks", [[1] * 9, [9], [3, 6], [4, 5], [5, 4], [2, 5, 2]])
def test_a_stop_string_inside_and_across_blocks(blocks: list[int]) -> None:
    """Case F3: "abcENDxyz" stops at END, wherever the blocks are cut, and nothing of END is given out before."""
    kept, text, pieces = fed(b"abcENDxyz", blocks, "END")
    assert (kept, text, "".join(pieces)) == (6, "abc", "abc")


@pytest.mark.parametrize("seed", range(20))
def test_any_blocks_give_what_single_tokens_give(seed: int) -> None:
    dice = random.Random(seed)
    data = "".join(dice.choice("aab\u00e9\U0001f600") for _ in range(40)).encode()
    stops = ["".join(dice.choice("ab\u00e9\U0001f600") for _ in range(dice.randrange(1, 4))) for _ in range(2)]
    stops.append(stops[0][:1] + "q")
    blocks: list[int] = []
    while sum(blocks) < len(data):
        blocks.append(min(dice.randrange(1, 8), len(data) - sum(blocks)))
    kept, text, pieces = fed(data, blocks, *stops)
    assert (kept, text) == fed(data, [1] * len(data), *stops)[:2]
    assert "".join(pieces) == text
    whole = data.decode()
    ends = [whole.index(stop) + len(stop) for stop in stops if stop in whole]
    if kept is None:
        assert not ends and text == whole
    else:
        assert len(whole[: min(ends)].encode()) == kept  # the token that completes the first stop string to be complete
        assert not any(stop in text for stop in stops)


def test_of_two_stops_that_end_together_the_one_that_begins_first_counts() -> None:
    assert fed(b"abcd", [4], "cd", "bcd")[:2] == (4, "a")
    text = AnswerText(BYTES, ["ab", "abc"])  # one begins the other: the shorter is complete first
    assert text(byte_ids(b"xabc")) == 3 and (text.text, text.ended_by) == ("x", "ab")


def words(*pieces: str) -> Any:
    """A tokenizer with these tokens, joined without a space."""
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({piece: i for i, piece in enumerate(pieces)}, pieces[0]))
    inner.decoder = tokenizers.decoders.Fuse()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner)


def test_text_after_the_stop_in_the_same_token_is_left_out() -> None:
    text = AnswerText(words("E", "ND and more"), "END")
    assert text([0]) is None and text.take() == ""
    assert text([1, 0]) == 1 and text.take() == "" and text.text == ""


def test_what_might_become_a_stop_is_given_out_once_it_does_not() -> None:
    text = AnswerText(BYTES, ["aab"])
    pieces = []
    for token in byte_ids(b"aaab"[:3]):
        text([token])
        pieces.append(text.take())
    assert pieces == ["", "", "a"]
    assert text.finish() == "aa" and text.text == "aaa"


def test_an_unfinished_character_at_the_end_is_one_mark() -> None:
    """Case C14: the limit cuts after three of a character's four bytes."""
    kept, text, pieces = fed("a\U0001f600".encode()[:4], [2, 2], "zz")
    assert kept is None and text == "a\ufffd" and pieces == ["a", "", "\ufffd"]


def test_without_stops_everything_certain_is_given_out() -> None:
    kept, text, pieces = fed("h\u00e9llo".encode(), [2, 2, 2])
    assert kept is None and pieces == ["h", "\u00e9l", "lo", ""] and text == "h\u00e9llo"
    assert text == decode_text(BYTES, byte_ids(text.encode()))


@pytest.mark.parametrize("stop", [[""], ["a", 3], [None]])
def test_a_stop_string_that_is_none_is_refused(stop: list) -> None:
    with pytest.raises(ValueError, match="expected a text of one character or more"):
        AnswerText(BYTES, stop)


def test_one_stop_string_may_come_alone() -> None:
    assert AnswerText(BYTES, "END").stop == ("END",)
