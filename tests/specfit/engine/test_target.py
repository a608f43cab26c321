"""Tree forwards against sequential ones, compaction against a fresh prefill, features against the library's."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import Qwen3MoeForCausalLM

from specfit.engine.engine import Engine, load_engine
from specfit.engine.kv_cache import GROWTH
from specfit.engine.self_test import tree_self_test
from specfit.engine.target import OffloadedTarget
from specfit.tree import EMPTY_POOL, ROOT, DraftPool
from tests.models import tiny_drafter, tiny_target
from tests.tensor_sizes import LargestTensor
from tests.word_tokenizer import save_tokenizer

torch.set_num_threads(1)
AUX = (1, 2, 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    tiny_target(folder / "target", max_position_embeddings=1024)
    tiny_drafter(folder / "drafter", aux=AUX)
    save_tokenizer(folder / "target")
    return folder


@pytest.fixture(scope="module")
def library(folder: Path) -> Qwen3MoeForCausalLM:
    return Qwen3MoeForCausalLM.from_pretrained(folder / "target", experts_implementation="grouped_mm").eval()


@pytest.fixture(scope="module", params=["sdpa", "eager"])
def engine(folder: Path, request: pytest.FixtureRequest) -> Engine:
    return load_engine(folder / "target", drafter=folder / "drafter", slots_per_layer=4, attention=request.param)


def random_tree(rng: random.Random, nodes: int) -> DraftPool:
    parents = tuple(rng.randrange(-1, node) for node in range(nodes))
    return DraftPool(tuple(rng.randrange(64) for _ in range(nodes)), parents, (0.0,) * nodes)


def prompt_of(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(64) for _ in range(length)]


@torch.inference_mode()
def last_logits(library: Qwen3MoeForCausalLM, tokens: list[int]) -> Tensor:
    return library(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1]


def keys(target: OffloadedTarget) -> Tensor:
    return torch.cat([layer.keys[:, :, : layer.length] for layer in target._kv.layers], dim=1)


@pytest.mark.parametrize("seed", range(4))
def test_a_tree_forward_is_its_paths_one_by_one(engine: Engine, library: Qwen3MoeForCausalLM, seed: int) -> None:
    rng, target = random.Random(seed), engine.target
    prompt, pool, root = prompt_of(rng, 1 + 5 * seed), random_tree(rng, 8), rng.randrange(64)
    target.prefill(prompt)
    target.commit(())
    assert target.committed == len(prompt)
    found = target.tree_logits(root, pool, range(8))
    for row, node in enumerate((ROOT, *range(8))):
        text = [*prompt, root, *(pool.tokens[at] for at in pool.path(node))]
        assert torch.allclose(found[row], last_logits(library, text), atol=1e-4, rtol=1e-4)
    routes = target.true_routes()
    target.rewind()
    verdict = target.verify(root, pool, range(8))
    assert verdict.next_tokens == tuple(found.argmax(dim=-1).tolist())
    assert target.true_routes() == routes
    target.rewind()
    part = [node for node in range(8) if node % 3 != 1 and all(at % 3 != 1 for at in pool.path(node))]
    some = target.tree_logits(root, pool, part)  # ids with holes
    assert torch.allclose(some, found[[0, *(1 + node for node in part)]], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("seed", range(4))
def test_the_same_tree_twice_gives_the_same_bits(engine: Engine, seed: int) -> None:
    rng, target = random.Random(seed), engine.target
    target.prefill(prompt_of(rng, 9))
    target.commit(())
    pool, root = random_tree(rng, 7), rng.randrange(64)
    first = target.tree_logits(root, pool, range(7))
    target.rewind()
    target.tree_logits(1, random_tree(rng, 5), range(5))  # other experts come and go
    target.rewind()
    assert torch.equal(first, target.tree_logits(root, pool, range(7)))


@pytest.mark.parametrize("seed", range(6))
def test_compaction_is_a_fresh_prefill_of_the_committed_text(
    engine: Engine, library: Qwen3MoeForCausalLM, seed: int
) -> None:
    rng, target = random.Random(seed), engine.target
    text = prompt_of(rng, 3)
    target.prefill(text)
    target.commit(())
    for _ in range(5):
        nodes = rng.randrange(0, 8)
        pool, root = random_tree(rng, nodes), rng.randrange(64)
        target.verify(root, pool, range(nodes))
        path = pool.path(rng.randrange(nodes)) if nodes and rng.random() < 0.8 else ()
        features = target.commit((0, *(1 + node for node in path)))
        assert features is not None and features.shape == (1, 1 + len(path), len(AUX) * 32)
        text += [root, *(pool.tokens[node] for node in path)]
        assert target.committed == len(text)
    kept = keys(target)
    after = target.tree_logits(5, EMPTY_POOL, ())[0]
    assert torch.allclose(after, last_logits(library, [*text, 5]), atol=1e-4, rtol=1e-4)
    target.prefill(text)
    assert torch.allclose(kept, keys(target), atol=1e-4, rtol=1e-4)


def test_text_longer_than_the_buffer(engine: Engine, library: Qwen3MoeForCausalLM) -> None:
    rng, target = random.Random(0), engine.target
    text = prompt_of(rng, GROWTH - 4)
    target.prefill(text)
    target.commit(())
    for _ in range(3):
        pool = random_tree(rng, 7)
        target.verify(9, pool, range(7))
        path = pool.path(6)
        target.commit((0, *(1 + node for node in path)))
        text += [9, *(pool.tokens[node] for node in path)]
    assert len(text) > GROWTH
    found = target.tree_logits(5, EMPTY_POOL, ())[0]
    assert torch.allclose(found, last_logits(library, [*text, 5]), atol=1e-3, rtol=1e-3)


def test_rewinding_a_prefill_leaves_nothing(engine: Engine) -> None:
    engine.target.prefill([1, 2, 3])
    engine.target.rewind()
    assert engine.target.committed == 0


def test_features_are_the_librarys_hidden_states(engine: Engine, library: Qwen3MoeForCausalLM) -> None:
    """Feature id i is the residual stream that enters layer i, which the library calls hidden_states[i]."""
    rng, target = random.Random(3), engine.target

    @torch.inference_mode()
    def expected(tokens: list[int]) -> Tensor:
        output = library(input_ids=torch.tensor([tokens]), use_cache=False, output_hidden_states=True)
        return torch.cat([output.hidden_states[layer] for layer in AUX], dim=-1)

    prompt = prompt_of(rng, 11)
    target.prefill(prompt)
    assert torch.allclose(target.commit(()), expected(prompt), atol=1e-4, rtol=1e-4)
    pool = random_tree(rng, 7)
    for rows_of in (pool.path(6), (), pool.path(3)):
        target.verify(20, pool, range(7))
        found = target.commit((0, *(1 + node for node in rows_of)))
        text = [*prompt, 20, *(pool.tokens[node] for node in rows_of)]
        assert torch.allclose(found, expected(text)[:, len(prompt) :], atol=1e-4, rtol=1e-4)
        target.rewind()


def test_the_self_test_passes_and_leaves_the_caches_empty(engine: Engine) -> None:
    assert tree_self_test(engine.target) < 1e-4
    assert all(not layer.cache.slot_of for layer in engine.offload.layers)


def test_the_self_test_catches_a_mask_that_lets_rows_see_too_much(engine: Engine, monkeypatch) -> None:
    honest = OffloadedTarget._tree_mask
    monkeypatch.setattr(OffloadedTarget, "_tree_mask", lambda *args: torch.zeros_like(honest(*args)))
    with pytest.raises(ValueError, match=r"tree forwards of qwen3_moe with (sdpa|eager) attention differ"):
        tree_self_test(engine.target)


def test_the_self_test_catches_wrong_positions(engine: Engine, monkeypatch) -> None:
    forward = OffloadedTarget._forward
    monkeypatch.setattr(
        OffloadedTarget,
        "_forward",
        lambda self, tokens, positions, mask, **kw: forward(
            self, tokens, None if positions is None else positions * 0, mask, **kw
        ),
    )
    with pytest.raises(ValueError, match="differ from plain ones"):
        tree_self_test(engine.target)


def test_the_self_test_catches_a_compaction_that_keeps_the_wrong_rows(engine: Engine, monkeypatch) -> None:
    commit = OffloadedTarget.commit
    monkeypatch.setattr(OffloadedTarget, "commit", lambda self, rows: commit(self, range(len(rows))))
    with pytest.raises(ValueError, match="differ from plain ones"):
        tree_self_test(engine.target)


def test_a_target_without_a_drafter_has_no_features(folder: Path) -> None:
    with load_engine(folder / "target") as engine:
        engine.target.prefill([1, 2])
        assert engine.target.commit(()) is None


def test_a_prompt_needs_no_square_mask(folder: Path) -> None:
    """As in the library itself; eager attention holds its scores, which are square by nature."""
    prompt = prompt_of(random.Random(1), 900)
    with load_engine(folder / "target", slots_per_layer=4, attention="sdpa") as engine:
        for kept in (0, 880):  # from scratch, and a turn that adds 20 tokens
            with LargestTensor() as largest:
                engine.target.prefill(prompt, kept=kept)
            engine.target.commit(())
            assert largest.elements < len(prompt) ** 2 // 4
