"""The EAGLE-3 head: one small decoder layer that drafts from the target's own hidden states.

A first pass over newly committed tokens takes `fuse(features)`: the target's residual stream at a few layers,
concatenated and projected to the drafter's width H. Every later draft step takes `feed_back(g)` of the parent
node. Both are paired with the embedding of the *next* token: row i holds the feature of token i and the embedding
of token i + 1, and predicts token i + 2. Which of the two is meant is said by the caller and never read off a shape.

The state dict uses the names of the speculators library. This is a plain `nn.Module`: nothing here ties,
converts or resizes weights behind the caller's back. Letters: H drafter width, H_t target width, V_t / V_d
target / draft vocabulary, n_aux the number of tapped target layers.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.activations import ACT2FN

from specfit.engine.packed import Packed, project
from specfit.engine.rope import ROPE_TYPES, Rope, RopeTable, rope_frequencies, rotate


@dataclass(frozen=True, slots=True)
class Eagle3Config:
    """What fixes the head's shapes and formulas. `drafter_config.py` reads it from every published layout."""

    hidden_size: int  # H
    intermediate_size: int  # width inside the MLP
    num_layers: int  # layer 0 takes 2H (embedding, feature); any further layer takes H
    num_heads: int  # query heads
    num_kv_heads: int  # divides num_heads
    head_dim: int  # even; need not be H / num_heads
    rms_norm_eps: float
    hidden_act: str  # a name of transformers' ACT2FN
    vocab_size: int  # V_t, rows of the embedding
    draft_vocab_size: int  # V_d, rows of lm_head
    rope_parameters: dict  # transformers-5 form: rope_type, rope_theta, and what that type needs
    max_position_embeddings: int  # trained length; longer text works and drafts worse
    aux_layer_ids: tuple[int, ...]  # id i taps the residual stream entering target layer i
    target_hidden_size: int  # H_t
    qk_norm: bool = False  # RMSNorm[head_dim] on queries and keys before RoPE (Qwen3)
    norm_before_residual: bool = False  # layer 0's residual is hidden_norm(h) rather than h
    norm_before_fc: bool = False  # one norm over all n_aux * H_t features
    fc_norm: bool = False  # one norm for each tapped layer; excludes norm_before_fc
    norm_output: bool = False  # feed back norm(g) rather than g (EAGLE-3.1)
    attention_bias: bool = False  # on q, k, v and o
    mlp_bias: bool = False  # on gate, up and down

    def __post_init__(self) -> None:
        if self.norm_before_fc and self.fc_norm:
            raise ValueError("norm_before_fc and fc_norm exclude each other; both are true; keep one")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"{self.num_heads} heads cannot share {self.num_kv_heads} key/value heads evenly")
        if self.head_dim % 2:
            raise ValueError(f"RoPE turns pairs, so head_dim must be even; got {self.head_dim}")
        if not self.aux_layer_ids:
            raise ValueError("aux_layer_ids is empty; EAGLE-3 needs at least one tapped target layer")
        if self.rope_parameters.get("rope_type") not in ROPE_TYPES:
            got = self.rope_parameters.get("rope_type")
            raise ValueError(f"rope_type must be one of {', '.join(ROPE_TYPES)}; got {got!r}")

    @property
    def feature_size(self) -> int:
        """Width of the concatenated target features, n_aux * H_t."""
        return len(self.aux_layer_ids) * self.target_hidden_size


class KeyValueCache(Protocol):
    def update(self, layer_index: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append (batch, kv_heads, rows, head_dim), RoPE already in the keys; return all keys and values so far."""


class Eagle3Head(nn.Module):
    """Embedding, fc, decoder layer(s), final norm and draft lm_head. See the module docstring for how rows pair."""

    def __init__(self, config: Eagle3Config):
        super().__init__()
        self.config = config
        width, eps = config.hidden_size, config.rms_norm_eps
        self.embed_tokens: nn.Embedding | None = nn.Embedding(config.vocab_size, width)
        if config.norm_before_fc:
            self.input_norm = RmsNorm(config.feature_size, eps)
        if config.fc_norm:
            norms = [RmsNorm(config.target_hidden_size, eps) for _ in config.aux_layer_ids]
            self.fc_norm = nn.ModuleList(norms)
        self.fc = nn.Linear(config.feature_size, width, bias=False)
        self.layers = nn.ModuleList(Eagle3Layer(config, index) for index in range(config.num_layers))
        self.norm = RmsNorm(width, eps)
        self.lm_head = nn.Linear(width, config.draft_vocab_size, bias=False)
        self.rope = RopeTable(
            *rope_frequencies(
                config.rope_parameters,
                head_dim=config.head_dim,
                max_position_embeddings=config.max_position_embeddings,
            )
        )

    def embed(self, token_ids: Tensor) -> Tensor:
        """Embed target token ids, (batch, rows) -> (batch, rows, H)."""
        if self.embed_tokens is None:
            raise ValueError("this checkpoint has no embedding of its own; call share_embedding(target's) first")
        return F.embedding(token_ids, self.embed_tokens.weight)

    def fuse(self, features: Tensor) -> Tensor:
        """Project the target's tapped states, ascending in layer, (..., n_aux * H_t) -> (..., H)."""
        config = self.config
        if features.shape[-1] != config.feature_size:
            raise ValueError(
                f"features must be {len(config.aux_layer_ids)} layers x {config.target_hidden_size} = "
                f"{config.feature_size} wide; got {tuple(features.shape)}"
            )
        if config.norm_before_fc:
            features = self.input_norm(features)
        elif config.fc_norm:
            parts = features.split(config.target_hidden_size, dim=-1)
            features = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        return self.fc(features)

    def forward(
        self, embeddings: Tensor, hidden: Tensor, positions: Tensor, mask: Tensor | None, cache: KeyValueCache | None
    ) -> Tensor:
        """One pass of the decoder layer(s); returns g, (batch, rows, H), before the final norm.

        embeddings: (batch, rows, H) from `embed`. hidden: (batch, rows, H) from `fuse` or `feed_back`.
        positions: (batch, rows) integers, the feature token's position.
        mask: (batch or 1, 1, rows, keys), additive in the model's dtype, over all keys `cache` then holds; None
            lets every row see every key, which is right for a single row.
        cache: appended to once per layer; None attends to this call's rows alone (training).
        """
        rope = self.rope.rows(positions, hidden.dtype)
        g = hidden
        for layer in self.layers:
            g = layer(embeddings, g, rope, mask, cache)
        return g

    def logits(self, g: Tensor) -> Tensor:
        """Scores over the draft vocabulary, (..., H) -> (..., V_d)."""
        return self.lm_head(self.norm(g))

    def log_probs(self, g: Tensor) -> Tensor:
        """Log-probabilities over the draft vocabulary in float32, (..., H) -> (..., V_d).

        In bfloat16 a likely token's log-probability rounds to 0.0 exactly, and a child ties with its parent.
        """
        return F.log_softmax(self.logits(g), dim=-1, dtype=torch.float32)

    def feed_back(self, g: Tensor) -> Tensor:
        """What the next draft step takes as `hidden`: g itself, or norm(g) where the head was trained so."""
        return self.norm(g) if self.config.norm_output else g

    def share_embedding(self, weight: Tensor) -> None:
        """Use the target's embedding table, (V_t, H), without copying it."""
        expected = (self.config.vocab_size, self.config.hidden_size)
        if tuple(weight.shape) != expected:
            raise ValueError(f"the head needs an embedding of shape {expected}; got {tuple(weight.shape)}")
        self.embed_tokens = nn.Embedding(*expected, _weight=weight, _freeze=True)

    def pack(self) -> "Eagle3Head":
        """Lay q, k, v (and gate, up) side by side in memory, so that inference makes one product of them.

        Names, values and memory use stay as they are; the parameters become views of the joint tensor.
        Call it last, after loading and `.to(...)`: moving a parameter afterwards only undoes the joining.
        """
        for layer in self.layers:
            assert isinstance(layer, Eagle3Layer)
            layer.pack()
        return self


class Eagle3Layer(nn.Module):
    """A Llama-style decoder layer; layer 0 reads (embedding, hidden) side by side, 2H wide."""

    def __init__(self, config: Eagle3Config, index: int):
        super().__init__()
        self.index = index
        self.norm_before_residual = config.norm_before_residual
        width, eps = config.hidden_size, config.rms_norm_eps
        self.self_attn = Eagle3Attention(config, index, input_size=2 * width if index == 0 else width)
        self.mlp = Eagle3Mlp(config)
        self.input_layernorm = RmsNorm(width, eps)
        if index == 0:
            self.hidden_norm = RmsNorm(width, eps)
        self.post_attention_layernorm = RmsNorm(width, eps)

    def forward(
        self, embeddings: Tensor, hidden: Tensor, rope: Rope, mask: Tensor | None, cache: KeyValueCache | None
    ) -> Tensor:
        residual = hidden
        if self.index == 0:
            hidden = self.hidden_norm(hidden)
            if self.norm_before_residual:
                residual = hidden
            x = torch.cat((self.input_layernorm(embeddings), hidden), dim=-1)  # (batch, rows, 2H), embedding first
        else:
            x = self.input_layernorm(hidden)  # (batch, rows, H)
        y = residual + self.self_attn(x, rope, mask, cache)
        return y + self.mlp(self.post_attention_layernorm(y))

    def pack(self) -> None:
        self.self_attn.qkv = Packed.of(self.self_attn.q_proj, self.self_attn.k_proj, self.self_attn.v_proj)
        self.mlp.gate_up = Packed.of(self.mlp.gate_proj, self.mlp.up_proj)


class Eagle3Attention(nn.Module):
    def __init__(self, config: Eagle3Config, index: int, *, input_size: int):
        super().__init__()
        self.index = index
        self.heads, self.kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        bias = config.attention_bias
        self.q_proj = nn.Linear(input_size, self.heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(input_size, self.kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(input_size, self.kv_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(self.heads * self.head_dim, config.hidden_size, bias=bias)
        self.q_norm = RmsNorm(self.head_dim, config.rms_norm_eps) if config.qk_norm else None
        self.k_norm = RmsNorm(self.head_dim, config.rms_norm_eps) if config.qk_norm else None
        self.qkv: Packed | None = None

    def forward(self, x: Tensor, rope: Rope, mask: Tensor | None, cache: KeyValueCache | None) -> Tensor:
        batch, rows, _ = x.shape
        joint = project(self.qkv, x, self.q_proj, self.k_proj, self.v_proj)
        joint = joint.view(batch, rows, -1, self.head_dim).transpose(1, 2)  # (batch, all heads, rows, head_dim)
        turning, values = joint.split((self.heads + self.kv_heads, self.kv_heads), dim=1)
        if self.q_norm is not None and self.k_norm is not None:
            queries, keys = turning.split((self.heads, self.kv_heads), dim=1)
            turning = torch.cat((self.q_norm(queries), self.k_norm(keys)), dim=1)
        queries, keys = rotate(turning, rope).split((self.heads, self.kv_heads), dim=1)
        if cache is not None:
            keys, values = cache.update(self.index, keys, values)
        shared = self.heads // self.kv_heads
        if shared > 1 and mask is not None and x.is_cuda:  # else torch leaves its fast kernels
            keys, values = keys.repeat_interleave(shared, dim=1), values.repeat_interleave(shared, dim=1)
            shared = 1
        mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, enable_gqa=shared > 1)
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, rows, -1))


class Eagle3Mlp(nn.Module):
    def __init__(self, config: Eagle3Config):
        super().__init__()
        width, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_proj = nn.Linear(width, inner, bias=bias)
        self.up_proj = nn.Linear(width, inner, bias=bias)
        self.down_proj = nn.Linear(inner, width, bias=bias)
        self.act = F.silu if config.hidden_act == "silu" else ACT2FN[config.hidden_act]
        self.gate_up: Packed | None = None

    def forward(self, x: Tensor) -> Tensor:
        gate, up = project(self.gate_up, x, self.gate_proj, self.up_proj).chunk(2, dim=-1)
        return self.down_proj(self.act(gate) * up)


class RmsNorm(nn.Module):
    """x * weight / sqrt(mean(x^2) + eps) over the last dimension."""

    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.size, self.eps = size, eps

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda or x.dtype != torch.float32:
            return F.rms_norm(x, (self.size,), self.weight, self.eps)
        # On a CPU torch composes rms_norm of ten small operations; a dot product takes a third of the time.
        mean_square = torch.linalg.vecdot(x, x).unsqueeze(-1) / self.size
        return x * torch.rsqrt(mean_square + self.eps) * self.weight
