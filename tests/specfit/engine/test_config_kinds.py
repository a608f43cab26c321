"""Configs, tokenizers and arguments as people have them: read as the library reads them, or refused in one line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoTokenizer

from specfit.engine.checkpoint_files import CheckpointError
from specfit.engine.engine import Engine, load_engine
from specfit.engine.families import PROMPT, small_config, small_model
from specfit.engine.greedy_walk import walk_greedily
from specfit.engine.layer_kinds import layer_kinds, length_switch
from specfit.engine.plan import plan_target
from specfit.methods import AR, EAGLE3
from specfit.runs import run_method
from specfit.workloads import Limits, Question, Workload
from tests.models import tiny_drafter, tiny_target
from tests.word_tokenizer import save_tokenizer

torch.set_num_threads(1)
SMALL: dict[str, Any] = {"num_hidden_layers": 2, "num_experts": 4}


def write(folder: Path, *, file: str = "config.json", **changes: object) -> Path:
    """Update a JSON file; "absent" removes the key."""
    path = folder / file
    whole = {**(json.loads(path.read_text()) if path.exists() else {}), **changes}
    path.write_text(json.dumps({key: value for key, value in whole.items() if value != "absent"}))
    return folder


def tiny(folder: Path, **changes: object) -> Path:
    tiny_target(folder, **SMALL)
    save_tokenizer(folder)
    return write(folder, **changes)


@torch.inference_mode()
def agrees_with_the_library(folder: Path) -> None:
    library = AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()
    expected = library(input_ids=torch.tensor([PROMPT]), use_cache=False).logits[0, -1]
    with load_engine(folder, device="cpu", slots_per_layer=2) as engine:
        assert torch.allclose(engine.target.prompt_logits(PROMPT), expected, atol=1e-4, rtol=1e-4)


# --- configs of targets ---


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm_topk_prob": None}, "config.json: .*norm_topk_prob.*; null where a value belongs: norm_topk_prob"),
        ({"decoder_sparse_step": None}, "null where a value belongs: decoder_sparse_step"),
        ({"dtype": "auto"}, "config.json: module 'torch' has no attribute 'auto'"),
        ({"num_experts": "4"}, "config.json: .*num_experts"),
        ({"num_experts_per_tok": 9}, r"gives each token 9 of 4 experts \(num_experts_per_tok\); correct it"),
        ({"num_experts_per_tok": 0}, "gives each token 0 of 4 experts"),
        ({"sliding_window": 0, "use_sliding_window": True}, "sliding_window is 0 .* hides every token; write null"),
        ({"eos_token_id": [[3]]}, r"eos_token_id is \[\[3\]\]"),
    ],
    ids=lambda value: "" if isinstance(value, str) else str(value),
)
def test_a_value_that_no_model_can_have_is_blamed_on_config_json(tmp_path: Path, changes: dict, message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        load_engine(tiny(tmp_path, **changes), device="cpu")
    assert "\n" not in str(caught.value) and "tokenizer" not in str(caught.value)


def test_what_only_a_forward_finds_out_is_a_sentence_before_anything_loads(tmp_path: Path) -> None:
    small_model("deepseek_v3", tmp_path)
    with pytest.raises(CheckpointError, match="deepseek_v3 cannot run with this config.json: .*: n_group, topk_group"):
        plan_target(write(tmp_path, n_group=None, topk_group=None), device="cpu")


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("qwen3_moe", {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}, "rope_parameters": "absent"}),
        ("qwen3_moe", {"rope_scaling": {"type": "yarn", "factor": 4.0}, "rope_parameters": "absent"}),
        ("olmoe", {"sliding_window": 3}),  # carried along: the family has no windows
        ("deepseek_v3", {"mlp_layer_types": "absent", "first_k_dense_replace": 1}),
    ],
)
def test_unusual_configs_give_the_librarys_logits(tmp_path: Path, family: str, changes: dict) -> None:
    small_model(family, tmp_path)
    save_tokenizer(tmp_path)
    agrees_with_the_library(write(tmp_path, **changes))


def test_a_model_that_also_sees_is_named(tmp_path: Path) -> None:
    CONFIG_MAPPING["gemma4"](text_config=small_config("gemma4_text").to_dict()).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="gemma4 keeps its language model in one that also sees or hears"):
        plan_target(tmp_path, device="cpu")


def test_a_window_is_one_only_where_the_family_has_it(tmp_path: Path) -> None:
    for family, window in (("olmoe", None), ("mixtral", 3)):
        model = small_model(family, tmp_path / family)
        model.config.sliding_window = 3
        assert layer_kinds(model.config).window == window


# --- rotary frequencies that change with the length of the text ---

LONG = {"short_factor": [1.0] * 4, "long_factor": [1.5] * 4, "short_mscale": 1.1, "long_mscale": 1.2}
ROPE = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 32, "factor": 4.0, **LONG}


@pytest.fixture(scope="module")
def switching(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("longrope")
    tiny_target(folder / "target", rope_parameters=ROPE)
    save_tokenizer(folder / "target")
    tiny_drafter(folder / "drafter")
    return folder


def test_phi_in_its_own_rope(tmp_path: Path) -> None:
    small_model("phimoe", tmp_path)
    save_tokenizer(tmp_path)
    agrees_with_the_library(write(tmp_path, rope_parameters=ROPE))


def test_a_tree_never_stands_across_the_switch(switching: Path) -> None:
    library = AutoModelForCausalLM.from_pretrained(switching / "target", dtype="float32").eval()

    def plain(prompt: list[int], new: int) -> list[int]:
        ids = torch.tensor([prompt])
        out = library.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False)
        return out[0, len(prompt) :].tolist()

    with load_engine(switching / "target", drafter=switching / "drafter", device="cpu") as engine:
        assert length_switch(engine.target.config) == 32
        for length, new in ((20, 12), (33, 12)):  # before it, and past it
            prompt = [(7 * i + 1) % 64 for i in range(length)]
            assert list(engine.generate(prompt, max_new_tokens=new, method=EAGLE3).tokens) == plain(prompt, new)
        prompt = prompt[:26]
        assert list(engine.generate(prompt, max_new_tokens=20, method=AR).tokens) == plain(prompt, 20)
        with pytest.raises(ValueError, match=r"26 tokens and the limit is 20 new ones; past 32 .* decode with AR"):
            engine.generate(prompt, max_new_tokens=20, method=EAGLE3)
        engine.generate(prompt, max_new_tokens=2)
        longer = [*prompt, *range(20)]  # keys of the turn before were made with other frequencies
        found = engine.generate(longer, max_new_tokens=6, reuse=True)
        assert found.reused == 0 and list(found.tokens) == plain(longer, 6)
        shorter = [*longer[:22], 5, 6, 7]  # nor do those of a long text serve a short one
        found = engine.generate(shorter, max_new_tokens=6, reuse=True)
        assert found.reused == 0 and list(found.tokens) == plain(shorter, 6)


def test_no_recording_and_no_run_stands_across_the_switch(switching: Path, tmp_path: Path) -> None:
    with load_engine(switching / "target", drafter=switching / "drafter", device="cpu") as engine:
        prompt = [(7 * i + 1) % 64 for i in range(24)]
        with pytest.raises(ValueError, match="past 32 this model's rotary frequencies change"):
            walk_greedily(engine, prompt, max_new_tokens=8)  # its last pools go past what is emitted
        walk = walk_greedily(engine, prompt[:20], max_new_tokens=7)
        assert walk.output == engine.generate(prompt[:20], max_new_tokens=7, method=AR).tokens
        questions = tuple(Question(str(n), "toy", (" ".join(f"t{i}" for i in range(n)),)) for n in (5, 26, 6))
        workload = Workload("toy", questions, Limits(max_new_tokens=12))
        run = run_method(engine, workload, tmp_path / "run", method=EAGLE3, raw=True)
        assert [request.question_id for request in run.requests] == ["5", "6"] and not run.complete


def test_dynamic_rope_changes_where_the_context_ends(tmp_path: Path) -> None:
    tiny_target(tmp_path / "target", rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0})
    save_tokenizer(tmp_path / "target")
    tiny_drafter(tmp_path / "drafter")
    with load_engine(tmp_path / "target", drafter=tmp_path / "drafter", device="cpu") as engine:
        end = engine.target.config.max_position_embeddings
        assert length_switch(engine.target.config) == end
        prompt = [i % 64 for i in range(end - 4)]
        assert len(engine.generate(prompt, max_new_tokens=4, method=EAGLE3).tokens) == 4
        with pytest.raises(ValueError, match=f"past {end} this model's"):
            walk_greedily(engine, prompt, max_new_tokens=4)


# --- ends of text ---


@pytest.mark.parametrize(
    ("config", "generation", "eos"),
    [
        (3, None, {3}),
        (3, {"eos_token_id": [4, 5]}, {4, 5}),
        (3, {"eos_token_id": None}, {3}),
        ([3, 99], None, {3}),  # past the vocabulary: it can never be said
        (-1, None, set()),
        ([], None, set()),
    ],
)
def test_end_tokens(tmp_path: Path, config: object, generation: dict | None, eos: set[int]) -> None:
    tiny(tmp_path, eos_token_id=config)
    if generation is not None:
        write(tmp_path, file="generation_config.json", **generation)
    with load_engine(tmp_path, device="cpu", self_test=False) as engine:
        assert engine.eos == eos
        engine.generate([1, 2], max_new_tokens=3, min_new_tokens=2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"eos_token_id": "4"}', "eos_token_id is '4' in .*; expected a token id or a list of them"),
        ("{", "generation_config.json is not valid JSON"),
        ("[]", "generation_config.json holds a JSON list"),
    ],
)
def test_an_end_that_would_never_come_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tiny(tmp_path) / "generation_config.json").write_text(text)
    with pytest.raises(CheckpointError, match=message):
        load_engine(tmp_path, device="cpu")


# --- tokenizers and prompts ---


def test_added_tokens_past_the_vocabulary_are_warned_of(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny(tmp_path))
    tokenizer.add_tokens(["<picture>"])
    tokenizer.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="1 added tokens .* past the model's vocab_size 64, the first is '<picture>'"):
        engine = load_engine(tmp_path, device="cpu", self_test=False)
    with engine, pytest.raises(ValueError, match="token 64 is outside the target's vocabulary of 64"):
        engine.generate("w3 <picture>", max_new_tokens=2)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with load_engine(tiny(tmp_path_factory.mktemp("tiny")), device="cpu", self_test=False) as loaded:
        yield loaded


@pytest.mark.parametrize(
    "prompt", [[3.0, 4.0], [True, 2], ["w3"], [[1], [2]], None, 5, [3, None], [{"role": "user"}, 3]]
)
def test_what_is_no_prompt_is_one_sentence(engine: Engine, prompt: Any) -> None:
    with pytest.raises(ValueError, match="^a prompt is a text, messages|^the prompt has 2 rows"):
        engine.generate(prompt, max_new_tokens=2)
    assert engine.encode(np.array([3, 4])) == (3, 4)
    assert engine.generate([3], max_new_tokens=2, stop=None).stop_reason == "limit"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"link": "3"}, "link is '3'; expected milliseconds for each expert, or a Link"),
        ({"link": True}, "link is True"),
        ({"draft": "deep"}, r"draft is 'deep'; expected a DraftConfig\(top_k"),
        ({"kernel": "specfit_offload"}, "kernel 'specfit_offload' is unknown"),  # it would call itself
    ],
)
def test_arguments_of_another_kind_are_one_sentence(given: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_engine("embedded", **{"device": "cpu", **given})
