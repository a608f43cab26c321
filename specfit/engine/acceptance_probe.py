"""Does a drafter fit its target as it was read? Counts accepted tokens, as read and with each doubtful choice changed.

A wrong base of the rotary positions or target layers off by one are no errors anywhere: the drafter only drafts worse.
So the target's own greedy text is decoded once, with the states at every layer in question, and each variant of the
head drafts a chain at every position of it. What counts is how many tokens of the chain are the target's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specfit.engine.draft_vocabulary import DraftVocabulary
from specfit.engine.drafter import DraftConfig, Eagle3Drafter
from specfit.engine.eagle3 import Eagle3Config, Eagle3Head
from specfit.engine.offload import Offload
from specfit.engine.target import OffloadedTarget
from specfit.tree import EMPTY_POOL, ROOT

CHAIN = 3  # tokens drafted at every position
CLEARLY = 1.1  # times the accepted tokens of the head as it was read, and
SURELY = 3.0  # standard errors of the difference over positions


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt's greedy continuation, with the states that a drafter may read."""

    tokens: tuple[int, ...]  # prompt and answer
    prompt: int  # how many of them are the prompt's
    states: dict[int, Tensor]  # target layer -> what enters it, (1, len(tokens), H_t)


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to read the head, and how it fared."""

    option: str  # "rope_theta=10000.0", empty as read
    accepted: tuple[int, ...]  # at every position, of a chain of CHAIN tokens

    @property
    def mean(self) -> float:
        return mean(self.accepted)

    @property
    def first(self) -> float:
        """Share of positions whose first drafted token is the target's."""
        return mean(count > 0 for count in self.accepted)


@dataclass(frozen=True, slots=True)
class Probe:
    """All variants, the one as read first."""

    variants: tuple[Variant, ...]

    @property
    def better(self) -> tuple[Variant, ...]:
        """Those that clearly fit better than the head as it was read, best first."""
        as_read, *others = self.variants
        found = [other for other in others if _clearly(other, as_read)]
        return tuple(sorted(found, key=lambda variant: -variant.mean))

    def __str__(self) -> str:
        as_read = self.variants[0]
        lines = [f"accepted of a chain of {CHAIN}, over {len(as_read.accepted)} positions of the target's own text"]
        lines += [
            f"  {one.mean:.2f}  (first token {one.first:.0%})  {one.option or 'as read'}" for one in self.variants
        ]
        if self.better:
            best = self.better[0]
            lines.append(
                f"warning: with {best.option} this head has {best.mean:.2f} accepted instead of {as_read.mean:.2f}; "
                f"load it with overrides=specfit.Overrides({best.option})"
            )
        elif as_read.mean < 0.1:
            lines.append("warning: next to nothing is accepted in any reading; this head is probably of another target")
        else:
            lines.append("no other reading fits clearly better")
        return "\n".join(lines)


def probe(
    target: OffloadedTarget,
    head: Eagle3Head,
    vocabulary: DraftVocabulary,
    prompts: Sequence[Sequence[int]],
    *,
    thetas: Sequence[float] = (),
    max_new_tokens: int = 40,
    eos: Sequence[int] = (),
    progress: Callable[[int], None] = lambda done: None,
) -> Probe:
    """Try the head as read and its variants on greedy text of `target`.

    thetas: bases to try besides 10000 and a million. progress: told how many variants are done.
    """
    tried = list(variants(head.config, layers=target.config.num_hidden_layers, thetas=thetas))
    layers = sorted({layer for _, config in tried for layer in config.aux_layer_ids})
    texts = [
        greedy_text(target.model, target.offload, prompt, layers, max_new_tokens, eos, target.device)
        for prompt in prompts
    ]
    found = []
    for option, config in tried:
        drafter = Eagle3Drafter(
            _with_config(head, config),
            target_ids=vocabulary.target_ids,
            config=DraftConfig(top_k=1, depth=CHAIN, max_pool=CHAIN),
            eos=(),
            device=target.device,
        )
        found.append(Variant(option, tuple(count for text in texts for count in accepted(drafter, text))))
        progress(len(found))
    return Probe(tuple(found))


def variants(config: Eagle3Config, *, layers: int, thetas: Sequence[float] = ()) -> Iterator[tuple[str, Eagle3Config]]:
    """(option, config) of the head as read, then with one doubtful choice changed at a time."""
    yield "", config
    theta = config.rope_parameters["rope_theta"]
    for other in dict.fromkeys((1e4, 1e6, *map(float, thetas))):
        if other != theta:
            yield (
                f"rope_theta={other}",
                replace(config, rope_parameters={**config.rope_parameters, "rope_theta": other}),
            )
    for step in (1, -1):
        ids = tuple(layer + step for layer in config.aux_layer_ids)
        if all(0 <= layer < layers for layer in ids):
            yield f"aux_layer_ids={ids}", replace(config, aux_layer_ids=ids)
    for name in ("norm_before_residual", "norm_output"):
        change: dict[str, Any] = {name: not getattr(config, name)}
        yield f"{name}={change[name]}", replace(config, **change)


def greedy_text(
    model: PreTrainedModel,
    offload: Offload,
    prompt: Sequence[int],
    layers: Sequence[int],
    limit: int,
    eos: Sequence[int],
    device: torch.device,
) -> Text:
    """Decode plainly, token by token, and keep what enters each of `layers`."""
    target = OffloadedTarget(model, offload, aux_layer_ids=layers, device=device)
    try:
        tokens = [*prompt, target.prefill(prompt).next_tokens[0]]
        kept = [target.commit(())]
        while len(tokens) < len(prompt) + limit and tokens[-1] not in eos:
            following = target.verify(tokens[-1], EMPTY_POOL, ()).next_tokens[0]
            kept.append(target.commit((0,)))
            tokens.append(following)
    finally:
        target.close()
    states = torch.cat([part for part in kept if part is not None], dim=1).chunk(len(layers), dim=-1)
    return Text(tuple(tokens), len(prompt), dict(zip(layers, states, strict=True)))


def accepted(drafter: Eagle3Drafter, text: Text) -> Iterator[int]:
    """At every position of the answer but its last: how many tokens of a drafted chain are the text's own."""
    config = drafter.head.config
    features = torch.cat([text.states[layer] for layer in config.aux_layer_ids], dim=-1)
    drafter.begin()
    known = text.prompt + 1  # the first answer token is pending
    drafter.extend(text.tokens[1:known], features[:, : known - 1])
    while known < len(text.tokens):
        pool = drafter.full_pool()
        node, hits = ROOT, 0
        for place, token in enumerate(text.tokens[known : known + CHAIN]):
            if place >= len(pool) or pool.parents[place] != node or pool.tokens[place] != token:
                break
            node, hits = place, hits + 1
        yield hits
        drafter.extend(text.tokens[known : known + 1], features[:, known - 1 : known])
        known += 1


def _with_config(head: Eagle3Head, config: Eagle3Config) -> Eagle3Head:
    """The same weights under another config."""
    with torch.device("meta"):
        other = Eagle3Head(config)
    other.load_state_dict(head.state_dict(), strict=True, assign=True)
    return other.eval().requires_grad_(False).pack()


def _clearly(other: Variant, as_read: Variant) -> bool:
    differences = [a - b for a, b in zip(other.accepted, as_read.accepted, strict=True)]
    if len(differences) < 2 or other.mean <= CLEARLY * as_read.mean:
        return False
    return mean(differences) > SURELY * stdev(differences) / math.sqrt(len(differences))
