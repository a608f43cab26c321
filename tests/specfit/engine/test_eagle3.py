"""The EAGLE-3 head against a reference written from the formulas with plain loops, and its own promises."""

import copy
import math
from dataclasses import replace
from itertools import chain, product

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from specfit.engine.eagle3 import Eagle3Head
from tests.checkpoint_toys import TOY, ListCache, additive, toy_head

torch.set_num_threads(1)

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 32.0, "truncate": False}
YARN["original_max_position_embeddings"] = 16
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}

FLAGS = [
    dict(zip(("qk_norm", "norm_before_residual", "norm_output", "norm_before_fc", "fc_norm"), (*flags, *fusion)))
    for flags in product((False, True), repeat=3)
    for fusion in ((False, False), (True, False), (False, True))
]
SHAPES = [
    {"num_layers": 2, "norm_before_residual": True},
    {"num_layers": 3, "qk_norm": True},
    {"attention_bias": True, "mlp_bias": True},
    {"num_heads": 6, "num_kv_heads": 3},
    {"num_heads": 4, "num_kv_heads": 4},
    {"head_dim": 2},
    {"aux_layer_ids": (1, 2, 3, 5), "fc_norm": True},
    {"aux_layer_ids": (3,)},
    {"target_hidden_size": 10, "norm_before_fc": True},
    {"hidden_act": "gelu"},
    {"rms_norm_eps": 0.5},
    {"rope_parameters": LLAMA3},
    {"rope_parameters": YARN},
    {"rope_parameters": LINEAR},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}},
]


# --- the reference: one row at a time, in float64, with nothing shared but the names of the weights ---


def rms(x, weight, eps):
    mean = sum(value * value for value in x) / len(x)
    return np.array([value / math.sqrt(mean + eps) * w for value, w in zip(x, weight, strict=True)])


def act(name, x):
    if name == "silu":
        return np.array([value / (1 + math.exp(-value)) for value in x])
    return np.array([0.5 * value * (1 + math.erf(value / math.sqrt(2))) for value in x])


def turned(x, position, frequencies, scale):
    half = len(x) // 2
    out = np.zeros(len(x))
    for j in range(half):
        cos, sin = math.cos(position * frequencies[j]) * scale, math.sin(position * frequencies[j]) * scale
        out[j] = x[j] * cos - x[j + half] * sin
        out[j + half] = x[j + half] * cos + x[j] * sin
    return out


class Reference:
    """All rows of a drafting session at once; row i sees the rows in visible[i]."""

    def __init__(self, head):
        self.c = head.config
        self.w = {name: value.double().numpy() for name, value in head.state_dict().items()}
        as_library = LlamaConfig(
            hidden_size=self.c.num_heads * self.c.head_dim,
            num_attention_heads=self.c.num_heads,
            head_dim=self.c.head_dim,
            max_position_embeddings=self.c.max_position_embeddings,
            rope_parameters=dict(self.c.rope_parameters),
        )
        library = LlamaRotaryEmbedding(as_library)
        self.frequencies, self.scale = library.inv_freq.tolist(), library.attention_scaling

    def linear(self, name, x):
        y = self.w[name + ".weight"] @ x
        return y + self.w[name + ".bias"] if name + ".bias" in self.w else y

    def norm(self, name, x):
        return rms(x, self.w[name + ".weight"], self.c.rms_norm_eps)

    def fuse(self, features):
        if self.c.norm_before_fc:
            features = self.norm("input_norm", features)
        if self.c.fc_norm:
            width = self.c.target_hidden_size
            parts = [features[i * width : (i + 1) * width] for i in range(len(self.c.aux_layer_ids))]
            features = np.concatenate([self.norm(f"fc_norm.{i}", part) for i, part in enumerate(parts)])
        return self.linear("fc", features)

    def layer(self, index, embeddings, hidden, positions, visible):
        c, at = self.c, f"layers.{index}."
        rows = range(len(hidden))
        residual, queries, keys, values = [], [], [], []
        for i in rows:
            if index == 0:
                normed = self.norm(at + "hidden_norm", hidden[i])
                residual.append(normed if c.norm_before_residual else hidden[i])
                x = np.concatenate([self.norm(at + "input_layernorm", embeddings[i]), normed])
            else:
                residual.append(hidden[i])
                x = self.norm(at + "input_layernorm", hidden[i])
            made = {}
            for kind, heads in (("q", c.num_heads), ("k", c.num_kv_heads), ("v", c.num_kv_heads)):
                made[kind] = self.linear(at + f"self_attn.{kind}_proj", x).reshape(heads, c.head_dim)
                if kind != "v":
                    if c.qk_norm:
                        made[kind] = [self.norm(at + f"self_attn.{kind}_norm", one) for one in made[kind]]
                    made[kind] = [turned(one, positions[i], self.frequencies, self.scale) for one in made[kind]]
            queries.append(made["q"])
            keys.append(made["k"])
            values.append(made["v"])
        out = []
        for i in rows:
            mixed = []
            for head in range(c.num_heads):
                shared = head // (c.num_heads // c.num_kv_heads)
                scores = [queries[i][head] @ keys[j][shared] / math.sqrt(c.head_dim) for j in visible[i]]
                weights = [math.exp(score - max(scores)) for score in scores]
                total = sum(weights)
                pairs = zip(weights, visible[i], strict=True)
                mixed.append(sum(weight / total * values[j][shared] for weight, j in pairs))
            y = residual[i] + self.linear(at + "self_attn.o_proj", np.concatenate(mixed))
            z = self.norm(at + "post_attention_layernorm", y)
            gated = act(c.hidden_act, self.linear(at + "mlp.gate_proj", z)) * self.linear(at + "mlp.up_proj", z)
            out.append(y + self.linear(at + "mlp.down_proj", gated))
        return out

    def g(self, tokens, hidden, positions, visible):
        embeddings = [self.w["embed_tokens.weight"][token] for token in tokens]
        for index in range(self.c.num_layers):
            hidden = self.layer(index, embeddings, hidden, positions, visible)
        return hidden


# --- one drafting session, through the head with a cache and through the reference without ---

TOKENS = [[7, 3, 63, 0, 9], [11, 5], [2, 40]]  # a catch-up of five rows, two siblings, a child of each
POSITIONS = [[0, 1, 2, 3, 4], [5, 5], [6, 6]]
VISIBLE = [
    [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4]],
    [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 6]],
    [[0, 1, 2, 3, 4, 5, 7], [0, 1, 2, 3, 4, 6, 8]],
]


def session(head, features):
    """g and log-probabilities of all nine rows, level by level."""
    cache, hidden, gs = ListCache(), head.fuse(features), []
    for tokens, positions, visible in zip(TOKENS, POSITIONS, VISIBLE, strict=True):
        keys = sum(len(g[0]) for g in gs) + len(tokens)
        mask = additive(visible, keys).to(features.dtype)
        g = head(head.embed(torch.tensor([tokens])), hidden, torch.tensor([positions]), mask, cache)
        gs.append(g)
        hidden = head.feed_back(g if len(tokens) == 2 else g[:, -1:].expand(1, 2, -1))
    g = torch.cat(gs, dim=1)
    return g, head.log_probs(g)


def reference_session(head, features):
    reference = Reference(head)
    features = features[0].double().numpy()

    def back(g):
        return reference.norm("norm", g) if head.config.norm_output else g

    tokens, positions, visible = (list(chain(*levels)) for levels in (TOKENS, POSITIONS, VISIBLE))
    hidden = [reference.fuse(row) for row in features]
    for rows in (5, 7, 9):  # each level needs the level before it, so all rows are computed afresh
        g = reference.g(tokens[:rows], hidden, positions[:rows], visible[:rows])
        hidden = hidden + ([back(g[4])] * 2 if rows == 5 else [back(g[5]), back(g[6])])
    logits = [reference.linear("lm_head", reference.norm("norm", row)) for row in g]
    log_probs = [row - row.max() - math.log(sum(np.exp(row - row.max()))) for row in logits]
    return np.array(g), np.array(log_probs)


@pytest.mark.parametrize("changes", FLAGS + SHAPES, ids=str)
def test_head_equals_the_naive_reference(changes):
    head = toy_head(seed=3, **changes)
    features = torch.randn(1, 5, head.config.feature_size, generator=torch.Generator().manual_seed(1))
    expected_g, expected_log_probs = reference_session(head, features)
    for form in (head, copy.deepcopy(head).pack(), copy.deepcopy(head).double()):
        with torch.inference_mode():
            g, log_probs = session(form, features.to(form.fc.weight.dtype))
        np.testing.assert_allclose(g[0], expected_g, rtol=3e-5, atol=3e-5)
        np.testing.assert_allclose(log_probs[0], expected_log_probs, rtol=3e-5, atol=3e-5)
        assert log_probs.dtype == torch.float32


def test_each_flag_changes_the_answer():
    """A flag read and then ignored would pass every test that only compares a head with itself."""
    features = torch.randn(1, 5, TOY.feature_size, generator=torch.Generator().manual_seed(1))
    base = toy_head()
    for flag in ("norm_before_residual", "norm_output"):
        other = Eagle3Head(replace(TOY, **{flag: True}))
        other.load_state_dict(base.state_dict())
        with torch.inference_mode():
            first, second = session(base, features)[0], session(other, features)[0]
        assert not torch.allclose(first[:, 5:], second[:, 5:])
        # feeding back the normed state cannot be seen in the catch-up, only from the second draft step on
        assert torch.equal(first[:, :5], second[:, :5]) == (flag == "norm_output")


@pytest.mark.parametrize("rope", [TOY.rope_parameters, LLAMA3, YARN, LINEAR], ids=lambda rope: rope["rope_type"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rope_rows_equal_the_library(rope, dtype):
    head = toy_head(rope_parameters=rope, head_dim=64)
    library = LlamaRotaryEmbedding(LlamaConfig(head_dim=64, max_position_embeddings=128, rope_parameters=dict(rope)))
    positions = torch.tensor([[0, 5, 5, 127, 300, 5000]])  # the table grows past its first length
    cos, sin = library(torch.zeros(1, dtype=dtype), positions)
    ours_cos, ours_signed_sin = head.rope.rows(positions, dtype)
    signs = torch.cat((-torch.ones(32), torch.ones(32))).to(dtype)
    assert torch.equal(ours_cos[:, 0], cos)
    assert torch.equal(ours_signed_sin[:, 0], sin * signs)


def test_rope_without_an_original_length_uses_the_trained_one():
    given = {**LLAMA3, "original_max_position_embeddings": 128}
    missing = {key: value for key, value in given.items() if key != "original_max_position_embeddings"}
    first, second = toy_head(rope_parameters=given), toy_head(rope_parameters=missing)
    assert torch.equal(first.rope.frequencies, second.rope.frequencies)


def test_a_promised_table_is_not_looked_at_again():
    head = toy_head()
    head.rope.promise(40)
    before = head.rope.rows(torch.tensor([[39]]), torch.float32)[0]
    assert torch.equal(before, toy_head().rope.rows(torch.tensor([[39]]), torch.float32)[0])
    with pytest.raises(IndexError):
        head.rope.rows(torch.tensor([[100000]]), torch.float32)


def test_a_constant_position_offset_changes_nothing():
    """EAGLE counts from the feature's position, speculators from the token's: the same head for plain RoPE."""
    head = toy_head()
    features = torch.randn(1, 5, TOY.feature_size, generator=torch.Generator().manual_seed(1))
    embeddings = head.embed(torch.tensor(TOKENS[:1]))
    mask = additive(VISIBLE[0], 5)
    with torch.inference_mode():
        here = head(embeddings, head.fuse(features), torch.arange(5)[None], mask, None)
        there = head(embeddings, head.fuse(features), torch.arange(1, 6)[None], mask, None)
    torch.testing.assert_close(here, there, rtol=1e-4, atol=1e-5)


def test_packing_keeps_names_values_and_memory(tmp_path):
    head = toy_head(qk_norm=True, attention_bias=True, mlp_bias=True, num_layers=2)
    before = {name: value.clone() for name, value in head.state_dict().items()}
    after = head.pack().state_dict()
    assert list(before) == list(after)
    assert all(torch.equal(before[name], after[name]) for name in before)
    attention = head.layers[0].self_attn
    assert attention.k_proj.weight.untyped_storage().data_ptr() == attention.qkv.weight.untyped_storage().data_ptr()
    save_file(after, tmp_path / "head.safetensors")
    saved = load_file(tmp_path / "head.safetensors")
    assert all(torch.equal(before[name], saved[name]) for name in before)


def test_a_packed_head_follows_its_parameters():
    """Training in place is seen at once; a replaced or moved parameter undoes the packing and is seen too."""
    features = torch.randn(1, 5, TOY.feature_size, generator=torch.Generator().manual_seed(1))
    for change in ("in place", "replaced", "loaded"):
        packed, plain = toy_head().pack(), toy_head()
        for head in (packed, plain):
            weight = head.layers[0].self_attn.k_proj.weight
            if change == "in place":
                with torch.no_grad():
                    weight.mul_(1.5)
            elif change == "replaced":
                head.layers[0].self_attn.k_proj.weight = torch.nn.Parameter(weight.detach() * 1.5)
            else:
                head.load_state_dict(toy_head(seed=9).state_dict(), assign=True)
        with torch.inference_mode():
            torch.testing.assert_close(session(packed, features)[0], session(plain, features)[0])


@pytest.mark.parametrize("packed", [False, True])
def test_every_weight_gets_a_gradient(packed):
    head = toy_head(qk_norm=True, fc_norm=True, num_layers=2)
    if packed:
        head.pack()
    features = torch.randn(1, 5, TOY.feature_size, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        session(head, features)  # decoding first must not spoil training afterwards
    g, log_probs = session(head, features)
    (-log_probs[0, :, 3].mean() + head.feed_back(g).square().mean()).backward()
    for name, weight in head.named_parameters():
        assert weight.grad is not None and weight.grad.abs().sum() > 0, name


def test_log_probs_are_not_rounded_in_bfloat16():
    head = toy_head().to(torch.bfloat16)
    head.lm_head.weight.data *= 20
    g = torch.randn(1, 64, 16, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    with torch.inference_mode():
        log_probs = head.log_probs(g)
    assert log_probs.dtype == torch.float32
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(1, 64))


def test_features_of_the_wrong_width_are_named():
    with pytest.raises(ValueError, match=r"3 layers x 16 = 48 wide; got \(1, 5, 16\)"):
        toy_head().fuse(torch.zeros(1, 5, 16))


def test_a_shared_embedding_is_not_copied():
    head = toy_head()
    own = head.embed_tokens.weight
    head.embed_tokens = None
    with pytest.raises(ValueError, match="share_embedding"):
        head.embed(torch.tensor([[1]]))
    with pytest.raises(ValueError, match=r"\(64, 16\); got \(64, 8\)"):
        head.share_embedding(torch.zeros(64, 8))
    table = own.detach().clone()
    head.share_embedding(table)
    assert head.embed_tokens.weight.data_ptr() == table.data_ptr()
    assert torch.equal(head.embed(torch.tensor([[5]]))[0, 0], table[5])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm_before_fc": True, "fc_norm": True}, "exclude each other"),
        ({"num_heads": 5}, "5 heads cannot share 2"),
        ({"head_dim": 7}, "must be even; got 7"),
        ({"aux_layer_ids": ()}, "aux_layer_ids is empty"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "got 'longrope'"),
        ({"rope_parameters": {}}, "got None"),
    ],
)
def test_impossible_configs_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(TOY, **changes)
