"""The committed pair: its files load with the plain libraries, stay small and give sensible text."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from specfit.embedded import corpus, drafter_folder, target_folder
from specfit.embedded.drafter_files import load_drafter
from specfit.embedded.evaluate import chat_ids, greedy, repeated_facts

MEGABYTE = 1_000_000


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(target_folder())


@pytest.fixture(scope="module")
def target():
    return AutoModelForCausalLM.from_pretrained(target_folder(), dtype=torch.float32).eval()


def test_the_pair_takes_less_than_15_megabytes():
    files = [file for folder in (target_folder(), drafter_folder()) for file in folder.rglob("*") if file.is_file()]
    assert 5 * MEGABYTE < sum(file.stat().st_size for file in files) < 15 * MEGABYTE


def test_the_tokenizer_gives_every_text_back_and_holds_numbers_whole(tokenizer):
    for row in (*corpus.problems("test", 5), *corpus.news("test", 5)):
        assert tokenizer.decode(tokenizer(row.answer)["input_ids"]) == row.answer
    strange = "Größe 東京 \t\n 1234"
    assert tokenizer.decode(tokenizer(strange)["input_ids"]) == strange
    assert all(len(tokenizer(f" {number}")["input_ids"]) == 1 for number in range(100))


def test_the_chat_template_is_the_format_of_training(tokenizer):
    chat = [{"role": "user", "content": "Hello there."}]
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    assert text == "<|user|>Hello there.<|assistant|>"
    user, assistant = tokenizer.convert_tokens_to_ids(["<|user|>", "<|assistant|>"])
    assert chat_ids(tokenizer, "Hello there.") == [user, *tokenizer("Hello there.")["input_ids"], assistant]
    chat.append({"role": "assistant", "content": "Hi."})
    assert tokenizer.apply_chat_template(chat, tokenize=False) == text + "Hi." + tokenizer.eos_token


def test_the_target_is_a_plain_mixture_of_experts_in_both_spellings(target):
    raw = json.loads((target_folder() / "config.json").read_text())
    assert raw["architectures"] == ["Qwen3MoeForCausalLM"]
    assert raw["num_experts"] == target.config.num_experts == 64
    assert raw["rope_theta"] == target.config.rope_parameters["rope_theta"] == 1e6
    assert target.generation_config.do_sample is False


def test_the_drafter_fits_its_target(target):
    head = load_drafter(drafter_folder())
    raw = json.loads((drafter_folder() / "config.json").read_text())
    assert raw["speculators_model_type"] == "eagle3"
    assert raw["transformer_layer_config"]["vocab_size"] == target.config.vocab_size
    assert max(raw["eagle_aux_hidden_state_layer_ids"]) < target.config.num_hidden_layers  # id L would be normed
    assert torch.equal(head.embed_tokens.weight, target.model.embed_tokens.weight)
    assert all(weight.isfinite().all() for weight in head.parameters())


def test_answers_are_of_their_prompts(target, tokenizer):
    problem, report = corpus.problems("test", 1)[0], corpus.news("test", 1)[0]
    prompts = [chat_ids(tokenizer, row.prompt) for row in (problem, report)]
    texts = greedy(target, prompts, max_new_tokens=200)
    worked, summary = (
        tokenizer.decode(text[len(prompt) :], skip_special_tokens=True) for text, prompt in zip(texts, prompts)
    )
    assert problem.prompt.split()[0] in worked and "\n#### " in worked
    assert repeated_facts(summary) == 0
    town = report.answer[slice(*report.copied[0])]
    assert town in report.prompt and town in summary
    assert all(80 <= len(text) - len(prompt) <= 150 for text, prompt in zip(texts, prompts))
