"""The induction start: heads that copy from the context are planted before training, then train like everything else.

A summary is made of names and numbers that stand in the report. A model this small does not find the copying circuit
by itself in the steps it has, so the deterministic start draws one: in layer 0 one head looks one token back and
writes what it saw into a subspace of its own; in layer 1 every head asks "where did the token I am at occur before,
one place back?" and copies the token found there.

All of it is linear algebra on one random orthonormal basis of the hidden space:
a common direction u (a constant every token carries), P (what identifies a token) and R (what stood before it).
"""

import torch
from torch import Tensor
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeAttention

IDENTITY = 20  # dimensions of P and R; layer 1 compares them on the ten slowest rope pairs
EMBED_STD = 0.1
LOOK_BACK_GAIN = 0.2  # with COPY_GAIN: a repeated random list is copied with 94 % right before any training
COPY_GAIN = 0.25
FAST_PAIRS = 3  # layer 0 tells "one back" from the other places by its fastest rope pairs


@torch.no_grad()
def plant(model: Qwen3MoeForCausalLM, generator: torch.Generator) -> None:
    """Overwrite the embeddings and the first two attention layers of a freshly initialised target."""
    config = model.config
    basis = torch.linalg.qr(torch.randn(config.hidden_size, config.hidden_size, generator=generator))[0].T
    common, identity = basis[0], basis[1 : 1 + IDENTITY]
    previous = basis[1 + IDENTITY : 1 + 2 * IDENTITY]
    kv_width = config.num_key_value_heads * config.head_dim
    carried = torch.cat([identity, basis[1 + 2 * IDENTITY :]])[:kv_width]  # (kv_width, hidden): all but u and R
    _embeddings(model.model.embed_tokens.weight, common, previous)
    _look_back(model.model.layers[0].self_attn, common, identity, previous, rope_theta(config))
    _match_and_copy(model.model.layers[1].self_attn, identity, previous, carried)
    model.model.layers[0].mlp.experts.down_proj *= 0.3  # less noise between the two planted layers


def rope_theta(config: Qwen3MoeConfig) -> float:
    """The rotary base."""
    return config.rope_parameters["rope_theta"]


def _embeddings(weight: Tensor, common: Tensor, previous: Tensor) -> None:
    """Token vectors without a part in R, and with the common direction, which cancels in the tied softmax."""
    taken = torch.cat([previous, common[None]])
    weight -= weight @ taken.T @ taken
    weight += 0.5 * EMBED_STD * weight.shape[1] ** 0.5 * common


def _look_back(attention: Qwen3MoeAttention, common: Tensor, identity: Tensor, previous: Tensor, theta: float) -> None:
    """Layer 0, query head 0: a constant key, and as query the same constant turned back by one position."""
    dim = attention.head_dim
    attention.o_proj.weight *= 0.2
    attention.k_proj.weight[:dim] = 0
    attention.q_proj.weight[:dim] = 0
    for pair in range(FAST_PAIRS):
        angle = torch.tensor(theta ** (-2 * pair / dim))
        attention.k_proj.weight[pair] = common
        attention.q_proj.weight[pair] = torch.cos(angle) * common
        attention.q_proj.weight[pair + dim // 2] = -torch.sin(angle) * common
    attention.q_norm.weight.fill_(2.0)
    attention.k_norm.weight.fill_(2.0)
    attention.v_proj.weight[:IDENTITY] = identity
    attention.o_proj.weight[:, :dim] = 0
    attention.o_proj.weight[:, :IDENTITY] = LOOK_BACK_GAIN * previous.T


def _match_and_copy(attention: Qwen3MoeAttention, identity: Tensor, previous: Tensor, carried: Tensor) -> None:
    """Layer 1, all heads: keys say what stood before them, queries what they are; the match's token is copied."""
    dim, pairs = attention.head_dim, IDENTITY // 2
    slow = [*range(dim // 2 - pairs, dim // 2), *range(dim - pairs, dim)]
    keys, queries = torch.zeros(dim, len(carried[0])), torch.zeros(dim, len(carried[0]))
    keys[slow], queries[slow] = previous, identity
    kv_heads = attention.k_proj.weight.shape[0] // dim
    heads = attention.q_proj.weight.shape[0] // dim
    attention.k_proj.weight.copy_(keys.repeat(kv_heads, 1))
    attention.q_proj.weight.copy_(queries.repeat(heads, 1))
    attention.q_norm.weight.fill_(1.7)
    attention.k_norm.weight.fill_(1.7)
    attention.v_proj.weight.copy_(carried)
    per_head = carried.reshape(kv_heads, dim, -1).repeat_interleave(heads // kv_heads, dim=0)
    attention.o_proj.weight.copy_(COPY_GAIN * per_head.reshape(heads * dim, -1).T)
