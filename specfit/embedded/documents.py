"""Training documents as token ids: corpus rows, copying exercises and arithmetic drills, and batches of them."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from specfit.embedded import corpus

PROMPT_WEIGHT = 0.1


@dataclass(frozen=True, slots=True)
class Document:
    """Token ids of a whole document and what predicting each of them counts in the loss."""

    ids: list[int]
    weights: list[float]  # per token; a prompt's count little, copied values more
    is_news: bool = False


@dataclass(frozen=True, slots=True)
class Batch:
    """Documents padded on the right."""

    ids: Tensor  # (documents, length) int64
    real: Tensor  # (documents, length) bool, False for padding
    weights: Tensor  # (documents, length), of the loss of predicting this token; 0 for the first and for padding
    is_news: Tensor  # (documents,) bool


class DocumentMaker:
    """Turns rows and exercises into documents with one tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast):
        self.tokenizer = tokenizer
        self.user, self.assistant = tokenizer.convert_tokens_to_ids(["<|user|>", "<|assistant|>"])
        self.words = [i for i in range(len(tokenizer)) if i > 260]  # pieces of more than one byte

    def row(self, row: corpus.Row, copied_weight: float) -> Document:
        """A corpus row in the chat format; tokens inside the answer's values weigh `copied_weight`."""
        answer = self.tokenizer(row.answer, return_offsets_mapping=True)
        inside = {i for start, end in row.copied for i in range(start, end)}
        weights = [copied_weight if not inside.isdisjoint(range(s, e)) else 1.0 for s, e in answer["offset_mapping"]]
        return self._document(self.tokenizer(row.prompt)["input_ids"], answer["input_ids"], weights, row.kind == "news")

    def copy(self, rng: random.Random, longest: int) -> Document:
        """Repeat a random list, or look keys up in one: both grow with `longest`."""
        count = rng.randint(3, longest)
        words = rng.sample(self.words, 2 * count)
        if rng.random() < 0.5:
            return self._document(words[:count], words[:count], [1.0] * count)
        pairs = [words[i : i + 2] for i in range(0, 2 * count, 2)]
        asked = rng.sample(pairs, len(pairs))
        answer = [token for pair in asked for token in pair]
        return self._document(words, answer, [0.0, 1.0] * count)

    def drill(self, rng: random.Random, *, sums: int, weight: float) -> Document:
        """A page of sums in the very form problems use; only the results count, `weight` each."""
        answer, spans = "", []
        for _ in range(sums):
            sum_, result = _sum(rng)
            answer += f"{sum_} ="
            spans.append((len(answer) + 1, len(answer) + 1 + len(str(result))))
            answer += f" {result}\n"
        pieces = self.tokenizer(answer, return_offsets_mapping=True)
        inside = {i for start, end in spans for i in range(start, end)}
        weights = [0.0 if inside.isdisjoint(range(s, e)) else weight for s, e in pieces["offset_mapping"]]
        return self._document([], pieces["input_ids"], weights)

    def _document(self, prompt: list[int], answer: list[int], weights: list[float], is_news: bool = False) -> Document:
        ids = [self.user, *prompt, self.assistant, *answer, self.tokenizer.eos_token_id]
        before = [0.0] + [PROMPT_WEIGHT] * len(prompt) + [0.0]
        return Document(ids, [*before, *weights, 1.0], is_news)


def rows(split: str, seed: int) -> Iterator[corpus.Row]:
    """Endless training rows, half problems, half news, randomly mixed; every row is used once."""
    rng = random.Random(f"rows/{seed}")
    upto = {"problems": 0, "news": 0}
    while True:
        kind = rng.choice(("problems", "news"))
        yield from getattr(corpus, kind)(split, 1, first=upto[kind])
        upto[kind] += 1


def collate(documents: list[Document], pad: int) -> Batch:
    """Pad to the longest document."""
    length = max(len(document.ids) for document in documents)
    ids = torch.full((len(documents), length), pad)
    weights = torch.zeros(len(documents), length)
    real = torch.zeros(len(documents), length, dtype=torch.bool)
    for i, document in enumerate(documents):
        ids[i, : len(document.ids)] = torch.tensor(document.ids)
        weights[i, : len(document.ids)] = torch.tensor(document.weights)
        real[i, : len(document.ids)] = True
    weights[:, 0] = 0
    return Batch(ids, real, weights, torch.tensor([document.is_news for document in documents]))


def _sum(rng: random.Random) -> tuple[str, int]:
    """One operation as problems draw them: its text (with leading space) and its result, within 2-99."""
    while True:
        kind, v = rng.choice("+++---*/"), rng.randint(2, 99)
        n = rng.randint(2, 54) if kind == "+" else rng.randint(2, 20) if kind == "-" else rng.randint(2, 9)
        if kind == "/" and v % n:
            continue
        result = {"+": v + n, "-": v - n, "*": v * n, "/": v // n}[kind]
        if 2 <= result <= 99:
            return f" {v} {kind} {n}", result
