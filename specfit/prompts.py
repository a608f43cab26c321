"""From questions to token ids and from token ids to text, with the tokenizer's own template and nothing of ours.

The tokenizer is an argument (any `transformers` tokenizer); nothing is imported here. What a template adds is never
guessed: the rendered text is kept beside the ids, and the template's hash, so that two runs can be told apart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

MARK = "\N{REPLACEMENT CHARACTER}"


class PromptError(ValueError):
    """A prompt cannot be made: one sentence for the person in front of it."""


class TemplateRefused(PromptError):
    """The chat template itself refused the messages; `words` are its own."""

    def __init__(self, words: str) -> None:
        super().__init__(f"the model's chat template refuses these messages: {words}")
        self.words = words


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as the target gets it."""

    ids: tuple[int, ...]
    text: str  # as rendered, with everything that the template added
    template_hash: str | None  # first 16 digits of the SHA-256 of the chat template; None in raw mode
    notes: tuple[str, ...] = ()  # what the person should know, a sentence each

    @property
    def text_hash(self) -> str:
        """First 16 digits of the SHA-256 of the rendered text."""
        return _digest(self.text)


Messages = Sequence[Mapping[str, str]]  # {"role": ..., "content": ...}


def render(
    tokenizer: Any, messages_or_text: str | Messages, *, raw: bool = False, context: int | None = None
) -> Prompt:
    """Token ids of a chat (a text is one user message, and no system message is added), or of a plain text if `raw`.

    context: the most tokens that the model can hold.
    Raises TemplateRefused when the template refuses the messages; PromptError for no template, an empty prompt, text
    that is no Unicode, or more tokens than `context` (names both numbers).
    """
    prompt = _render_raw(tokenizer, messages_or_text) if raw else _render_chat(tokenizer, messages_or_text)
    if not prompt.ids:
        raise PromptError("the prompt is empty: it has no tokens; write at least one word")
    if context is not None and len(prompt.ids) > context:
        raise PromptError(
            f"the prompt has {len(prompt.ids)} tokens and the model's context holds {context}; "
            "shorten it or leave it out (prompts are never cut)"
        )
    return prompt


def one_row(prompt: Any) -> list[Any]:
    """What a list of ids or messages holds, or the single row of an array (n,) or (1, n), or of an encoding.

    Raises PromptError for several rows, an encoding without ids, or something that holds nothing.
    """
    if isinstance(prompt, Mapping):
        if "input_ids" not in prompt:
            raise PromptError(f"the prompt is a mapping of {', '.join(map(str, prompt))}; expected input_ids in it")
        prompt = prompt["input_ids"]
    elif hasattr(prompt, "input_ids"):
        prompt = prompt.input_ids
    if hasattr(prompt, "tolist"):
        prompt = prompt.tolist()
    if not isinstance(prompt, Iterable) or isinstance(prompt, bytes | bytearray | Set):
        raise PromptError(f"a prompt is a text, messages (role, content) or token ids; got a {type(prompt).__name__}")
    items = list(prompt)
    if items and isinstance(items[0], list | tuple):
        if len(items) > 1:
            raise PromptError(f"the prompt has {len(items)} rows; an engine decodes one request at a time")
        items = list(items[0])
    return items


def _render_chat(tokenizer: Any, messages: str | Messages) -> Prompt:
    if isinstance(messages, str):
        if not messages.strip():
            raise PromptError("the prompt is empty; write at least one word")
        messages = [{"role": "user", "content": messages}]
    messages = [dict(message) for message in messages]
    if not messages:
        raise PromptError("the prompt is empty: the list of messages has none")
    for message in messages:
        _check_text(str(message.get("content", "")))
    if not getattr(tokenizer, "chat_template", None):
        raise PromptError(
            "this model's tokenizer has no chat template; give plain text in raw mode (raw=True, --raw), "
            "or the tokenizer of the instruction-tuned model"
        )
    text = _apply(tokenizer, messages, tokenize=False)
    notes = []
    if _adds_system_text(text, messages):
        notes.append("the model's chat template adds a system text of its own; the rendered prompt shows it")
    ids = _one_bos(tokenizer, _first_ids(_apply(tokenizer, messages, tokenize=True)), notes)
    template = tokenizer.chat_template
    return Prompt(ids, text, _digest(template if isinstance(template, str) else repr(template)), tuple(notes))


def _render_raw(tokenizer: Any, text: str | Messages) -> Prompt:
    if not isinstance(text, str):
        raise PromptError(f"raw mode takes a text; got a {type(text).__name__} of messages, so leave raw mode off")
    _check_text(text)
    notes: list[str] = []
    ids = _one_bos(tokenizer, _first_ids(tokenizer(text)), notes) if text else ()
    unknown = getattr(tokenizer, "unk_token_id", None)
    if unknown is not None and unknown in ids:
        notes.append(f"{ids.count(unknown)} tokens of the prompt are unknown to the tokenizer")
    return Prompt(ids, text, None, tuple(notes))


def _apply(tokenizer: Any, messages: Messages, *, tokenize: bool) -> Any:
    """The tokenizer's own rendering; its template's objections as TemplateRefused."""
    try:
        return tokenizer.apply_chat_template(messages, tokenize=tokenize, add_generation_prompt=True)
    except Exception as error:
        if type(error).__module__.startswith("jinja2"):
            raise TemplateRefused(str(error)) from None
        if isinstance(error, ValueError | TypeError | KeyError):
            raise PromptError(f"the tokenizer cannot render these messages: {error}") from None
        raise


def _first_ids(encoded: Any) -> tuple[int, ...]:
    """Ids from what tokenizers return: a mapping or a list (by version), with or without a batch dimension."""
    return tuple(map(int, one_row(encoded)))


def _one_bos(tokenizer: Any, ids: tuple[int, ...], notes: list[str]) -> tuple[int, ...]:
    """The ids with at most one start token: a template and a tokenizer may each have put one."""
    bos, start = getattr(tokenizer, "bos_token_id", None), 0
    while bos is not None and ids[start : start + 2] == (bos, bos):
        start += 1
    if start:
        notes.append("the start token was there more than once; one is kept")
    return ids[start:]


def _adds_system_text(text: str, messages: Sequence[Mapping[str, str]]) -> bool:
    """Whether the rendering speaks of a system although no message does."""
    if any(message.get("role") == "system" for message in messages):
        return False
    for message in messages:
        text = text.replace(str(message.get("content", "")), "", 1)
    return "system" in text.lower()


def _check_text(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise PromptError(
            f"character {error.start} of the prompt is half a surrogate pair, which is no text; remove or replace it"
        ) from None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


# -- text of tokens --------------------------------------------------------------------------------------------------


def token_text(tokenizer: Any, token: int) -> str:
    """What one token adds to a text, special tokens by name; `<id 62>` where it has no text of its own.

    That is an id beyond the tokenizer (models pad their embeddings), or a part of a character.
    """
    if not _is_known(tokenizer, token):
        return f"<id {token}>"
    text = _decode(tokenizer, [token], special=True)
    piece = tokenizer.convert_ids_to_tokens(token)
    if piece.startswith("\u2581") and not text.startswith(" "):
        text = f" {text}"  # decoding drops a space at the start of a text; here it is the middle of one
    return text if text and MARK not in text else f"<id {token}>"


def decode_text(tokenizer: Any, tokens: Sequence[int], *, special: bool = False) -> str:
    """The text of a whole output: ids beyond the tokenizer as `<id 62>`, a character cut at the end as one mark."""
    stream = TextStream(tokenizer, special=special)
    stream.push(tokens)
    stream.finish()
    return stream.text


class TextStream:
    """Text of tokens as they come. It decodes the whole list each time and holds back bytes of unfinished characters,
    so the pieces joined are the text of the whole, wherever the tokens were cut into pieces."""

    def __init__(self, tokenizer: Any, *, special: bool = False) -> None:
        self.ids: list[int] = []
        self.text = ""  # what has been given out
        self._tokenizer, self._special = tokenizer, special
        self._before = ""  # text up to and with the last id that the tokenizer does not know
        self._stretch: list[int] = []  # ids after it

    def push(self, tokens: Sequence[int]) -> str:
        """Take more tokens; returns the text that became certain."""
        for token in map(int, tokens):
            self.ids.append(token)
            if _is_known(self._tokenizer, token):
                self._stretch.append(token)
            else:
                self._before, self._stretch = f"{self._whole()}<id {token}>", []
        return self._give(self._whole().rstrip(MARK))

    def finish(self) -> str:
        """The end: an unfinished character becomes one mark. The ids stay as they are."""
        whole = self._whole()
        certain = whole.rstrip(MARK)
        return self._give(certain if certain == whole else certain + MARK)

    def _give(self, text: str) -> str:
        new = text[len(self.text) :]
        self.text += new
        return new

    def _whole(self) -> str:
        return self._before + _decode(self._tokenizer, self._stretch, special=self._special)


def _is_known(tokenizer: Any, token: int) -> bool:
    if token < 0:
        return False
    try:
        return tokenizer.convert_ids_to_tokens(token) is not None
    except (IndexError, KeyError, OverflowError):
        return False


def _decode(tokenizer: Any, tokens: list[int], *, special: bool) -> str:
    decode: Callable[..., str] = tokenizer.decode
    return decode(tokens, skip_special_tokens=not special, clean_up_tokenization_spaces=False) if tokens else ""
