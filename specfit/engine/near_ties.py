"""Is the engine's text the library's? Exactly in float32; in bfloat16 up to near-ties, and this says which they are.

In bfloat16 a number has 8 significant bits, and forwards of one row and of several add in different orders, so two
logits that are almost the same may change places. From there on the texts part, and only the first difference means
anything: it is a near-tie if the reference held the token that was taken to be as good as its own, to within rounding.

How near is near? A logit is rounded to a unit in the last place (ulp) of its size, and what it is computed from was
rounded in every layer. `benchmarks/near_ties.py --prompts 16` compares the embedded pair's trees with the library: at
99 % of 1,802 positions the four greatest logits move by at most 2.5 ulps each, so two of them come 5 closer at most;
`NEAR_TIE` is the next power of two, and the four first differences it met were of 0 and 1 ulp. At the odd position the
near-tie is in a router, another expert is taken, and logits move further (36 ulps once): if the text parts just there,
that is reported as a failure too, and only the numbers tell it from a wrong engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, GenerationConfig

from specfit import embedded as embedded_pair
from specfit.methods import AR, Method
from specfit.objective import CostModel

if TYPE_CHECKING:
    from specfit.cycle import RouteSource
    from specfit.engine.engine import Engine

NEAR_TIE = 8.0  # ulps that the logit of the token taken may lie below the reference's greatest; 0 in float32


@dataclass(frozen=True, slots=True)
class GreedyText:
    """A reference: its greedy tokens, and the logits that each is the greatest of."""

    tokens: tuple[int, ...]
    logits: tuple[Tensor, ...]  # (V_t,) each, in the model's dtype


Reference = Callable[[Sequence[int], int], GreedyText]  # (prompt, most new tokens)


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a text first leaves its reference, and how near the two tokens were there."""

    position: int  # of the output, from 0
    expected: int  # the reference's token
    found: int  # the token taken, -1 where the text ended too early
    top_2_gap: float  # between the reference's two greatest logits there
    gap: float  # between its greatest logit and that of the token taken
    ulps: float  # `gap` in units in the last place, at the size of the greatest logit
    near_tie: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """One prompt by one method."""

    prompt: int  # its number
    method: str
    tokens: int  # of the output that agree
    difference: Difference | None


def check_lossless(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    reference: Reference,
    *,
    methods: Sequence[Method],
    cost: CostModel | None = None,
    routes: RouteSource | None = None,
    max_new_tokens: int = 128,
) -> list[Comparison]:
    """Compare the greedy text of every prompt by every method with the reference's."""
    found = []
    for number, prompt in enumerate(prompts):
        expected = reference(prompt, max_new_tokens)
        for method in methods:
            decoding = engine.decode(prompt, method=method, cost=cost, routes=routes, max_new_tokens=max_new_tokens)
            for _ in decoding:
                pass
            difference = first_difference(expected, decoding.output)
            agree = len(decoding.output) if difference is None else difference.position
            found.append(Comparison(number, method.name, agree, difference))
    return found


def first_difference(expected: GreedyText, tokens: Sequence[int]) -> Difference | None:
    """None where `tokens` are the reference's."""
    pairs = enumerate(zip(expected.tokens, tokens, strict=False))
    at = next((i for i, (one, other) in pairs if one != other), min(len(expected.tokens), len(tokens)))
    if at == len(expected.tokens) == len(tokens):
        return None
    if at == len(expected.tokens):
        raise ValueError(
            f"the text goes on after token {at}, where the reference ends: their limits or EOS tokens differ"
        )
    logits = expected.logits[at]
    top, second = logits.topk(2).values.tolist()
    taken = tokens[at] if at < len(tokens) else -1
    gap = top - float(logits[taken]) if taken >= 0 else math.inf
    ulps = gap / ulp(top, logits.dtype)
    limit = 0.0 if logits.dtype == torch.float32 else NEAR_TIE
    return Difference(at, expected.tokens[at], taken, top - second, gap, ulps, near_tie=ulps <= limit and limit > 0)


def ulp(value: float, dtype: torch.dtype) -> float:
    """The step between neighbouring numbers of `dtype` at the size of `value`."""
    info = torch.finfo(dtype)
    return info.eps * 2.0 ** math.floor(math.log2(max(abs(value), info.tiny)))


def library_reference(engine: Engine) -> Reference:
    """The library's own model of the same checkpoint, dtype and attention, whole in memory, decoding with its cache."""
    settings = engine.settings
    folder = embedded_pair.target_folder() if settings["target"] == "embedded" else settings["target"]
    dtype, device = getattr(torch, settings["dtype"]), torch.device(settings["device"])
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation=settings["attention"])
    if device.type != "cpu":  # there `generate` changes to another kernel while it decodes, but not from this one
        model.set_experts_implementation("eager")
    try:
        model = model.to(device).eval()
    except torch.OutOfMemoryError as error:
        raise ValueError(
            f"the library's whole model does not fit on {device} beside the engine ({str(error).splitlines()[0]}); "
            "take fewer slots, or --reference engine"
        ) from None
    model.generation_config = GenerationConfig()  # nothing of the checkpoint's own: no sampling, no penalties
    eos = sorted(engine.eos) or None

    def text(prompt: Sequence[int], most: int) -> GreedyText:
        ids = torch.tensor([list(prompt)], device=device)
        config = GenerationConfig(
            do_sample=False,
            max_new_tokens=most,
            eos_token_id=eos,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        output = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
        logits = tuple(row[0].to(dtype) for row in output.logits)  # the library widens them to float32
        return GreedyText(tuple(output.sequences[0, len(prompt) :].tolist()), logits)

    return text


def engine_reference(engine: Engine) -> Reference:
    """This engine's AR: after the prompt every forward has one row, so no tree, mask or compaction takes part."""

    def text(prompt: Sequence[int], most: int) -> GreedyText:
        decoding = engine.decode(prompt, method=AR, max_new_tokens=most)
        decoding.prefill()
        logits = [engine.target.last_logits[-1]]
        logits += [engine.target.last_logits[-1] for _ in decoding]
        return GreedyText(tuple(decoding.output), tuple(logits))

    return text
