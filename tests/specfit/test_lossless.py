"""The promise: every method, cache size and policy emits the library's own greedy tokens, in float32 exactly.

The grid decodes the first tokens of 40 prompts in every configuration, the methods taking turns so that each meets
every prompt in four of the twelve; the whole answers of some of them follow. `benchmarks/lossless.py` decodes all of
them to the end with all methods in all configurations.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import specfit
from specfit.embedded import target_folder
from specfit.engine.engine import Engine
from specfit.methods import AR, EAGLE3, SPECFIT
from specfit.prompts import render
from specfit.routes import Routes
from specfit.tree import DraftPool

PROMPTS, FIRST, WHOLE = 40, 12, 5  # prompts; tokens of the grid; prompts that are decoded to the end
COST = specfit.CostModel.affine(8.0, 0.3, expert_ms=0.3)
GRID = [(slots, cleared) for slots in (64, 24, 12, 6, 4, 1) for cleared in (False, True)]


def random_routes(context: Sequence[int], pool: DraftPool) -> Routes:
    """Estimates that are plainly wrong, and the same for the same prefix: they may only change what is verified."""
    rng = Random(repr(list(context[-3:])))
    bitmaps = [sum(1 << (64 * layer + rng.randrange(64)) for layer in range(6)) for _ in range(19)]
    return Routes(bitmaps[0], tuple(bitmaps[1 : 1 + len(pool)]), 6, 64)


@pytest.fixture(scope="session")
def reference() -> list[tuple[tuple[int, ...], list[int]]]:
    """Prompts with the library's own greedy answers: the first tokens of all, the whole answer of the last few."""
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(target_folder(), dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(target_folder())
    rows = [
        *specfit.embedded_workload("problems", count=PROMPTS // 2).questions,
        *specfit.embedded_workload("news", count=PROMPTS // 2).questions,
    ]
    found = []
    for number, row in enumerate(rows):
        ids = render(tokenizer, row.turns[0]).ids
        limit = 200 if number % (PROMPTS // WHOLE) == 0 else FIRST
        with torch.no_grad():
            text = model.generate(torch.tensor([ids]), max_new_tokens=limit, do_sample=False)
        found.append((ids, text[0, len(ids) :].tolist()))
    return found


def decode(engine: Engine, prompt: tuple[int, ...], method: specfit.Method, limit: int) -> list[int]:
    decoding = engine.decode(prompt, method=method, cost=COST, routes=random_routes, max_new_tokens=limit)
    for _ in decoding:
        pass
    assert engine.target.committed == len(prompt) + len(decoding.output) - 1
    return decoding.output


@pytest.mark.parametrize(("slots", "cleared"), GRID)
def test_every_method_and_cache_gives_the_librarys_greedy_tokens(reference, slots: int, cleared: bool) -> None:
    with specfit.load_engine("embedded", slots_per_layer=slots, cleared=cleared, self_test=False) as engine:
        for number, (prompt, text) in enumerate(reference, start=GRID.index((slots, cleared))):
            method = (AR, EAGLE3, SPECFIT)[number % 3]
            assert decode(engine, prompt, method, FIRST) == text[:FIRST], (method.name, slots, cleared, prompt)


@pytest.mark.parametrize("slots", [6])
def test_whole_answers_end_where_the_librarys_end(reference, slots: int) -> None:
    whole = [(prompt, text) for prompt, text in reference if len(text) > FIRST]
    assert len(whole) >= WHOLE
    with specfit.load_engine("embedded", slots_per_layer=slots, self_test=False) as engine:
        for prompt, text in whole:
            for method in (AR, EAGLE3, SPECFIT):
                assert decode(engine, prompt, method, 200) == text, (method.name, slots, prompt)


def test_resident_logits_are_the_librarys_bit_for_bit_at_two_slots_and_more(reference) -> None:
    model = AutoModelForCausalLM.from_pretrained(target_folder(), dtype=torch.float32).eval()
    prompt = reference[0][0]
    with torch.no_grad():
        expected = model(torch.tensor([prompt]), logits_to_keep=1).logits[0, -1]
    for slots in (64, 24, 12, 6, 4, 2):
        with specfit.load_engine("embedded", slots_per_layer=slots, self_test=False) as engine:
            engine.target.prefill(prompt)
            assert torch.equal(engine.target.last_logits[-1], expected), slots


def test_the_same_seeds_give_the_same_records(reference) -> None:
    def records() -> list[tuple]:
        with specfit.load_engine("embedded", slots_per_layer=12) as engine:
            atlas = specfit.record_atlas(engine, [reference[0][0]], max_new_tokens=FIRST)
            engine.reset()
            decoding = engine.decode(
                reference[0][0],
                method=SPECFIT,
                cost=COST,
                routes=atlas.noisy(0.6, seed=3),
                truth=atlas.truth,
                max_new_tokens=FIRST,
            )
            return [
                (c.pool, c.estimate, c.truth, c.selection, c.verified, c.accepted, c.committed_tokens, c.counts.misses)
                for c in decoding
            ]

    assert records() == records()
