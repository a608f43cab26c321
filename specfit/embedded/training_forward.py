"""The target's forward for training: the library's own modules, but padding never reaches a router or an expert.

Also here: the router losses. Besides the usual balance and z-losses there is *hinged window locality*: the mean router
softmax over some twenty consecutive tokens may spread over about `n*` experts and pays only for what it spreads more.
That gives a working set which moves with the text, so an LRU cache of 24, 12 or 6 slots hits about as often as the
paper's; without the hinge the routers collapse onto a few experts.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Qwen3MoeForCausalLM
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock


@dataclass(frozen=True, slots=True)
class RouterLosses:
    """Weights of the router losses."""

    balance: float
    locality: float
    window: int  # tokens
    spread: tuple[float, float]  # n* of problems and of news: experts a window may spread over, free of charge
    z: float = 1e-4


class GroupedLinear(torch.autograd.Function):
    """Rows sorted by expert times each expert's own matrix: (rows, in), (experts, out, in) -> (rows, out)."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weights: Tensor, bounds: list[int]) -> Tensor:
        out = rows.new_empty(len(rows), weights.shape[1])
        for expert, (start, end) in enumerate(pairwise(bounds)):
            if end > start:
                torch.mm(rows[start:end], weights[expert].T, out=out[start:end])
        ctx.save_for_backward(rows, weights)
        ctx.bounds = bounds
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        rows, weights = ctx.saved_tensors
        grad = grad.contiguous()
        to_rows, to_weights = torch.empty_like(rows), torch.zeros_like(weights)
        for expert, (start, end) in enumerate(pairwise(ctx.bounds)):
            if end > start:
                torch.mm(grad[start:end], weights[expert], out=to_rows[start:end])
                torch.mm(grad[start:end].T, rows[start:end], out=to_weights[expert])
        return to_rows, to_weights, None


def hidden_and_routers(model: Qwen3MoeForCausalLM, ids: Tensor, real: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Hidden states before the head and the routers' logits, of real tokens only.

    ids: (documents, length), padded on the right. real: (documents, length), True for a token, False for padding.
    Returns (tokens, hidden) after the final norm, and per layer (tokens, experts), tokens in row-major order.
    """
    core = model.model
    hidden = core.embed_tokens(ids)
    rotary = core.rotary_emb(hidden, torch.arange(ids.shape[1])[None])
    places = real.flatten().nonzero().squeeze(1)
    routers = []
    for layer in core.layers:
        attended, _ = layer.self_attn(layer.input_layernorm(hidden), rotary, None)
        hidden = hidden + attended
        flat = hidden.flatten(0, 1)
        tokens = layer.post_attention_layernorm(flat.index_select(0, places))  # (tokens, hidden)
        logits = F.linear(tokens, layer.mlp.gate.weight)
        routers.append(logits)
        hidden = flat.index_add(0, places, mixture(layer.mlp, tokens, logits)).view_as(hidden)
    return core.norm(hidden.flatten(0, 1).index_select(0, places)), routers


def mixture(block: Qwen3MoeSparseMoeBlock, tokens: Tensor, logits: Tensor) -> Tensor:
    """The sparse block: each token's top-k experts, weighted by their renormalised router softmax."""
    top_k = block.gate.top_k
    weights, chosen = logits.softmax(-1).topk(top_k)  # (tokens, top_k)
    weights = weights / weights.sum(-1, keepdim=True)
    order = chosen.flatten().argsort(stable=True)  # (tokens * top_k,) sorted by expert
    counts = torch.bincount(chosen.flatten(), minlength=block.experts.num_experts)
    bounds = [0, *counts.cumsum(0).tolist()]
    owners = order // top_k
    gate_up = GroupedLinear.apply(tokens.index_select(0, owners), block.experts.gate_up_proj, bounds)
    gate, up = gate_up.chunk(2, dim=-1)
    out = GroupedLinear.apply(F.silu(gate) * up, block.experts.down_proj, bounds)
    return torch.zeros_like(tokens).index_add(0, owners, out * weights.flatten()[order, None])


def router_loss(routers: list[Tensor], real: Tensor, is_news: Tensor, losses: RouterLosses, top_k: int) -> Tensor:
    """The weighted router losses, averaged over layers.

    routers: per layer (tokens, experts). real: (documents, length). is_news: (documents,) picks the spread.
    """
    document, place = real.nonzero(as_tuple=True)  # (tokens,) each
    per_document = real.shape[1] // losses.window + 1
    _, window = torch.unique(document * per_document + place // losses.window, return_inverse=True)
    windows = int(window.max()) + 1
    sizes = torch.bincount(window, minlength=windows)[:, None]
    spread = torch.where(is_news, losses.spread[1], losses.spread[0])[document]
    allowed = torch.zeros(windows).scatter(0, window, spread.log())
    total = torch.zeros(())
    for logits in routers:
        probs = logits.softmax(-1)
        experts = probs.shape[1]
        used = torch.bincount(logits.topk(top_k).indices.flatten(), minlength=experts) / (len(logits) * top_k)
        balance = experts * (used * probs.mean(0)).sum()
        mean = torch.zeros(windows, experts).index_add(0, window, probs) / sizes
        entropy = -(mean * (mean + 1e-9).log()).sum(-1)
        locality = F.relu(entropy - allowed).mean()
        z = logits.logsumexp(-1).square().mean()
        total = total + losses.balance * balance + losses.locality * locality + losses.z * z
    return total / len(routers)
