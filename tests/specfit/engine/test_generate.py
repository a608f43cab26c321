"""Generation end to end on a tiny random pair whose wide trees are often accepted: the library's texts, always.

The pair has eight tokens, so a tree that drafts half of them at every node commits several at once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import chi2_contingency
from transformers import GenerationConfig, Qwen3MoeForCausalLM, TextStreamer

from specfit.engine.drafter import DraftConfig
from specfit.engine.engine import Engine, load_engine
from specfit.engine.families import small_model
from specfit.engine.generate import Answer, Conversation
from specfit.engine.route_sources import LastTokenRoutes
from specfit.methods import AR, EAGLE3, SPECFIT, Method, with_max_nodes
from specfit.objective import CostModel
from specfit.sampling import Sampling
from tests.models import tiny_drafter, tiny_target
from tests.word_tokenizer import save_tokenizer

torch.set_num_threads(1)
WIDE = DraftConfig(top_k=4, depth=3, max_pool=36)
METHODS = (AR, with_max_nodes(EAGLE3, 20), with_max_nodes(SPECFIT, 4))
CHEAP = CostModel.affine(10.0, 0.01, expert_ms=0.001, max_nodes=20)  # nodes are worth their time
PROMPT = (1, 5, 2, 2, 7)
TEMPLATE = (
    "{% for m in messages %}{{ m['content'] }} {% if m['role'] == 'user' %}w0 {% else %}w1 {% endif %}{% endfor %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    tiny_target(folder / "target", vocab_size=8, num_hidden_layers=3, max_position_embeddings=64)
    tiny_drafter(folder / "drafter", vocab=8, aux=(0, 1, 2))
    save_tokenizer(folder / "target", vocab=8)
    return folder


def load(folder: Path, **settings: Any) -> Engine:
    engine = load_engine(
        folder / "target", drafter=folder / "drafter", draft=WIDE, device="cpu", self_test=False, **settings
    )
    engine.tokenizer.chat_template = TEMPLATE
    return engine


@pytest.fixture(scope="module")
def one(folder: Path) -> Engine:
    return load(folder)


@pytest.fixture
def engine(one: Engine) -> Iterator[Engine]:
    """A fresh request and no EOS token, unless a test names one."""
    one.target.prefill([0])
    one.target.rewind()
    one.eos = frozenset()
    yield one
    one.eos = frozenset()


@pytest.fixture(scope="module")
def fresh(folder: Path) -> Engine:
    """Another engine, which starts every prompt from scratch."""
    return load(folder, slots_per_layer=3)


@pytest.fixture(scope="module")
def library(folder: Path) -> Qwen3MoeForCausalLM:
    return Qwen3MoeForCausalLM.from_pretrained(folder / "target").eval()


def generated(library: Qwen3MoeForCausalLM, prompt: Sequence[int], **settings: Any) -> list[list[int]]:
    """The library's own texts."""
    ids = torch.tensor([list(prompt)])
    config = GenerationConfig(**{"do_sample": False, "pad_token_id": 0, "max_new_tokens": 20, **settings})
    output = library.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    return output[:, len(prompt) :].tolist()


def asked(engine: Engine, method: Method) -> dict[str, Any]:
    """What a method needs."""
    return {"method": method, "cost": CHEAP, "routes": LastTokenRoutes(engine) if method.uses_routes else None}


# -- limits and ends -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_greedy_text_and_its_records(engine: Engine, library: Qwen3MoeForCausalLM, method: Method) -> None:
    answer = engine.generate(PROMPT, max_new_tokens=30, **asked(engine, method))
    assert [list(answer.tokens)] == generated(library, PROMPT, max_new_tokens=30)
    assert answer.text == " ".join(f"w{token}" for token in answer.tokens)
    assert (answer.stop_reason, answer.ended_by, answer.reused) == ("limit", "", 0)
    assert sum(cycle.committed for cycle in answer.cycles) == 29
    assert answer.committed_per_cycle == 29 / len(answer.cycles)
    assert answer.decode_tps == pytest.approx(29e3 / sum(cycle.times.total_ms for cycle in answer.cycles))
    assert method is AR or max(cycle.committed for cycle in answer.cycles) > 2  # blocks, or the tests below test little


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@pytest.mark.parametrize("limit", [1, 2, 6])
def test_the_limit_is_tokens(engine: Engine, library: Qwen3MoeForCausalLM, method: Method, limit: int) -> None:
    """Case F5."""
    answer = engine.generate(PROMPT, max_new_tokens=limit, **asked(engine, method))
    assert [list(answer.tokens)] == generated(library, PROMPT, max_new_tokens=limit)
    assert engine.target.committed == len(PROMPT) + limit - 1
    if limit == 1:
        assert answer.cycles == () and answer.decode_tps is answer.committed_per_cycle is None  # case F19
    assert all(cycle.drafted_levels <= limit - 2 for cycle in answer.cycles)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@pytest.mark.parametrize("least", [0, 5, 9])
def test_eos_and_the_least_tokens(engine: Engine, library: Qwen3MoeForCausalLM, method: Method, least: int) -> None:
    """Cases F1, F2 and F9: EOS inside a block ends it there, and is banned before by each node's own place."""
    plain = generated(library, PROMPT)[0]
    engine.eos = frozenset(plain[2:4])  # wanted at the third token and the fourth
    answer = engine.generate(PROMPT, max_new_tokens=20, min_new_tokens=least, **asked(engine, method))
    expected = generated(library, PROMPT, min_new_tokens=least, eos_token_id=sorted(engine.eos))[0]
    assert list(answer.tokens) == expected
    assert len(expected) > least and (least or len(expected) <= 3)
    assert (answer.stop_reason == "eos") == (expected[-1] in engine.eos)
    assert sum(cycle.committed for cycle in answer.cycles) == len(expected) - 1
    assert engine.target.committed == len(PROMPT) + len(expected) - 1
    if answer.stop_reason == "eos":
        assert answer.ended_by == f"w{expected[-1]}"  # case C10: the id's text is named


@pytest.mark.parametrize("prompt", [(7,), (7, 3)], ids=["one token", "two"])
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_short_prompts(engine: Engine, library: Qwen3MoeForCausalLM, prompt: Sequence[int], method: Method) -> None:
    """Case F7."""
    answer = engine.generate(prompt, max_new_tokens=12, **asked(engine, method))
    assert [list(answer.tokens)] == generated(library, prompt, max_new_tokens=12)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@pytest.mark.parametrize("room", [1, 2, 7])
def test_the_text_may_end_exactly_where_the_context_does(
    engine: Engine, library: Qwen3MoeForCausalLM, method: Method, room: int
) -> None:
    """Case F7: a prompt of max_position - 1, and near it."""
    prompt = [(5 * i + 2) % 8 for i in range(64 - room)]
    answer = engine.generate(prompt, max_new_tokens=room, **asked(engine, method))
    assert [list(answer.tokens)] == generated(library, prompt, max_new_tokens=room)
    with pytest.raises(ValueError, match="together they pass the model's context of 64"):
        engine.generate(prompt, max_new_tokens=room + 1, **asked(engine, method))


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_a_stop_string_cuts_a_block_and_the_kv_cache(engine: Engine, method: Method) -> None:
    """Case F3, with stop strings that span two tokens, at every place of the text."""
    plain = engine.generate(PROMPT, max_new_tokens=16, method=AR)
    for at in range(1, 15):
        stop = f"w{plain.tokens[at]} w{plain.tokens[at + 1]}"
        first = next(i for i in range(15) if plain.tokens[i : i + 2] == plain.tokens[at : at + 2])
        answer = engine.generate(PROMPT, max_new_tokens=16, stop=["nothing", stop], **asked(engine, method))
        assert answer.tokens == plain.tokens[: first + 2]
        assert (answer.stop_reason, answer.ended_by) == ("stop", stop)
        assert answer.text == "".join(f"w{token} " for token in plain.tokens[:first])
        assert sum(cycle.committed for cycle in answer.cycles) == first + 1
        assert engine.target.committed == len(PROMPT) + first + 1
        assert engine.target.held == [*PROMPT, *answer.tokens[:-1]]


# -- sampling --------------------------------------------------------------------------------------------------------


@torch.inference_mode()
def drawn(library: Qwen3MoeForCausalLM, seed: int, count: int, **settings: Any) -> list[int]:
    """Plain sampling, written out: a forward of the whole text for every token, and the library's own processors."""
    config = GenerationConfig(do_sample=True, **{"top_k": 0, **settings})
    processors = library._get_logits_processor(config)
    text = list(PROMPT)
    for _ in range(count):
        scores = processors(None, library(input_ids=torch.tensor([text]), use_cache=False).logits[:, -1].float())
        number = Sampling(seed=seed).number(len(text))
        shares = scores[0].double().softmax(-1).tolist()
        text.append(next(token for token in range(8) if sum(shares[: token + 1]) > number))
    return text[len(PROMPT) :]


@pytest.mark.parametrize("settings", [{"temperature": 0.8}, {"temperature": 3.0, "top_k": 5}, {"top_p": 0.7}], ids=str)
def test_a_seed_gives_the_same_text_with_every_method_and_cache(
    engine: Engine, fresh: Engine, library: Qwen3MoeForCausalLM, settings: dict
) -> None:
    """Cases F11 and F15: sampling is lossless, so every method gives what plain sampling does, with three slots too."""
    texts = []
    for seed in range(3):
        expected = drawn(library, seed, 18, **settings)
        for other, method in ((engine, AR), (engine, METHODS[1]), (fresh, METHODS[2])):
            answer = other.generate(PROMPT, max_new_tokens=18, seed=seed, **settings, **asked(other, method))
            assert list(answer.tokens) == expected
            assert method is AR or len(answer.cycles) < 17
        texts.append(answer.tokens)
    assert len(set(texts)) == 3


def test_a_text_goes_on_with_its_seed_where_it_was_cut(engine: Engine) -> None:
    """Case F15: resumed in the middle, and asked in another order."""
    whole = engine.generate(PROMPT, max_new_tokens=20, temperature=1.0, seed=9)
    engine.generate((3, 3), max_new_tokens=5, temperature=1.0, seed=9)
    rest = engine.generate((*PROMPT, *whole.tokens[:7]), max_new_tokens=13, temperature=1.0, seed=9)
    assert rest.tokens == whole.tokens[7:]


def test_sampled_texts_follow_the_librarys_law(engine: Engine, library: Qwen3MoeForCausalLM) -> None:
    """Case F11 at the chi-square's 0.1 % level, against the library's own sampling."""
    settings = {"temperature": 1.7, "top_k": 6, "top_p": 0.95, "max_new_tokens": 3, "min_new_tokens": 3}
    engine.eos = frozenset({6})
    ours = [engine.generate(PROMPT, method=METHODS[1], seed=seed, **settings).tokens for seed in range(250)]
    torch.manual_seed(0)
    many = {"do_sample": True, "num_return_sequences": 1500, "eos_token_id": 6}
    theirs = generated(library, PROMPT, **many, **settings)
    for place in (slice(1), slice(0, 2), slice(1, 3)):  # the first token, and neighbours
        our, their = (Counter(tuple(text[place]) for text in texts) for texts in (ours, theirs))
        table = [[our[tokens], count] for tokens, count in their.items() if count > 30]  # five expected of ours
        assert len(table) >= 4 and chi2_contingency(table).pvalue > 1e-3
        assert not any(6 in tokens for tokens in (*our, *their))  # EOS is banned so early


def test_a_greedy_text_inherits_nothing_from_generation_config(folder: Path, engine: Engine, tmp_path: Path) -> None:
    """Case C16."""
    copy = tmp_path / "target"
    copy.mkdir()
    for path in (folder / "target").iterdir():
        (copy / path.name).symlink_to(path)
    (copy / "generation_config.json").unlink(missing_ok=True)
    (copy / "generation_config.json").write_text(
        '{"do_sample": true, "temperature": 5.0, "top_k": 3, "repetition_penalty": 1.5, "eos_token_id": 7}'
    )
    plain = engine.generate(PROMPT, max_new_tokens=20)
    with load_engine(copy, device="cpu", self_test=False) as other:
        answer = other.generate(PROMPT, max_new_tokens=20)
    assert answer.method == "ar" and answer.tokens == plain.tokens[: len(answer.tokens)]
    assert len(answer.tokens) == 20 or answer.tokens[-1] == 7


# -- what may be asked, and how --------------------------------------------------------------------------------------


def test_the_method_follows_from_what_is_given(engine: Engine) -> None:
    ask = {"max_new_tokens": 2}
    assert engine.generate(PROMPT, **ask).method == "eagle3"
    assert engine.generate(PROMPT, cost=CostModel.affine(1.0, 0.1, expert_ms=0.1), **ask).method == "eagle3"
    cost, routes = CostModel.affine(1.0, 0.1, expert_ms=0.1), LastTokenRoutes(engine)
    assert engine.generate(PROMPT, cost=cost, routes=routes, **ask).method == "specfit"
    with pytest.raises(ValueError, match="routes= without cost= serves no method"):
        engine.generate(PROMPT, routes=routes, **ask)


def test_ids_come_as_people_have_them(engine: Engine) -> None:
    expected = engine.generate(PROMPT, max_new_tokens=4).tokens
    row = torch.tensor([PROMPT])
    encoded = engine.tokenizer("w1 w5 w2 w2 w7", return_tensors="pt")
    for prompt in (list(PROMPT), row, row[0], row.numpy(), [list(PROMPT)], {"input_ids": row}, encoded):
        assert engine.generate(prompt, max_new_tokens=4).tokens == expected
    assert engine.generate("w1 w5 w2 w2 w7", raw=True, max_new_tokens=4).tokens == expected
    chat = engine.generate([{"role": "user", "content": "w1 w5"}], max_new_tokens=4)
    assert chat.prompt == (1, 5, 0) and chat.tokens == engine.generate("w1 w5", max_new_tokens=4).tokens


@pytest.mark.parametrize(
    ("prompt", "settings", "sentence"),
    [
        ((), {}, "the prompt has no tokens"),
        ("", {}, "the prompt is empty"),
        ([], {}, "the prompt has no tokens"),
        ((8,), {}, "token 8 is outside the target's vocabulary of 8"),
        (torch.ones(2, 3, dtype=torch.long), {}, "the prompt has 2 rows"),
        ({"ids": [1]}, {}, "expected input_ids"),
        (PROMPT, {"max_new_tokens": 0}, "max_new_tokens is 0"),
        (PROMPT, {"min_new_tokens": 5}, "min_new_tokens is 5 and max_new_tokens 4"),
        (PROMPT, {"temperature": 0}, "for the greedy text leave it out"),
        (PROMPT, {"top_p": 2}, "top_p is 2"),
        (PROMPT, {"stop": [""]}, "a stop string is ''"),
        (PROMPT, {"method": SPECFIT}, "needs cost coefficients"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_asked_is_one_sentence(engine: Engine, prompt: Any, settings: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        engine.generate(prompt, **{"max_new_tokens": 4, **settings})
    assert "\n" not in str(caught.value)
    with pytest.raises(TypeError, match="temprature"):
        engine.generate(PROMPT, temprature=1.0)


class Heard:
    """A streamer that writes down what it is given."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def put(self, value: torch.Tensor) -> None:
        self.calls.append(value.tolist())

    def end(self) -> None:
        self.calls.append("end")


def test_a_streamer_hears_the_prompt_every_token_and_the_end(engine: Engine, capsys: pytest.CaptureFixture) -> None:
    heard = Heard()
    answer = engine.generate(PROMPT, max_new_tokens=9, streamer=heard)
    assert heard.calls == [[list(PROMPT)], *([token] for token in answer.tokens), "end"]
    engine.generate(PROMPT, max_new_tokens=9, streamer=TextStreamer(engine.tokenizer, skip_prompt=True))
    assert capsys.readouterr().out.strip() == answer.text


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.0}], ids=["greedy", "sampled"])
def test_logits_that_are_nan_are_an_error_before_anybody_hears_a_token(folder: Path, settings: dict) -> None:
    heard = Heard()
    with load(folder) as engine:
        torch.nn.init.constant_(engine.target.model.lm_head.weight, math.nan)
        with pytest.raises(ValueError, match="NaN"):
            engine.generate(PROMPT, max_new_tokens=9, streamer=heard, **settings)
    assert heard.calls == [[list(PROMPT)], "end"]


# -- the next turn ---------------------------------------------------------------------------------------------------


def same_as_from_scratch(engine: Engine, fresh: Engine, prompt: Sequence[int], method: Method, **settings: Any) -> int:
    """Decode with reuse and without: same text, same trees. Returns the tokens that were reused."""
    settings = {"max_new_tokens": 9, **settings}
    answer = engine.generate(prompt, reuse=True, **asked(engine, method), **settings)
    expected = fresh.generate(prompt, **asked(fresh, method), **settings)
    assert answer.tokens == expected.tokens and expected.reused == 0
    for ours, theirs in zip(answer.cycles, expected.cycles, strict=True):
        assert (ours.pool.tokens, ours.pool.parents) == (theirs.pool.tokens, theirs.pool.parents)
        assert ours.pool.path_probs == pytest.approx(theirs.pool.path_probs, abs=1e-3)  # the drafter's rows are right
        assert ours.verified == theirs.verified
    assert engine.target.committed == len(prompt) + len(answer.tokens) - 1
    return answer.reused


def test_a_second_turn_runs_what_is_new_and_says_the_same(engine: Engine, fresh: Engine) -> None:
    method = METHODS[1]
    first = engine.generate(PROMPT, max_new_tokens=9, method=method)
    said = [*PROMPT, *first.tokens]
    assert same_as_from_scratch(engine, fresh, [*said, 3, 0, 4], method) == len(said) - 2  # the last token never ran
    assert same_as_from_scratch(engine, fresh, [*said, 3, 0, 5, 1], method) == len(said) + 1
    assert same_as_from_scratch(engine, fresh, [*said[:6], 7 - said[6], 2], method) == 5  # another text from there on
    assert same_as_from_scratch(engine, fresh, [*said[:6], 7 - said[6], 2], method) == 7  # the same prompt again
    assert same_as_from_scratch(engine, fresh, said[:4], METHODS[2]) == 3  # a shorter one
    assert same_as_from_scratch(engine, fresh, [7 - said[0], 1], method) == 0  # nothing in common
    assert same_as_from_scratch(engine, fresh, [7 - said[0]], method) == 0
    assert engine.generate([7 - said[0], 1], max_new_tokens=2).reused == 0  # not unless it is asked for


@pytest.mark.parametrize("family", ["gpt_oss", "deepseek_v3"])
def test_reuse_in_other_kinds_of_attention(family: str, tmp_path: Path) -> None:
    """Sliding windows of 8 tokens beside full layers, and keys of another width than values."""
    small_model(family, tmp_path)
    save_tokenizer(tmp_path)
    prompt, more = [(7 * i + 3) % 64 for i in range(20)], [9, 1, 30]
    with load_engine(tmp_path, device="cpu", self_test=False) as engine:
        expected = engine.generate([*prompt, *more], max_new_tokens=6)
        logits = engine.target.prompt_logits([*prompt, *more]).clone()
        for kept in (3, 12, 20):
            engine.generate([*prompt[:kept], 63], max_new_tokens=1)
            answer = engine.generate([*prompt, *more], max_new_tokens=6, reuse=True)
            assert (answer.reused, answer.tokens) == (kept - 1, expected.tokens)
            again = engine.target.prompt_logits([*prompt, *more], kept=kept)
            assert torch.allclose(again, logits, atol=1e-4, rtol=1e-4)


def test_methods_may_take_turns(engine: Engine, fresh: Engine) -> None:
    """The drafter did not run with AR, so with the next method the target runs what the drafter has to read."""
    text = [*PROMPT, *engine.generate(PROMPT, max_new_tokens=9, method=METHODS[1]).tokens]
    assert same_as_from_scratch(engine, fresh, [*text, 1], AR) == len(text) - 2
    longer = [*text, 1, *engine.generate([*text, 1], max_new_tokens=9, reuse=True, method=AR).tokens, 2]
    assert 0 < same_as_from_scratch(engine, fresh, longer, METHODS[2]) <= len(text) - 2
    assert same_as_from_scratch(engine, fresh, [*longer, 5], METHODS[1]) == len(longer) - 1
    engine.generate([1, *longer], max_new_tokens=2, method=AR)  # from scratch: the drafter's rows are of no use now
    assert same_as_from_scratch(engine, fresh, [1, *longer, 5], METHODS[1]) == 0
    assert same_as_from_scratch(engine, fresh, [1, *longer, 5], METHODS[1], temperature=1.0, seed=3) == len(longer) + 1


@pytest.mark.parametrize("forward", [0, 1, 3], ids=["in prefill", "in the first cycle", "in the third"])
def test_an_answer_that_is_interrupted_leaves_a_chat_that_goes_on(engine: Engine, fresh: Engine, forward: int) -> None:
    """Ctrl-C between two layers of a forward: half of the KV cache has rows that the other half has not."""
    method, chat = METHODS[1], Conversation(engine, method=METHODS[1], max_new_tokens=9)
    list(chat.ask("w1 w5"))
    assert chat.last is not None and chat.messages[-1] == {"role": "assistant", "content": chat.last.text}
    done: list[int] = []

    def interrupt(*_: Any) -> None:
        done.append(1)
        if len(done) == forward + 1:
            raise KeyboardInterrupt

    handle = engine.target.model.base_model.layers[-1].register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        list(chat.ask("w3 w3"))
    handle.remove()
    if forward:
        assert chat.last.stop_reason == "interrupted" and len(chat.messages) == 4
        assert chat.messages[-1]["content"] == chat.last.text == " ".join(f"w{token}" for token in chat.last.tokens)
        assert len(chat.last.tokens) == 1 + sum(cycle.committed for cycle in chat.last.cycles)
    else:
        assert len(chat.messages) == 2
    list(chat.ask("w2"))
    again = fresh.generate(chat.last.prompt, method=method, max_new_tokens=9)
    assert chat.last.tokens == again.tokens and chat.last.reused > 0
    chat.reset()
    assert chat.messages == [] and chat.last is None


def test_a_chat_fills_the_context_and_then_says_so(engine: Engine) -> None:
    chat = Conversation(engine, system="w4", max_new_tokens=30)
    turns = 0
    while engine.target.committed < 60:
        list(chat.ask("w3 w1 w2"))
        turns += 1
    with pytest.raises(ValueError, match="nothing can follow"):
        list(chat.ask("w3 w1 w2"))
    assert len(chat.messages) == 1 + 2 * turns  # the message that could not be asked is not in it
    assert chat.messages[0] == {"role": "system", "content": "w4"}
    assert engine.target.committed <= 64


def test_an_unfinished_answer_says_so(engine: Engine) -> None:
    answer = Answer(engine, PROMPT, max_new_tokens=20, method=AR)
    pieces = iter(answer)
    said = next(pieces) + next(pieces)
    result = answer.result()
    assert (result.stop_reason, len(result.tokens), result.text) == ("interrupted", 2, said)


def test_a_request_makes_its_kv_buffers_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt of 40 and 24 new tokens: no growth, and a turn that reuses keeps its buffers where they suffice."""
    for method in METHODS:
        engine.generate([i % 8 for i in range(40)], max_new_tokens=24, **asked(engine, method))
        buffers = [layer.keys for layer in engine.target._kv.layers]
        assert {buffer.shape[2] for buffer in buffers} == {64 + 1 + method.max_nodes}
    engine.generate([i % 8 for i in range(50)], max_new_tokens=4, reuse=True, method=METHODS[0])
    assert all(layer.keys is buffer for layer, buffer in zip(engine.target._kv.layers, buffers, strict=True))
