"""Generation as people expect it, on top of `Engine.decode`: text in, text out, piece by piece.

`generate` is what `Engine.generate` calls; `Answer` is one answer in the making, and `Conversation` a chat whose next
turn reuses the KV caches. Whatever the method, the text is the target's own: greedy, or drawn as `specfit.sampling`
says. Nothing is inherited from a checkpoint's generation_config.json but its end-of-sequence tokens.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import torch

from specfit.answer_text import AnswerText
from specfit.cycle import RouteSource
from specfit.methods import AR, EAGLE3, SPECFIT, Method, Policy, as_method
from specfit.objective import CostModel
from specfit.prompts import Messages, decode_text, render, token_text
from specfit.records import CycleRecord
from specfit.sampling import make_sampling

if TYPE_CHECKING:
    from specfit.engine.engine import Engine

Prompt = str | Sequence[int] | Messages


@dataclass(frozen=True, slots=True)
class Generation:
    """An answer: what was said, and how it came about."""

    method: str  # its name
    prompt: tuple[int, ...] = field(repr=False)
    tokens: tuple[int, ...] = field(
        repr=False
    )  # with EOS, or the token that completes a stop string, where one ended the answer
    text: str  # without special tokens and without the stop string
    stop_reason: str  # "eos", "stop", "limit", or "interrupted"
    ended_by: str  # text of the EOS token or the stop string that ended it, else empty
    cycles: tuple[CycleRecord, ...] = field(repr=False)
    reused: int  # leading prompt tokens that were not run again, their keys and values being there
    prefill_ms: float
    request_ms: float  # prefill and all cycles

    @property
    def decode_tps(self) -> float | None:
        """Tokens per second after the first, which is prefill's; None where no cycle ran."""
        spent = sum(cycle.times.total_ms for cycle in self.cycles)
        return 1e3 * sum(cycle.committed for cycle in self.cycles) / spent if spent else None

    @property
    def committed_per_cycle(self) -> float | None:
        """Tokens gained per target forward; None where no cycle ran."""
        return sum(cycle.committed for cycle in self.cycles) / len(self.cycles) if self.cycles else None


class Answer:
    """One answer in the making: iterate over it for its text as that becomes certain; `result` is what there is so far.

    Interrupting the iteration leaves the engine usable and `result` valid.
    """

    def __init__(
        self,
        engine: Engine,
        prompt: Prompt,
        *,
        method: Method | Policy | str | None = None,
        cost: CostModel | None = None,
        routes: RouteSource | None = None,
        max_new_tokens: int = 128,
        min_new_tokens: int = 0,
        stop: str | Sequence[str] | None = (),
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        streamer: Any = None,
        reuse: bool = False,
        raw: bool = False,
    ) -> None:
        """As `generate`."""
        engine.check_open()
        self._engine, self._streamer = engine, streamer
        self._method = default_method(engine, cost=cost, routes=routes) if method is None else as_method(method, cost)
        self._text = AnswerText(engine.tokenizer, () if stop is None else stop)
        self._cycles: list[CycleRecord] = []
        self._reused = 0
        self.decoding = engine.decode(
            render(engine.tokenizer, cast(str, prompt), raw=True).ids if raw else engine.encode(prompt),
            method=self._method,
            cost=cost,
            routes=routes,
            max_new_tokens=max_new_tokens,
            min_new_tokens=min_new_tokens,
            sampling=make_sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed),
            stop=self._text if self._text.stop else None,
            reuse=reuse,
        )

    def __iter__(self) -> Iterator[str]:
        if self._streamer is not None:
            self._streamer.put(torch.tensor([self.decoding.prompt]))
        try:
            self.decoding.prefill()
            self._reused = self._engine.target.reused
            yield from self._said(self.decoding.output)
            for cycle in self.decoding:
                self._cycles.append(cycle)
                yield from self._said(cycle.committed_tokens)
            yield from _some(self._text.finish())
        finally:
            if self._streamer is not None:
                self._streamer.end()

    def _said(self, tokens: Sequence[int]) -> Iterator[str]:
        self._engine.check_logits()  # before anybody hears of tokens that mean nothing
        if self._streamer is not None:
            for token in tokens:
                self._streamer.put(torch.tensor([token]))
        if not self._text.stop:
            self._text(tokens)
        yield from _some(self._text.take())

    def result(self) -> Generation:
        decoding, tokenizer = self.decoding, self._engine.tokenizer
        reason, tokens = decoding.stop_reason or "interrupted", tuple(decoding.output)
        return Generation(
            method=self._method.name,
            prompt=decoding.prompt,
            tokens=tokens,
            text=decode_text(tokenizer, tokens) if reason == "interrupted" else self._text.text,
            stop_reason=reason,
            ended_by=token_text(tokenizer, tokens[-1]) if reason == "eos" else self._text.ended_by,
            cycles=tuple(self._cycles),
            reused=self._reused,
            prefill_ms=decoding.prefill_ms,
            request_ms=decoding.request_ms,
        )


def generate(engine: Engine, prompt: Prompt, **settings: Any) -> Generation:
    """Answer a prompt.

    prompt: a text (one user message), messages, or token ids (a list, or a tensor or encoding of one row).
    method: SPECFIT unless given where cost= and routes= are, else EAGLE3 where there is a drafter, else AR.
    max_new_tokens, min_new_tokens: EOS counts, and is banned before the latter. stop: strings that end the answer.
    temperature, top_k, top_p: with any of them tokens are drawn, by the library's meaning of each; else the text is
        greedy. seed: of the draws; it fixes the text in float32, whatever the method, the slots or the cache. In
        bfloat16 a draw that falls between two tokens to within rounding may differ from method to method.
    streamer: `put(prompt ids)`, then `put` for every token, then `end()`, as transformers' streamers expect.
    reuse: run only what the prompt adds to what the KV caches hold. raw: give a text as it is, without a chat template.
    Raises ValueError, one sentence, for a bad argument, a prompt that does not fit, or logits that are NaN.
    """
    answer = Answer(engine, prompt, **settings)
    for _ in answer:
        pass
    return answer.result()


class Conversation:
    """A chat: every turn's prompt is the conversation so far, and only what is new in it runs."""

    def __init__(
        self, engine: Engine, *, system: str | None = None, max_new_tokens: int = 512, **settings: Any
    ) -> None:
        """max_new_tokens: of an answer at most, or what the model's context leaves. settings: as of `generate`."""
        self.last: Generation | None = None  # the last turn's answer
        self._engine, self._limit, self._settings = engine, max_new_tokens, {"reuse": True, **settings}
        self._start = [] if system is None else [{"role": "system", "content": system}]
        self.reset()

    def reset(self) -> None:
        """Forget what was said."""
        self.messages: list[Mapping[str, str]] = list(self._start)
        self.last = None

    def ask(self, text: str) -> Generator[str, None, None]:
        """The answer, piece by piece; one that is cut short stays in the conversation as far as it came.

        Raises ValueError where the text cannot be asked or answered; the conversation is then what it was.
        """
        messages = [*self.messages, {"role": "user", "content": text}]
        ids = self._engine.encode(messages)
        room = self._engine.room(ids, self._limit)
        answer = Answer(self._engine, ids, max_new_tokens=room, **self._settings)
        try:
            yield from answer
        except (KeyboardInterrupt, GeneratorExit):
            if answer.decoding.output:
                self._keep(messages, answer)
            raise
        self._keep(messages, answer)

    def _keep(self, messages: list[Mapping[str, str]], answer: Answer) -> None:
        self.last = answer.result()
        self.messages = [*messages, {"role": "assistant", "content": self.last.text}]


def default_method(engine: Engine, *, cost: CostModel | None, routes: RouteSource | None) -> Method:
    """The best that what is given serves; ValueError for routes that no cost goes with, which nothing would read."""
    if engine.drafter is None:
        return AR
    if routes is not None and cost is None:
        raise ValueError("routes= without cost= serves no method; give both for SPECFIT, or leave routes out")
    return SPECFIT if routes is not None else EAGLE3


def _some(text: str) -> Iterator[str]:
    if text:
        yield text
