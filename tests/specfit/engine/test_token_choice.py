"""Which token a row of logits gives: the law of the draws is the library's processed distribution, to the letter."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor
from transformers import GenerationConfig, Qwen3MoeConfig, Qwen3MoeForCausalLM

from specfit.engine.token_choice import TokenChoice
from specfit.sampling import Sampling

torch.set_num_threads(1)
LOGITS = torch.tensor([1.0, 0.2, -0.7, 0.9])
DRAWS = 50_000


def draws(logits: Tensor, sampling: Sampling, *, first: int = 0, count: int = DRAWS) -> Tensor:
    """Tokens drawn at `count` positions from the same logits."""
    choice = TokenChoice(sampling, prompt_tokens=0)
    return torch.tensor(choice(logits.expand(count, -1), range(first, first + count)))


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("first", [0, 10**6])
def test_draws_follow_the_targets_distribution_at_its_temperature(temperature: float, first: int) -> None:
    """Case F11, at the chi-square's 0.01 % level."""
    found = draws(LOGITS, Sampling(temperature, seed=5), first=first).bincount(minlength=4)
    expected = (LOGITS.double() / temperature).softmax(-1) * DRAWS
    assert chisquare(found.numpy(), expected.numpy()).pvalue > 1e-4
    wrong = LOGITS.double().softmax(-1) * DRAWS
    assert temperature == 1.0 or chisquare(found.numpy(), wrong.numpy()).pvalue < 1e-9  # the test can tell


SETTINGS = [
    {"temperature": 0.7},
    {"top_k": 3},
    {"top_p": 0.6},
    {"temperature": 1.7, "top_k": 9, "top_p": 0.8},
    {"top_k": 10**6},  # case F17: wider than the vocabulary
    {"top_p": 1.0},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_processed_logits_are_the_librarys(settings: dict) -> None:
    """Bit for bit what its `generate` samples from, EOS bans by row included."""
    torch.manual_seed(0)
    shape = {"num_hidden_layers": 1, "hidden_size": 16, "num_experts": 2, "num_experts_per_tok": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "moe_intermediate_size": 8}
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(vocab_size=32, intermediate_size=16, **shape, **heads)).eval()
    torch.nn.init.normal_(model.lm_head.weight, std=1.0)
    config = GenerationConfig(
        do_sample=True, max_new_tokens=6, min_new_tokens=3, eos_token_id=[4, 9], pad_token_id=0,
        return_dict_in_generate=True, output_scores=True, output_logits=True, **{"top_k": 0, **settings},
    )  # fmt: skip
    prompt = torch.tensor([[1, 2, 3]])
    output = model.generate(prompt, attention_mask=torch.ones_like(prompt), generation_config=config)
    logits, expected = torch.cat(output.logits), torch.cat(output.scores)
    choice = TokenChoice(Sampling(**settings), prompt_tokens=3, min_new_tokens=3, eos=(9, 4))
    assert torch.equal(choice.scores(logits, range(3, 3 + len(logits))), expected)
    assert expected[:3, [4, 9]].eq(-math.inf).all() and len(logits) >= 4


def test_greedy_text_cannot_come_from_banned_tokens_alone() -> None:
    choice = TokenChoice(prompt_tokens=1, min_new_tokens=2, eos=range(4))
    with pytest.raises(ValueError, match="no token to choose: they are NaN, or every token is banned"):
        choice(LOGITS[None], [1])
    assert choice(LOGITS[None], [3]) == (0,)


@pytest.mark.parametrize("number", [0.0, math.nextafter(1.0, 0.0)])
def test_a_token_of_no_probability_is_never_drawn(number: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case F13: the smallest and the greatest number there is, banned tokens first and last."""
    monkeypatch.setattr(Sampling, "number", lambda self, position: number)
    logits = torch.tensor([[-math.inf, 0.0, 5.0, -math.inf], [-math.inf, -200.0, 0.3, -900.0]])
    kept = 1 if number == 0 else 2
    assert TokenChoice(Sampling(), prompt_tokens=0)(logits, (0, 1))[0] == kept
    assert TokenChoice(Sampling(top_p=0.5), prompt_tokens=0)(logits, (0, 1)) == (2, 2)  # top_p bans the others


def test_eos_is_banned_by_each_rows_own_place() -> None:
    """Case F9: a tree whose depths straddle the first position where the text may end."""
    logits = torch.tensor([[0.0, 9.0, 1.0, 5.0]]).expand(4, -1)
    choice = TokenChoice(prompt_tokens=10, min_new_tokens=2, eos={1, 3})
    assert choice(logits, [10, 11, 12, 13]) == (2, 2, 1, 1)
    assert choice(logits, [12, 11, 12, 10]) == (1, 2, 1, 2)
    assert logits[0].tolist() == [0.0, 9.0, 1.0, 5.0]  # the target's own logits stay as they are


@pytest.mark.parametrize("broken", [math.nan, -math.inf])
def test_logits_that_leave_no_token_are_an_error(broken: float) -> None:
    logits = torch.full((2, 4), broken)
    for sampling in (Sampling(), None):
        with pytest.raises(ValueError, match="leave no token to choose"):
            TokenChoice(sampling, prompt_tokens=0)(logits, (0, 1))


def test_a_draw_depends_on_its_row_and_its_place_alone() -> None:
    torch.manual_seed(0)
    rows, choice = torch.randn(6, 50), TokenChoice(Sampling(seed=3), prompt_tokens=0)
    together = choice(rows, (7, 8, 8, 9, 9, 9))
    assert together == tuple(choice(rows[i : i + 1], (at,))[0] for i, at in enumerate((7, 8, 8, 9, 9, 9)))
    assert TokenChoice(Sampling(seed=4), prompt_tokens=0)(rows, (7, 8, 8, 9, 9, 9)) != together
