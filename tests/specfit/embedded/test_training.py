"""The training path at toy size: it runs from end to end, and the same seed gives the same bytes."""

import dataclasses

import pytest
import torch

from specfit.embedded import corpus
from specfit.embedded.documents import DocumentMaker, collate
from specfit.embedded.muon import orthogonal
from specfit.embedded.target_shape import fresh_target, target_config
from specfit.embedded.tokenizer import train_tokenizer
from specfit.embedded.train import Recipe, main
from specfit.embedded.train_drafter import DrafterRecipe, chain_mask
from specfit.embedded.train_target import TargetRecipe
from specfit.embedded.training_forward import GroupedLinear, hidden_and_routers

TINY = {"num_hidden_layers": 6, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 8}


def tiny_recipe() -> Recipe:
    phases = tuple(dataclasses.replace(phase, steps=1, copying_steps=0) for phase in TargetRecipe().phases)
    drafter = DrafterRecipe(steps=2, problems=2, news=2, batch=2, max_new_tokens=6, news_share=0.5)
    return Recipe(100, TINY, TargetRecipe(batch=4, phases=phases), drafter, tested_rows=1)


def test_the_same_seed_makes_the_same_files(tmp_path):
    threads = torch.get_num_threads()
    try:
        for name in ("one", "two"):
            main(tmp_path / name, seed=5, recipe=tiny_recipe(), log=lambda line: None)
    finally:
        torch.set_num_threads(threads)
    for file in ("target/model.safetensors", "drafter/model.safetensors", "target/tokenizer.json"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    assert "committed per cycle" in (tmp_path / "one" / "figures.txt").read_text()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return train_tokenizer(tmp_path_factory.mktemp("tokenizer"), rows=100)


def test_the_training_forward_equals_the_library(tokenizer):
    model = fresh_target(target_config(**TINY), seed=3)
    maker = DocumentMaker(tokenizer)
    rows = (*corpus.problems("train", 2), *corpus.news("train", 1))
    batch = collate([maker.row(row, 3.0) for row in rows], tokenizer.pad_token_id)
    with torch.no_grad():
        hidden, routers = hidden_and_routers(model, batch.ids, batch.real)
        expected = model(batch.ids).logits[batch.real]
    torch.testing.assert_close(model.lm_head(hidden), expected, atol=1e-4, rtol=0)
    assert len(routers) == 6 and routers[0].shape == (int(batch.real.sum()), 8)


def test_planted_heads_copy_before_any_training():
    model = fresh_target(target_config(), seed=0)
    words = torch.randperm(1700, generator=torch.Generator().manual_seed(1))[:60] + 300
    with torch.no_grad():
        said = model(torch.cat([words, words])[None]).logits[0, 60:-1].argmax(-1)
    assert (said == words[1:]).float().mean() > 0.8


def test_copied_values_weigh_more_and_prompts_little(tokenizer):
    row = corpus.news("train", 1)[0]
    document = DocumentMaker(tokenizer).row(row, 3.0)
    start, end = row.copied[0]
    heavy = tokenizer(" " + row.answer[start:end])["input_ids"][0]
    assert document.weights[len(document.ids) - 1 - document.ids[::-1].index(heavy)] == 3.0
    assert document.weights[1] == 0.1 and document.weights[-1] == 1.0


def test_grouped_linear_has_the_gradient_of_a_plain_loop():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(6, 4, dtype=torch.float64, generator=generator, requires_grad=True)
    weights = torch.randn(3, 5, 4, dtype=torch.float64, generator=generator, requires_grad=True)
    assert torch.autograd.gradcheck(lambda r, w: GroupedLinear.apply(r, w, [0, 2, 2, 6]), (rows, weights))


def test_orthogonal_makes_singular_values_alike():
    stack = torch.randn(70, 8, 32, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonal(stack))
    assert values.min() > 0.5 and values.max() < 1.3


def test_a_chain_sees_true_rows_up_to_its_own_and_then_itself():
    mask = chain_mask(3, 2)[0, 0] == 0
    assert mask.int().tolist() == [
        [1, 0, 0, 1, 0, 0, 1, 0, 0],
        [1, 1, 0, 0, 1, 0, 0, 1, 0],
        [1, 1, 1, 0, 0, 1, 0, 0, 1],
    ]
    later = chain_mask(3, 1, first=1)[0, 0] == 0  # rows 1 and 2 go on alone
    assert later.int().tolist() == [[1, 1, 0, 1, 0], [1, 1, 1, 0, 1]]
