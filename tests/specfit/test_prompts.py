"""Prompts and texts with small real tokenizers: a byte-level one and one that falls back to bytes."""

from __future__ import annotations

import hashlib
import random
from functools import cache
from typing import Any

import pytest

from specfit.prompts import Prompt, PromptError, TemplateRefused, TextStream, decode_text, render, token_text

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

CHAT = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
STRICT = (
    "{% if messages and messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate') }}{% endif %}{{ m.content }}{% endfor %}"
)
WITH_SYSTEM = "{% if messages[0].role != 'system' %}<|system|>You are Toy.\n{% endif %}" + CHAT.removeprefix(
    "{{ bos_token }}"
)


def byte_level(template: str | None = CHAT, *, add_bos: bool = False) -> Any:
    """One token a byte (ids 0..255), then <s>, </s> and <unk>."""
    vocab = {piece: number for number, piece in enumerate(sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()))}
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[]))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    inner.add_special_tokens(["<s>", "</s>"])
    if add_bos:
        inner.post_processor = tokenizers.processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", inner.token_to_id("<s>"))]
        )
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = template
    return tokenizer


def with_fallback() -> Any:
    """Words with a leading mark for spaces; other characters as bytes."""
    words = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "\u2581",
        "\u2581the",
        "\u2581cat",
        "s",
    ]
    inner = tokenizers.Tokenizer(
        tokenizers.models.BPE(
            vocab={word: number for number, word in enumerate(words)}, merges=[], unk_token="<unk>", byte_fallback=True
        )
    )
    inner.decoder = tokenizers.decoders.Sequence(
        [
            tokenizers.decoders.Replace("\u2581", " "),
            tokenizers.decoders.ByteFallback(),
            tokenizers.decoders.Fuse(),
            tokenizers.decoders.Strip(" ", 1, 0),
        ]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


BYTES = byte_level()


@cache
def byte_table() -> dict[int, int]:
    """Id of every byte that UTF-8 uses."""
    codes = (*range(0x800), *range(0x800, 0xD800, 0x400), 0xE000, 0xF000, *range(0x10000, 0x110000, 0x10000))
    table: dict[int, int] = {}
    for character in map(chr, codes):
        table.update(zip(character.encode(), BYTES(character, add_special_tokens=False)["input_ids"], strict=True))
    return table


def byte_ids(data: bytes) -> list[int]:
    """Ids of raw bytes in the byte-level tokenizer, also of those that are no text."""
    return [byte_table()[code] for code in data]


# -- rendering -------------------------------------------------------------------------------------------------------


def test_a_text_becomes_one_user_message_without_a_system_message() -> None:
    prompt = render(BYTES, "hi")
    assert prompt.text == "<s><|user|>hi\n<|assistant|>"
    assert BYTES.decode(list(prompt.ids)) == prompt.text
    assert prompt == render(BYTES, [{"role": "user", "content": "hi"}])
    assert prompt.template_hash == hashlib.sha256(CHAT.encode()).hexdigest()[:16]
    assert prompt.text_hash == hashlib.sha256(prompt.text.encode()).hexdigest()[:16]
    assert prompt.notes == ()


class Wrapped:
    """A tokenizer whose apply_chat_template answers as another version of the library does."""

    def __init__(self, inner: Any, answer: Any) -> None:
        self.inner, self.answer, self.chat_template = inner, answer, inner.chat_template

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def apply_chat_template(self, messages: Any, *, tokenize: bool, add_generation_prompt: bool) -> Any:
        text = self.inner.apply_chat_template(messages, tokenize=False, add_generation_prompt=add_generation_prompt)
        return self.answer(self.inner(text, add_special_tokens=False)["input_ids"]) if tokenize else text


@pytest.mark.parametrize(
    "answer",
    [
        lambda ids: ids,
        lambda ids: [ids],
        lambda ids: {"input_ids": ids, "attention_mask": [1] * len(ids)},
        lambda ids: {"input_ids": [ids], "attention_mask": [[1] * len(ids)]},
        lambda ids: transformers.BatchEncoding({"input_ids": ids}),
        lambda ids: transformers.BatchEncoding({"input_ids": [ids]}, tensor_type="np"),
        lambda ids: [ids[0], *ids],  # a start token of its own before the template's
    ],
)
def test_the_length_of_a_prompt_is_its_tokens_whatever_the_library_returns(answer: Any) -> None:
    assert render(Wrapped(BYTES, answer), "hello").ids == render(BYTES, "hello").ids
    assert len(render(BYTES, "hello").ids) > 20


@pytest.mark.parametrize("add_bos", [False, True])
def test_exactly_one_start_token_either_way(add_bos: bool) -> None:
    tokenizer = byte_level(add_bos=add_bos)
    chat = render(tokenizer, "hi")
    assert chat.ids.count(tokenizer.bos_token_id) == 1
    raw = render(tokenizer, chat.text, raw=True)
    assert raw.ids == chat.ids
    assert bool(raw.notes) is add_bos
    assert render(tokenizer, "hi", raw=True).ids.count(tokenizer.bos_token_id) == int(add_bos)


def test_without_a_template_raw_mode_is_offered_by_name() -> None:
    with pytest.raises(PromptError, match="no chat template; give plain text in raw mode"):
        render(byte_level(None), "hi")
    prompt = render(byte_level(None), "hi", raw=True)
    assert prompt == Prompt(tuple(byte_ids(b"hi")), "hi", None)


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([{"role": "system", "content": ""}, {"role": "user", "content": "a"}], "System role not supported"),
        ([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}], "Roles must alternate"),
    ],
)
def test_a_template_that_refuses_speaks_for_itself(messages: Any, words: str) -> None:
    with pytest.raises(TemplateRefused, match=words) as caught:
        render(byte_level(STRICT), messages)
    assert caught.value.words == words
    assert render(byte_level(STRICT), "fine").text == "fine"


@pytest.mark.parametrize("template", ["{% for %}", "{{ messages[0].content.nothing.more }}", "{{ 1 + '' }}"])
def test_a_broken_template_is_a_sentence(template: str) -> None:
    with pytest.raises(PromptError):
        render(byte_level(template), "hi")


def test_a_system_text_that_the_template_adds_is_said_and_shown() -> None:
    prompt = render(byte_level(WITH_SYSTEM), "hi")
    assert "You are Toy." in prompt.text and "system text of its own" in prompt.notes[0]
    given = render(byte_level(WITH_SYSTEM), [{"role": "system", "content": ""}, {"role": "user", "content": "hi"}])
    assert given.notes == () and given.template_hash == prompt.template_hash
    assert given.text_hash != prompt.text_hash
    assert render(BYTES, "what is a system?").notes == ()


@pytest.mark.parametrize("messages", ["", " \n", []])
def test_an_empty_prompt_is_refused(messages: Any) -> None:
    with pytest.raises(PromptError, match="empty"):
        render(BYTES, messages)
    with pytest.raises(PromptError, match="empty"):
        render(BYTES, "", raw=True)


def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers() -> None:
    assert len(render(BYTES, "abc", raw=True, context=3).ids) == 3
    with pytest.raises(PromptError, match="has 4 tokens and the model's context holds 3"):
        render(BYTES, "abcd", raw=True, context=3)


def test_what_is_no_text_or_no_raw_text_is_refused() -> None:
    for raw in (False, True):
        with pytest.raises(PromptError, match="character 2 of the prompt is half a surrogate pair"):
            render(BYTES, "ab\ud83d", raw=raw)
    with pytest.raises(PromptError, match="raw mode takes a text"):
        render(BYTES, [{"role": "user", "content": "a"}], raw=True)


def test_unknown_characters_of_a_raw_prompt_are_counted() -> None:
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>")
    assert render(tokenizer, "a b a c", raw=True).notes == ("2 tokens of the prompt are unknown to the tokenizer",)


# -- text of tokens --------------------------------------------------------------------------------------------------


def test_ids_beyond_the_tokenizer_are_shown() -> None:
    beyond = len(BYTES) + 3
    assert token_text(BYTES, beyond) == f"<id {beyond}>"
    assert token_text(BYTES, -1) == "<id -1>" and token_text(BYTES, 2**40) == f"<id {2**40}>"
    a, b = byte_ids(b"ab")
    assert decode_text(BYTES, [a, beyond, b, beyond]) == f"a<id {beyond}>b<id {beyond}>"
    assert decode_text(with_fallback(), [9999]) == "<id 9999>"


def test_text_of_one_token() -> None:
    assert token_text(BYTES, BYTES.eos_token_id) == "</s>"
    assert token_text(BYTES, byte_ids(b"\n")[0]) == "\n"
    part = byte_ids("\U0001f600".encode())[0]
    assert token_text(BYTES, part) == f"<id {part}>"
    words = with_fallback()
    assert token_text(words, words.convert_tokens_to_ids("\u2581cat")) == " cat"
    assert token_text(words, words.convert_tokens_to_ids("s")) == "s"


def test_bytes_of_a_character_are_held_until_it_is_whole() -> None:
    face = byte_ids("\U0001f600".encode())
    stream = TextStream(BYTES)
    assert stream.push(byte_ids(b"a") + face[:2]) == "a"
    assert stream.push(face[2:]) == "\U0001f600"
    assert stream.push(byte_ids(b"!")) == "!"
    assert stream.finish() == "" and stream.text == "a\U0001f600!"


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_a_character_cut_by_the_limit_is_one_mark_and_the_ids_stay(kept: int) -> None:
    for tokenizer, ids in [
        (BYTES, byte_ids("\U0001f600".encode())),
        (with_fallback(), with_fallback().convert_tokens_to_ids([f"<0x{byte:02X}>" for byte in "\U0001f600".encode()])),
    ]:
        stream = TextStream(tokenizer)
        assert stream.push(ids[:kept]) == ""
        assert stream.finish() == "\N{REPLACEMENT CHARACTER}"
        assert stream.ids == ids[:kept]


@pytest.mark.parametrize("seed", range(5))
def test_pieces_joined_are_the_text_of_the_whole_however_they_are_cut(seed: int) -> None:
    dice = random.Random(seed)
    data = "".join(dice.choice("ab \n\u00e9\u4e2d\U0001f600\ufffd") for _ in range(60)).encode()
    ids = byte_ids(data)
    stream, pieces, at = TextStream(BYTES), [], 0
    while at < len(ids):
        step = dice.randrange(1, 6)
        pieces.append(stream.push(ids[at : at + step]))
        at += step
    pieces.append(stream.finish())
    assert "".join(pieces) == stream.text
    assert stream.text.rstrip("\ufffd") == data.decode().rstrip("\ufffd")
    assert stream.ids == ids


def test_special_tokens_are_left_out_of_an_output_unless_asked_for() -> None:
    ids = [*byte_ids(b"a"), BYTES.eos_token_id]
    assert decode_text(BYTES, ids) == "a"
    assert decode_text(BYTES, ids, special=True) == "a</s>"
