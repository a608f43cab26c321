"""The drafter against a naive one that runs the head over whole sequences, and pools that only the prefix decides."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from specfit.engine import drafter as drafting
from specfit.engine.drafter import DraftConfig, Eagle3Drafter
from specfit.engine.eagle3 import Eagle3Head
from specfit.tree import ROOT, DraftPool
from tests.checkpoint_toys import toy_head
from tests.tensor_sizes import LargestTensor

torch.set_num_threads(1)
VOCABULARY, DRAFT = 64, 24
IDS = torch.tensor(random.Random(1).sample(range(VOCABULARY), DRAFT)).sort().values


def drafter(head: Eagle3Head, *, eos: Sequence[int] = (), ids: Tensor | None = IDS, **config: int) -> Eagle3Drafter:
    settings = {"top_k": 2, "depth": 5, "max_pool": 1000, **config}
    return Eagle3Drafter(head, target_ids=ids, config=DraftConfig(**settings), eos=eos, device=torch.device("cpu"))


def features(head: Eagle3Head, tokens: Sequence[int]) -> Tensor:
    """Made-up target features that depend on the token and its position, (1, len(tokens), feature size)."""
    rows = []
    for position, token in enumerate(tokens):
        generator = torch.Generator().manual_seed(1000 * position + token)
        rows.append(torch.randn(head.config.feature_size, generator=generator))
    return torch.stack(rows)[None]


def text_of(seed: int, length: int) -> list[int]:
    return [random.Random(seed * 100 + i).randrange(VOCABULARY) for i in range(length)]


def feed(session: Eagle3Drafter, text: Sequence[int], *, start: int = 0, end: int | None = None) -> None:
    """Note tokens start+1..end-1 of the text with the features of those before them."""
    end = len(text) if end is None else end
    session.extend(text[start + 1 : end], features(session.head, text[:end])[:, start : end - 1])


def last_pool(session: Eagle3Drafter, max_depth: int = 99) -> DraftPool:
    *_, pool = session.levels(max_depth=max_depth)
    return pool


@torch.inference_mode()
def naive_pool(
    head: Eagle3Head, text: Sequence[int], *, top_k: int, depth: int, eos: Sequence[int] = (), ids: Tensor | None = IDS
) -> tuple[list[int], list[int], list[float]]:
    """Level-by-level growth; every node's state comes from one pass over its whole path, with no cache."""

    def state(path: Sequence[int]) -> Tensor:
        """g at the last token of text + path, feeding back from path node to path node."""
        hidden = head.fuse(features(head, text)[:, :-1])
        tokens = list(text[1:])
        for step in range(len(path) + 1):
            rows = len(tokens)
            mask = torch.full((rows, rows), float("-inf")).triu(1)[None, None]
            g = head(head.embed(torch.tensor([tokens])), hidden, torch.arange(rows)[None], mask, None)
            if step == len(path):
                return g[:, -1:]
            hidden = torch.cat((hidden, head.feed_back(g[:, -1:])), dim=1)
            tokens.append(path[step])
        raise AssertionError

    tokens: list[int] = []
    parents: list[int] = []
    scores: list[float] = []
    beam: list[tuple[int, list[int], float]] = [(ROOT, [], 0.0)]
    for _ in range(depth):
        level = []
        for parent, path, score in beam:
            values, at = head.log_probs(state(path))[0, 0].topk(min(top_k, head.config.draft_vocab_size))
            for value, draft_id in zip(values.tolist(), at.tolist(), strict=True):
                token = draft_id if ids is None else int(ids[draft_id])
                level.append((len(tokens), [*path, token], score + value))
                tokens.append(token)
                parents.append(parent)
                scores.append(score + value)
        open_nodes = [node for node in level if node[1][-1] not in eos]
        beam = sorted(open_nodes, key=lambda node: -node[2])[:top_k]
        if not beam:
            break
    return tokens, parents, [math.exp(score) for score in scores]


def same(pool: DraftPool, expected: tuple[list[int], list[int], list[float]]) -> None:
    assert (list(pool.tokens), list(pool.parents)) == expected[:2]
    assert list(pool.path_probs) == pytest.approx(expected[2], rel=1e-4, abs=1e-9)


@pytest.mark.parametrize(
    ("top_k", "depth", "changes"),
    [
        (2, 5, {}),
        (1, 6, {}),
        (3, 3, {"norm_output": True}),
        (4, 2, {"qk_norm": True, "norm_before_residual": True}),
        (2, 4, {"num_layers": 2}),
        (24, 2, {}),
        (2, 1, {}),
    ],
)
def test_the_pool_is_the_naive_one(top_k: int, depth: int, changes: dict) -> None:
    head = toy_head(3, **changes)
    for length in (2, 7):
        text = text_of(length, length)
        session = drafter(head, top_k=top_k, depth=depth)
        feed(session, text)
        expected = naive_pool(head, text, top_k=top_k, depth=depth)
        same(last_pool(session), expected)
        assert len(expected[0]) == top_k + (depth - 1) * top_k**2


def test_the_papers_pool_has_18_nodes_in_five_levels() -> None:
    session = drafter(toy_head(), max_pool=DraftConfig().max_pool)
    feed(session, text_of(0, 5))
    pools = list(session.levels(max_depth=99))
    assert [len(pool) for pool in pools] == [2, 6, 10, 14, 18]
    assert [pool.levels for pool in pools] == [1, 2, 3, 4, 5]
    for earlier, later in itertools.pairwise(pools):
        assert later.prefix(len(earlier)) == earlier
    assert DraftConfig() == DraftConfig(top_k=2, depth=5, max_pool=18)


@pytest.mark.parametrize("max_depth", [1, 3, 4])
def test_fewer_levels_are_a_prefix(max_depth: int) -> None:
    session = drafter(toy_head())
    feed(session, text_of(0, 5))
    whole, part = last_pool(session), last_pool(session, max_depth)
    assert part.levels == max_depth
    assert part == whole.prefix(len(part))


@pytest.mark.parametrize("max_pool", [1, 2, 3, 5, 6, 7, 13])
def test_a_full_pool_keeps_the_best_of_its_last_level(max_pool: int) -> None:
    session, whole = drafter(toy_head(), max_pool=max_pool), drafter(toy_head())
    for one in (session, whole):
        feed(one, text_of(2, 5))
    found, every = last_pool(session), last_pool(whole)
    assert len(found) == max_pool
    ends = [sum(depth <= level for depth in every.depths) for level in range(1, every.levels + 1)]
    end = next(end for end in ends if end >= max_pool)
    first = max([0, *(other for other in ends if other < end)])
    assert found.prefix(first) == every.prefix(first)
    best = sorted(range(first, end), key=lambda node: -every.path_probs[node])[: max_pool - first]
    kept = [(every.tokens[node], every.parents[node]) for node in sorted(best)]
    assert list(zip(found.tokens, found.parents, strict=True))[first:] == kept


def test_an_eos_node_is_a_leaf() -> None:
    head, text = toy_head(3), text_of(7, 7)
    plain = drafter(head)
    feed(plain, text)
    pool = last_pool(plain)
    eos = {pool.tokens[0], pool.tokens[pool.children()[1][0]]}
    session = drafter(head, eos=eos)
    feed(session, text)
    found = last_pool(session)
    same(found, naive_pool(head, text, top_k=2, depth=5, eos=eos))
    assert all(parent == ROOT or found.tokens[parent] not in eos for parent in found.parents)
    assert any(token in eos for token in found.tokens)


def test_where_every_node_is_eos_drafting_ends() -> None:
    session = drafter(toy_head(), eos=range(VOCABULARY))
    feed(session, text_of(0, 4))
    assert [len(pool) for pool in session.levels(max_depth=5)] == [2]


def test_the_pool_depends_on_the_committed_prefix_alone() -> None:
    """However the text was committed, whatever was drafted in between and however deep."""
    head, text = toy_head(4), text_of(1, 30)
    for end in (12, 30):
        whole = drafter(head)
        feed(whole, text, end=end)
        expected = last_pool(whole)
        rng = random.Random(end)
        for _ in range(3):
            session, at = drafter(head), 0
            while at < end - 1:
                step = min(rng.randint(1, 6), end - 1 - at)
                feed(session, text, start=at, end=at + step + 1)
                at += step
                if rng.random() < 0.6 and at < end - 1:
                    for pool in session.levels(max_depth=5):
                        if rng.random() < 0.3 and pool.levels > 1:
                            break  # the selection stopped the drafter
            found = last_pool(session)
            assert (found.tokens, found.parents) == (expected.tokens, expected.parents)
            assert found.path_probs == pytest.approx(expected.path_probs, rel=1e-4)


def test_growing_twice_gives_the_same_pool() -> None:
    session = drafter(toy_head())
    feed(session, text_of(0, 6))
    assert list(session.levels(max_depth=5)) == list(session.levels(max_depth=5))


def test_begin_forgets_the_last_request() -> None:
    session, fresh = drafter(toy_head()), drafter(toy_head())
    feed(session, text_of(5, 9))
    last_pool(session)
    feed(session, text_of(6, 3))  # noted and never run
    session.begin()
    for one in (session, fresh):
        feed(one, text_of(0, 6))
    assert last_pool(session) == last_pool(fresh)


@pytest.mark.parametrize("caught_up", [False, True])
def test_restore_undoes_what_came_after(caught_up: bool) -> None:
    text = text_of(3, 12)
    session, fresh = drafter(toy_head()), drafter(toy_head())
    for one in (session, fresh):
        feed(one, text, end=6)
    if caught_up:
        last_pool(session)
    state = session.snapshot()
    for _ in range(2):
        other = [*text[:6], 9, 8, 7]
        feed(session, other, start=5)
        last_pool(session)
        session.restore(state)
    for one in (session, fresh):
        feed(one, text, start=5, end=9)
    found, expected = last_pool(session), last_pool(fresh)
    assert (found.tokens, found.parents) == (expected.tokens, expected.parents)
    assert found.path_probs == pytest.approx(expected.path_probs, rel=1e-4)


def test_top_k_wider_than_the_draft_vocabulary_is_clipped() -> None:
    """Case F17: 4 draft tokens and top 8, three levels."""
    ids = torch.tensor([3, 9, 20, 50])
    session = drafter(toy_head(draft_vocab_size=4), ids=ids, top_k=8, depth=3, max_pool=60)
    feed(session, text_of(0, 4))
    pools = list(session.levels(max_depth=99))
    assert [len(pool) for pool in pools] == [4, 4 + 16, 4 + 16 + 16]
    for siblings in pools[-1].children().values():
        assert sorted(pools[-1].tokens[node] for node in siblings) == ids.tolist()


def test_impossible_tokens_never_enter_the_pool() -> None:
    """Case F25: all but one (or two) of the draft tokens are masked out."""
    for possible in (1, 2):
        head = toy_head()
        honest = head.logits

        def masked(g: Tensor, honest=honest, possible=possible) -> Tensor:
            logits = honest(g)
            logits[..., possible:] = -math.inf
            return logits

        head.logits = masked  # type: ignore[method-assign]
        session = drafter(head, top_k=4)
        feed(session, text_of(0, 4))
        pool = last_pool(session)
        assert set(pool.tokens) <= set(IDS[:possible].tolist())
        assert all(prob > 0 for prob in pool.path_probs)
        if possible == 1:
            assert pool.path_probs == (1.0,) * 5
            assert pool.parents == (ROOT, 0, 1, 2, 3)


def test_a_prompt_of_one_token() -> None:
    """Case F7: one pair, the prompt's feature with the first output token."""
    head = toy_head(2)
    for length in (2, 3):
        text = text_of(9, length)
        session = drafter(head)
        feed(session, text)
        same(last_pool(session), naive_pool(head, text, top_k=2, depth=5))


@pytest.mark.parametrize("num_layers", [1, 2])
def test_a_long_prompt_runs_piece_by_piece_under_small_masks(monkeypatch: pytest.MonkeyPatch, num_layers: int) -> None:
    head, length = toy_head(3, num_layers=num_layers), 1501
    text = text_of(4, length)
    given = features(head, text)[:, :-1]
    found = []
    for rows in (drafting.PROMPT_ROWS, length):
        monkeypatch.setattr(drafting, "PROMPT_ROWS", rows)
        session = drafter(head)
        session.extend(text[1:], given)
        with LargestTensor() as largest:
            session.catch_up()
        found.append((largest.elements, last_pool(session)))
    (pieces, pool), (at_once, expected) = found
    assert pieces <= 512 * (length - 1) < at_once == (length - 1) ** 2
    assert (pool.tokens, pool.parents) == (expected.tokens, expected.parents)
    assert pool.path_probs == pytest.approx(expected.path_probs, rel=1e-4)


@pytest.mark.parametrize("name", ["top_k", "depth", "max_pool"])
@pytest.mark.parametrize("value", [0, True, 1.5, "2"])
def test_draft_settings_are_whole_and_positive(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"draft {name} is {value!r}; expected a whole number, at least 1"):
        DraftConfig(**{name: value})
