"""The engine end to end on tiny random models: lossless for every method and cache, and usable after anything."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import Qwen3MoeForCausalLM

from specfit.engine.atlas import Atlas, record_atlas
from specfit.engine.drafter import DraftConfig
from specfit.engine.engine import Engine, load_engine
from specfit.engine.link import EmulatedLink, InstantLink
from specfit.engine.route_sources import TargetRoutes
from specfit.methods import AR, EAGLE3, SPECFIT, Method
from specfit.objective import CostModel, CycleState, Selection, evaluate
from tests.models import tiny_drafter, tiny_pair

torch.set_num_threads(1)
METHODS = (AR, EAGLE3, SPECFIT)
COST = CostModel.affine(2.0, 0.1, expert_ms=0.05)
LIMIT = 12
PROMPTS = [
    tuple(random.Random(seed).randrange(64) for _ in range(length)) for seed, length in enumerate((1, 2, 5, 9, 24))
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_pair(tmp_path_factory.mktemp("pair"))


def load(folder: Path, **settings: object) -> Engine:
    return load_engine(folder / "target", drafter=folder / "drafter", device="cpu", **settings)


@pytest.fixture(scope="module")
def library(folder: Path) -> Qwen3MoeForCausalLM:
    return Qwen3MoeForCausalLM.from_pretrained(folder / "target").eval()


def generated(library: Qwen3MoeForCausalLM, prompt: Sequence[int], eos: Sequence[int] | None = None) -> list[int]:
    output = library.generate(
        torch.tensor([list(prompt)]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        do_sample=False,
        max_new_tokens=LIMIT,
        eos_token_id=None if eos is None else list(eos),
        pad_token_id=0,
    )
    return output[0, len(prompt) :].tolist()


@pytest.fixture(scope="module")
def texts(library: Qwen3MoeForCausalLM) -> list[list[int]]:
    return [generated(library, prompt) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def atlas(folder: Path) -> Atlas:
    with load(folder) as engine:
        return record_atlas(engine, PROMPTS, max_new_tokens=LIMIT)


def run(engine: Engine, prompt: object, method: Method, atlas: Atlas, limit: int = LIMIT) -> list[int]:
    decoding = engine.decode(prompt, method=method, cost=COST, routes=atlas, max_new_tokens=limit)
    list(decoding)
    return decoding.output


@pytest.mark.parametrize(("slots", "cleared"), [(8, False), (5, False), (2, False), (1, False), (8, True), (3, True)])
def test_every_method_gives_the_librarys_text(
    folder: Path, texts: list[list[int]], atlas: Atlas, slots: int, cleared: bool
) -> None:
    with load(folder, slots_per_layer=slots, cleared=cleared, self_test=False) as engine:
        for method in METHODS:
            for prompt, expected in zip(PROMPTS, texts, strict=True):
                decoding = engine.decode(prompt, method=method, cost=COST, routes=atlas, max_new_tokens=LIMIT)
                cycles = list(decoding)
                assert decoding.output == expected
                assert engine.target.committed == len(prompt) + LIMIT - 1
                for cycle in cycles:
                    assert cycle.counts.demand == cycle.counts.hits + cycle.counts.misses
                    union = cycle.verified.root
                    for bitmap in cycle.verified.nodes:
                        union |= bitmap
                    assert cycle.counts.demand == union.bit_count()
                    assert not cleared or cycle.counts.hits == 0
                if cleared:
                    assert decoding.prefill_counts.hits == 0


@pytest.mark.parametrize("settings", [{"attention": "eager"}, {"kernel": "eager"}, {"overlap": True}, {"link": 0.01}])
def test_every_setting_gives_the_librarys_text(
    folder: Path, texts: list[list[int]], atlas: Atlas, settings: dict
) -> None:
    with load(folder, slots_per_layer=3, **settings) as engine:
        for prompt, expected in zip(PROMPTS[1:4], texts[1:4], strict=True):
            assert run(engine, prompt, EAGLE3, atlas) == expected
            assert run(engine, prompt, SPECFIT, atlas) == expected


@pytest.mark.parametrize("draft", [DraftConfig(top_k=4, depth=3, max_pool=40), DraftConfig(3, 5, 10)])
def test_every_draft_setting_gives_the_librarys_text(folder: Path, texts: list[list[int]], draft: DraftConfig) -> None:
    with load(folder, slots_per_layer=4, draft=draft, self_test=False) as engine:
        atlas = record_atlas(engine, PROMPTS[1:3], max_new_tokens=LIMIT)
        for prompt, expected in zip(PROMPTS[1:3], texts[1:3], strict=True):
            assert run(engine, prompt, EAGLE3, atlas) == expected
            assert run(engine, prompt, SPECFIT, atlas) == expected


def test_eos_ends_the_text_where_the_librarys_ends(
    folder: Path, library: Qwen3MoeForCausalLM, texts: list[list[int]], atlas: Atlas
) -> None:
    rng = random.Random(0)
    with load(folder, slots_per_layer=4, self_test=False) as engine:
        for prompt, text in zip(PROMPTS, texts, strict=True):
            eos = sorted({rng.choice(text), rng.randrange(64)})
            engine.eos = engine.drafter._eos = frozenset(eos)
            expected = generated(library, prompt, eos)
            for method in (AR, EAGLE3):
                decoding = engine.decode(prompt, method=method, max_new_tokens=LIMIT)
                list(decoding)
                assert decoding.output == expected
                assert decoding.stop_reason == "eos"
                assert engine.target.committed == len(prompt) + len(expected) - 1


@pytest.mark.parametrize("limit", [1, 2, 6])
def test_limits(folder: Path, texts: list[list[int]], atlas: Atlas, limit: int) -> None:
    with load(folder, self_test=False) as engine:
        for method in METHODS:
            assert run(engine, PROMPTS[0], method, atlas, limit) == texts[0][:limit]


def test_the_same_request_twice_gives_the_same_records(folder: Path, atlas: Atlas) -> None:
    with load(folder, slots_per_layer=4, self_test=False) as engine:
        seen = []
        for _ in range(2):
            engine.reset()
            decoding = engine.decode(PROMPTS[3], method=SPECFIT, cost=COST, routes=atlas, max_new_tokens=LIMIT)
            seen.append(
                [(c.pool, c.selection, c.accepted, c.verified, c.counts.demand, c.counts.misses) for c in decoding]
            )
        assert seen[0] == seen[1]


def test_text_messages_and_any_integers_are_prompts(folder: Path) -> None:
    with load(folder, self_test=False) as engine:
        assert engine.encode("w3 w1") == (3, 1)
        assert engine.encode([{"role": "user", "content": "w3 w1"}]) == (3, 1)
        assert engine.encode([3, 1]) == engine.encode(np.array([3, 1])) == (3, 1)
        assert all(type(token) is int for token in engine.encode(np.array([3, 1])))


# -- interruptions ----------------------------------------------------------------------------------------------------


class Interrupting(InstantLink):
    """Raises KeyboardInterrupt in a fetch or a wait, as Ctrl-C would, once `after` such calls have passed."""

    def __init__(self, where: str) -> None:
        self.where, self.after = where, -1

    def _maybe(self, where: str) -> None:
        if where == self.where and self.after >= 0:
            self.after -= 1
            if self.after < 0:
                raise KeyboardInterrupt

    def fetch(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        self._maybe("fetch")
        super().fetch(pairs)

    def wait(self) -> None:
        self._maybe("wait")


@pytest.mark.parametrize("where", ["fetch", "wait"])
def test_the_engine_works_on_after_ctrl_c(folder: Path, texts: list[list[int]], atlas: Atlas, where: str) -> None:
    link = Interrupting(where)
    with load(folder, slots_per_layer=3, link=link, overlap=True) as engine:
        for after in (0, 5, 33):
            link.after = after
            with pytest.raises(KeyboardInterrupt):
                run(engine, PROMPTS[-1], EAGLE3, atlas)
            link.after = -1
            for prompt, expected in zip(PROMPTS[1:3], texts[1:3], strict=True):
                assert run(engine, prompt, SPECFIT, atlas) == expected


def test_going_on_after_another_request_began_is_an_error(folder: Path, texts: list[list[int]], atlas: Atlas) -> None:
    """The caches serve one request; without the error the first would go on in the second's text."""
    with load(folder, self_test=False) as engine:
        for method in METHODS:
            first = engine.decode(PROMPTS[2], method=method, cost=COST, routes=atlas, max_new_tokens=LIMIT)
            next(iter(first))
            assert run(engine, PROMPTS[3], method, atlas) == texts[3]
            with pytest.raises(ValueError, match="another request has begun on this engine since"):
                list(first)


def test_requests_may_be_made_before_they_run(folder: Path, texts: list[list[int]], atlas: Atlas) -> None:
    with load(folder, self_test=False) as engine:
        made = [engine.decode(prompt, method=EAGLE3, truth=atlas.truth, max_new_tokens=LIMIT) for prompt in PROMPTS[:3]]
        for decoding, expected in zip(made, texts, strict=False):
            list(decoding)  # the atlas would refuse a pool that the drafter grew from another request
            assert decoding.output == expected


def test_a_method_by_name_a_rule_of_ones_own_and_ids_as_a_tensor(folder: Path) -> None:
    def first_node(state: CycleState, cost: CostModel) -> Selection:
        return evaluate(state, range(min(1, len(state.pool))), cost)

    with load(folder, self_test=False) as engine:
        plain = engine.decode([1, 2, 3], method=AR, max_new_tokens=6)
        mine = engine.decode(
            torch.tensor([[1, 2, 3]]), method=first_node, cost=COST, routes=TargetRoutes(engine), max_new_tokens=6
        )
        named = engine.decode([1, 2, 3], method="eagle3", max_new_tokens=6)
        cycles = [list(decoding) for decoding in (plain, mine, named)]
        assert plain.output == mine.output == named.output
        assert all(cycle.selection.nodes == (0,) for cycle in cycles[1] if len(cycle.pool))
        with pytest.raises(ValueError, match="method 'eagle' is unknown; choose ar, eagle3, specfit"):
            engine.decode([1], method="eagle")


# -- errors and memory ------------------------------------------------------------------------------------------------


def test_bad_requests_get_one_sentence(folder: Path) -> None:
    with load(folder, self_test=False) as engine:
        with pytest.raises(ValueError, match=r"250 tokens and the limit is 10 new ones; .*context of 256"):
            engine.decode([1] * 250, method=AR, max_new_tokens=10)
        with pytest.raises(ValueError, match=r"token 64 is outside the target's vocabulary of 64"):
            engine.decode([1, 64], method=AR, max_new_tokens=2)
        with pytest.raises(ValueError, match=r"token -1 is outside"):
            engine.decode([-1], method=AR, max_new_tokens=2)
        with pytest.raises(ValueError, match="the prompt has no tokens"):
            engine.decode([], method=AR)
        with pytest.raises(ValueError, match="'specfit' needs cost coefficients; fit them with `specfit calibrate`"):
            engine.decode([1], method=SPECFIT)
        with pytest.raises(ValueError, match="'specfit' reads expert routes"):
            engine.decode([1], method=SPECFIT, cost=COST)
        with pytest.raises(ValueError, match="context holds 256, so nothing can follow"):
            engine.room([1] * 256, 128)
        assert engine.room([1] * 250, 128) == 6
        assert engine.room([1] * 250, 4) == 4
        list(engine.decode([1] * 255, method=EAGLE3, max_new_tokens=1))


def test_a_prompt_that_leaves_little_room(folder: Path, library: Qwen3MoeForCausalLM) -> None:
    prompt = [random.Random(3).randrange(64) for _ in range(256 - LIMIT)]
    with load(folder, self_test=False) as engine:
        decoding = engine.decode(prompt, method=EAGLE3, max_new_tokens=LIMIT)
        list(decoding)
        assert decoding.output == generated(library, prompt)


def test_without_a_drafter_only_ar_decodes(folder: Path, texts: list[list[int]], atlas: Atlas) -> None:
    with load_engine(folder / "target", self_test=False) as engine:
        assert run(engine, PROMPTS[2], AR, atlas) == texts[2]
        with pytest.raises(ValueError, match="'eagle3' verifies draft nodes; load the engine with a drafter"):
            engine.decode([1], method=EAGLE3)
        with pytest.raises(ValueError, match="an atlas holds routes of drafted pools; load the engine with a drafter"):
            record_atlas(engine, PROMPTS, max_new_tokens=2)


def test_bad_settings_get_one_sentence(folder: Path, tmp_path: Path) -> None:
    for settings, match in (
        ({"slots_per_layer": 0}, "slots per layer must be between 1 and the target's 8 experts, or a share .*; got 0"),
        ({"slots_per_layer": 9}, "got 9"),
        ({"kernel": "fast"}, "kernel 'fast' is unknown"),
        ({"dtype": "int8"}, "dtype 'int8' is none of float32"),
        ({"link": -1.0}, "link times are milliseconds"),
    ):
        with pytest.raises(ValueError, match=match):
            load(folder, **settings)
    tiny_drafter(tmp_path, vocab=32)
    with pytest.raises(ValueError, match="32"):
        load_engine(folder / "target", drafter=tmp_path)


def test_close_twice_gives_the_memory_back(folder: Path) -> None:
    engine = load(folder, slots_per_layer=4, self_test=False)
    decoding = engine.decode([1, 2], method=EAGLE3, max_new_tokens=8)
    next(iter(decoding))
    model = weakref.ref(engine.target.model)
    engine.close()
    engine.close()
    gc.collect()
    assert model() is None  # although a request is still at hand
    for use in (
        lambda: engine.decode([1], method=AR),
        lambda: list(decoding),
        lambda: engine.reset(),
    ):
        with pytest.raises(ValueError, match="this engine is closed and its memory given back; load it again"):
            use()


def test_settings_name_the_configuration(folder: Path) -> None:
    with load(folder, slots_per_layer=4, link=EmulatedLink(0.5, latency_ms=0.25), self_test=False) as engine:
        assert engine.settings["slots_per_layer"] == 4
        assert engine.settings["link"] == {"kind": "emulated", "expert_ms": 0.5, "latency_ms": 0.25}
        assert engine.settings["dtype"] == "float32"
        assert set(engine.route_settings) == {"target", "drafter", "draft", "dtype"}
        assert (engine.layers, engine.experts) == (4, 8)
