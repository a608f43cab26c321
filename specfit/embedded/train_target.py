"""Training the target in three phases: copying and the language first, then ever more arithmetic on a falling rate.

Cross-entropy counts answers fully, prompts a little, copied values and numbers more. Matrices go with Muon, embeddings,
norms and routers with AdamW; step counts are fixed, one thread, one seed: same seed, same weights.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3MoeForCausalLM

from specfit.embedded import corpus
from specfit.embedded.documents import Batch, Document, DocumentMaker, collate, rows
from specfit.embedded.muon import Muon
from specfit.embedded.training_forward import RouterLosses, hidden_and_routers, router_loss


@dataclass(frozen=True, slots=True)
class Phase:
    """One stretch of training; momentum starts anew with each."""

    steps: int  # steps taken
    schedule: int  # steps the learning rate is planned for; may be more than are taken
    warm_up: int
    falls_from: float  # share of the schedule after which the rate falls linearly to 3 %
    muon_lr: float
    adam_lr: float
    copied_weight: float
    drills: float  # share of documents that are arithmetic drills
    drill_sums: int  # sums in one of them
    drill_weight: float  # of a sum's result
    copying_steps: int  # steps at the start with half copying exercises
    copying: float  # share of them afterwards
    router: RouterLosses
    from_bfloat16: bool = False  # start from rounded weights: such a phase can be made again from a shipped file


@dataclass(frozen=True, slots=True)
class TargetRecipe:
    """Both phases and the batch size."""

    batch: int = 16
    phases: tuple[Phase, ...] = field(
        default=(
            Phase(1000, 1100, 40, 0.30, 0.02, 4e-3, 3.0, 0.0, 0, 0, 80, 0.10, RouterLosses(0.10, 0.2, 24, (16, 20))),
            Phase(360, 360, 10, 0.10, 0.014, 2.8e-3, 2.0, 0.375, 12, 1, 0, 0.05, RouterLosses(0.15, 0.2, 24, (17, 21))),
            Phase(
                240, 240, 10, 0.10, 0.014, 2.8e-3, 2.0, 0.6, 28, 2, 0, 0, RouterLosses(0.15, 0.2, 24, (17, 21)), True
            ),
        )
    )


def train_target(
    model: Qwen3MoeForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    recipe: TargetRecipe,
    *,
    seed: int,
    log: Callable[[str], None] = print,
    at_step: Callable[[int, int], None] = lambda phase, step: None,
) -> None:
    """Train `model` in place; `at_step(phase, step)` lets a caller look at it on the way."""
    maker, source = DocumentMaker(tokenizer), rows("train", seed)
    for number, phase in enumerate(recipe.phases):
        if phase.from_bfloat16:
            _round_to_bfloat16(model)
        rng = random.Random(f"phase/{seed}/{number}")
        muon, adam = _optimizers(model, phase)
        for step in range(phase.steps):
            documents = [_document(maker, source, phase, step, rng) for _ in range(recipe.batch)]
            batch = collate(documents, tokenizer.pad_token_id)
            text, router = losses(model, batch, phase.router)
            (text + router).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            factor = rate(step, schedule=phase.schedule, warm_up=phase.warm_up, falls_from=phase.falls_from)
            muon.step(factor)
            for group in adam.param_groups:
                group["lr"] = phase.adam_lr * factor
            adam.step()
            adam.zero_grad()
            if step % 20 == 0 or step == phase.steps - 1:
                log(f"target phase {number + 1} step {step}: text {text.item():.3f} router {router.item():.3f}")
            at_step(number, step)


def losses(model: Qwen3MoeForCausalLM, batch: Batch, router: RouterLosses) -> tuple[Tensor, Tensor]:
    """The weighted cross-entropy per unit of weight, and the router losses."""
    hidden, routers = hidden_and_routers(model, batch.ids, batch.real)
    nexts = torch.zeros_like(batch.weights)
    nexts[:, :-1] = batch.weights[:, 1:]
    targets, weights = batch.ids.roll(-1, dims=1)[batch.real], nexts[batch.real]
    counted = weights > 0
    logits = F.linear(hidden[counted], model.lm_head.weight)
    text = (F.cross_entropy(logits, targets[counted], reduction="none") * weights[counted]).sum() / weights.sum()
    top_k = model.config.num_experts_per_tok
    return text, router_loss(routers, batch.real, batch.is_news, router, top_k)


def rate(step: int, *, schedule: int, warm_up: int, falls_from: float) -> float:
    """Share of the learning rate at a step: up, flat, then from a share of the schedule on down to 3 %."""
    if step < warm_up:
        return (step + 1) / warm_up
    start = falls_from * schedule
    fallen = max(0.0, (step - start) / (schedule - start))
    return 1 - 0.97 * min(1.0, fallen)


@torch.no_grad()
def _round_to_bfloat16(model: Qwen3MoeForCausalLM) -> None:
    for parameter in model.parameters():
        parameter.copy_(parameter.bfloat16())


def _document(
    maker: DocumentMaker, source: Iterator[corpus.Row], phase: Phase, step: int, rng: random.Random
) -> Document:
    chance = rng.random()
    if chance < (0.5 if step < phase.copying_steps else phase.copying):
        return maker.copy(rng, longest=min(24, 4 + step // 4))
    if chance > 1 - phase.drills:
        return maker.drill(rng, sums=phase.drill_sums, weight=phase.drill_weight)
    return maker.row(next(islice(source, 1)), phase.copied_weight)


def _optimizers(model: Qwen3MoeForCausalLM, phase: Phase) -> tuple[Muon, torch.optim.AdamW]:
    matrices, others = [], []
    for name, parameter in model.named_parameters():
        is_matrix = parameter.ndim > 1 and "embed_tokens" not in name and "lm_head" not in name and ".gate." not in name
        (matrices if is_matrix else others).append(parameter)
    adam = torch.optim.AdamW(others, lr=phase.adam_lr, betas=(0.9, 0.95), weight_decay=0.0)
    return Muon(matrices, lr=phase.muon_lr), adam
