"""Training the drafter on the target's own greedy answers, with EAGLE-3's training-time test.

Drafting feeds the head its own output, so training does too: five steps, where step s + 1 takes the g of step s in
place of the target's features. Row r stands for the chain that starts at token r; at step s it holds the embedding of
token r + 1 + s and predicts what the target says after it. It sees the true rows up to its own (step 0) and its own
chain (later steps), which is what a path of the draft tree will see.

How well it drafts is a matter of taste: more steps give more acceptance than the paper's drafter has.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3MoeForCausalLM

from specfit.embedded import corpus
from specfit.embedded.drafter_files import drafter_config
from specfit.embedded.evaluate import chat_ids, greedy
from specfit.embedded.muon import Muon
from specfit.embedded.target_shape import AUX_LAYER_IDS
from specfit.embedded.train_target import rate
from specfit.engine.eagle3 import Eagle3Head

GENERATED_TOGETHER = 32  # prompts a batch, padded on the left


@dataclass(frozen=True, slots=True)
class DrafterRecipe:
    """What the drafter learns from and how long."""

    steps: int = 98
    news_share: float = 0.31  # of the batches
    problems: int = 260  # prompts the target answers greedily
    news: int = 180
    batch: int = 8
    depth: int = 5  # steps of the training-time test
    gamma: float = 0.9  # weight of a step against the one before
    muon_lr: float = 0.02
    adam_lr: float = 2e-3
    max_new_tokens: int = 200


@dataclass(frozen=True, slots=True)
class Answer:
    """A prompt with the target's own answer, and what the target made of it."""

    ids: Tensor  # (tokens,)
    prompt_tokens: int
    features: Tensor  # (tokens, n_aux * hidden), the residual streams the drafter reads
    final: Tensor  # (tokens, hidden), what the target's output matrix takes


@torch.no_grad()
def own_answers(
    target: Qwen3MoeForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    kind: str,
    count: int,
    *,
    first: int,
    max_new_tokens: int,
) -> list[Answer]:
    """The target's greedy answers to training prompts `first` .. of one kind."""
    prompts = [chat_ids(tokenizer, row.prompt) for row in getattr(corpus, kind)("train", count, first=first)]
    answers = []
    for start in range(0, count, GENERATED_TOGETHER):
        some = prompts[start : start + GENERATED_TOGETHER]
        for prompt, ids in zip(some, greedy(target, some, max_new_tokens=max_new_tokens)):
            out = target.model(torch.tensor([ids]), output_hidden_states=True)
            features = torch.cat([out.hidden_states[i][0] for i in AUX_LAYER_IDS], dim=-1)
            answers.append(Answer(torch.tensor(ids), len(prompt), features, out.last_hidden_state[0]))
    return answers


def fresh_drafter(target: Qwen3MoeForCausalLM, seed: int) -> Eagle3Head:
    """A float32 head that starts from the target's embeddings (frozen), final norm and output matrix."""
    head = Eagle3Head(drafter_config(target.config, AUX_LAYER_IDS))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in head.parameters():
            if weight.ndim > 1:
                weight.normal_(0.0, 0.5 * weight.shape[-1] ** -0.5, generator=generator)
        head.embed_tokens.weight.copy_(target.model.embed_tokens.weight)
        head.lm_head.weight.copy_(target.lm_head.weight)
        head.norm.weight.copy_(target.model.norm.weight)
    head.embed_tokens.weight.requires_grad_(False)
    return head


def train_drafter(
    head: Eagle3Head,
    target: Qwen3MoeForCausalLM,
    problems: list[Answer],
    news: list[Answer],
    recipe: DrafterRecipe,
    *,
    seed: int,
    log: Callable[[str], None] = print,
) -> None:
    """Train `head` in place."""
    rng = random.Random(f"drafter/{seed}")
    matrices = [p for name, p in head.named_parameters() if p.ndim > 1 and name.startswith(("fc", "layers"))]
    others = [head.lm_head.weight, *(p for p in head.parameters() if p.ndim == 1)]
    muon = Muon(matrices, lr=recipe.muon_lr)
    adam = torch.optim.AdamW(others, lr=recipe.adam_lr, betas=(0.9, 0.95), weight_decay=0.0)
    for step in range(recipe.steps):
        is_news = int((step + 1) * recipe.news_share) > int(step * recipe.news_share)  # evenly spread
        answers = rng.sample(news if is_news else problems, recipe.batch)  # of one kind: less padding
        loss = training_time_test(head, target, answers, recipe)
        loss.backward()
        torch.nn.utils.clip_grad_norm_([*matrices, *others], 1.0)
        factor = rate(step, schedule=recipe.steps, warm_up=min(20, recipe.steps), falls_from=0.3)
        muon.step(factor)
        for group in adam.param_groups:
            group["lr"] = recipe.adam_lr * factor
        adam.step()
        adam.zero_grad()
        if step % 20 == 0 or step == recipe.steps - 1:
            log(f"drafter step {step}: loss {loss.item():.3f}")


def training_time_test(
    head: Eagle3Head, target: Qwen3MoeForCausalLM, answers: list[Answer], recipe: DrafterRecipe
) -> Tensor:
    """Soft cross-entropy to the target over `depth` chained steps, averaged over answer positions."""
    ids, features = _padded([a.ids for a in answers]), _padded([a.features for a in answers])
    counted = _padded([torch.arange(len(a.ids)).ge(a.prompt_tokens) for a in answers])  # what must be foreseen after
    counted &= _padded([torch.arange(len(a.ids)).lt(len(a.ids) - 1) for a in answers])
    wanted = torch.zeros(*ids.shape, target.config.vocab_size)
    with torch.no_grad():
        wanted[counted] = target.lm_head(_padded([a.final for a in answers])[counted]).softmax(-1)
    rows = ids.shape[1] - 1
    used = max(0, min(a.prompt_tokens for a in answers) - recipe.depth)  # chains before it end inside the prompt
    hidden, cache, first = head.fuse(features[:, :rows]), GrowingCache(), 0
    total, weight = torch.zeros(()), torch.zeros(())
    for step in range(recipe.depth):
        ahead = slice(first + 1 + step, rows + 1 + step)
        tokens, picked = _shifted(ids, ahead), _shifted(counted, ahead)
        positions = (torch.arange(first, rows) + step).expand(len(ids), -1)
        g = head(head.embed(tokens), hidden, positions, chain_mask(rows, step, first=first), cache)
        said = head.logits(g[picked]).log_softmax(-1)
        scale = recipe.gamma**step
        total = total - scale * (_shifted(wanted, ahead)[picked] * said).sum()
        weight = weight + scale * picked.sum()
        hidden, first = head.feed_back(g)[:, used - first :], used
    return total / weight


def _padded(parts: list[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)


def _shifted(values: Tensor, ahead: slice) -> Tensor:
    """`values[:, ahead]`, filled with zeros where it runs past the end; (documents, tokens) or with one more axis."""
    missing = max(0, ahead.stop - values.shape[1])
    return torch.cat([values[:, ahead], values.new_zeros(len(values), missing, *values.shape[2:])], dim=1)


def chain_mask(rows: int, step: int, *, first: int = 0) -> Tensor:
    """Causal over the true rows, then each later step's own row alone.

    Step 0 takes all rows; later steps take rows `first` .. `rows - 1`, so the result is
    (1, 1, rows, rows) at step 0 and (1, 1, rows - first, rows + step * (rows - first)) after it.
    """
    causal = torch.full((rows, rows), float("-inf")).triu(1)
    own = torch.full((rows - first, rows - first), float("-inf")).fill_diagonal_(0.0)
    return torch.cat([causal[first:], *[own] * step], dim=1)[None, None]


class GrowingCache:
    """Keys and values of all steps so far, side by side."""

    def __init__(self) -> None:
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def update(self, layer_index: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self.keys.append(keys)
        self.values.append(values)
        return torch.cat(self.keys, dim=2), torch.cat(self.values, dim=2)
