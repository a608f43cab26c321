"""The route atlas: a true account of the target, kept in a file, refused where it does not fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from specfit.cycle import Decoding
from specfit.engine.atlas import Atlas, AtlasEntry, Trajectory, record_atlas
from specfit.engine.engine import Engine, load_engine
from specfit.methods import EAGLE3, SPECFIT
from specfit.objective import CostModel
from specfit.routes import Routes
from specfit.tree import EMPTY_POOL, ROOT, DraftPool
from tests.models import tiny_drafter, tiny_target
from tests.word_tokenizer import save_tokenizer

torch.set_num_threads(1)
COST = CostModel.affine(4.0, 0.1, expert_ms=0.2)
PROMPTS = ((3, 1, 4), (1, 5, 9, 2, 6), (7,))
LIMIT = 12


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = tmp_path_factory.mktemp("pair")
    tiny_target(folder / "target", num_experts=8)
    tiny_drafter(folder / "drafter")
    save_tokenizer(folder / "target")
    return load_engine(folder / "target", drafter=folder / "drafter")


@pytest.fixture(scope="module")
def atlas(engine: Engine) -> Atlas:
    return record_atlas(engine, PROMPTS, max_new_tokens=LIMIT)


def made_up(seed: int = 0, *, rows: int = 7, positions: int = 40, experts: int = 16) -> Atlas:
    """An atlas over random routes: 4 layers, top 4."""
    rng = np.random.default_rng(seed)

    def entry() -> AtlasEntry:
        indices = rng.random((rows, 4, experts)).argsort(axis=2)[:, :, :4].astype(np.int16)
        nodes = rows - 1
        return AtlasEntry(tuple(range(nodes)), (ROOT,) * nodes, indices, tuple(range(rows)))

    trajectories = [
        Trajectory((number,), tuple(range(positions + 1)), tuple(entry() for _ in range(positions)))
        for number in range(2)
    ]
    return Atlas(trajectories, experts=experts, made_with={"target": "t", "draft": {"top_k": 2}})


def pool_of(entry: AtlasEntry) -> DraftPool:
    return DraftPool(entry.tokens, entry.parents, (0.5,) * len(entry.tokens))


def test_it_says_what_the_target_does(engine: Engine, atlas: Atlas) -> None:
    for trajectory, prompt in zip(atlas.trajectories, PROMPTS, strict=True):
        assert trajectory.prompt == prompt
        assert len(trajectory.output) == LIMIT
        assert len(trajectory.entries) == LIMIT - 1
        decoding = engine.decode(prompt, method=EAGLE3, truth=atlas.truth, max_new_tokens=LIMIT)
        for cycle in decoding:
            truth = cycle.truth
            assert truth.routes.root == cycle.verified.root
            chosen = cycle.selection.nodes
            assert tuple(truth.routes.nodes[node] for node in chosen) == cycle.verified.nodes
            entry = trajectory.entries[cycle.prefix_length - len(prompt)]
            assert entry.next_tokens[: 1 + len(cycle.pool)] == truth.next_tokens
        assert tuple(decoding.output) == trajectory.output
        assert trajectory.entries[0].next_tokens[0] == trajectory.output[1]


def test_save_and_load_are_inverse(atlas: Atlas, tmp_path: Path) -> None:
    for kept in (atlas, made_up(), Atlas([], experts=4)):
        kept.save(tmp_path / "atlas.npz")
        again = Atlas.load(tmp_path / "atlas.npz")
        assert (again.experts, again.made_with) == (kept.experts, kept.made_with)
        for old, new in zip(kept.trajectories, again.trajectories, strict=True):
            assert (old.prompt, old.output) == (new.prompt, new.output)
            for a, b in zip(old.entries, new.entries, strict=True):
                assert (a.tokens, a.parents, a.next_tokens) == (b.tokens, b.parents, b.next_tokens)
                assert a.indices.dtype == b.indices.dtype
                assert (a.indices == b.indices).all()
    assert [path.name for path in tmp_path.iterdir()] == ["atlas.npz"]


def test_a_file_that_is_no_atlas_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "atlas.npz"
    made_up().save(path)
    whole = path.read_bytes()
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    np.save(tmp_path / "array.npy", np.zeros(3))
    broken = {
        "torn": whole[: len(whole) // 2],
        "torn early": whole[:40],
        "damaged": whole[: len(whole) // 2] + b"\0" * 200 + whole[len(whole) // 2 + 200 :],
        "empty": b"",
        "text": b"not an atlas",
        "another npz": (tmp_path / "other.npz").read_bytes(),
        "an array": (tmp_path / "array.npy").read_bytes(),
    }
    for content in broken.values():
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"atlas.npz is no atlas \(.*record one with `specfit atlas`"):
            Atlas.load(path)
    with pytest.raises(ValueError, match=r"missing.npz is no atlas"):
        Atlas.load(tmp_path / "missing.npz")


def test_another_prompt_is_named(atlas: Atlas) -> None:
    with pytest.raises(ValueError, match=r"prefix of 4 tokens \(it ends \[9, 9, 9, 9\]\): its prompt is none of the 3"):
        atlas([9, 9, 9, 9], EMPTY_POOL)


def test_another_text_names_both_tokens(atlas: Atlas) -> None:
    trajectory = atlas.trajectories[0]
    wrong = (trajectory.output[1] + 1) % 64
    context = [*trajectory.prompt, trajectory.output[0], wrong]
    match = f"at position 4 the recorded reference text has token {trajectory.output[1]} and this run has token {wrong}"
    with pytest.raises(ValueError, match=match):
        atlas(context, EMPTY_POOL)


def test_a_longer_run_than_the_recording_says_so(atlas: Atlas) -> None:
    trajectory = atlas.trajectories[0]
    for more in ([], [1, 2]):
        with pytest.raises(
            ValueError, match=r"text ends after 15 tokens and this run goes on; .*limit at least as long"
        ):
            atlas([*trajectory.prompt, *trajectory.output, *more], EMPTY_POOL)


def test_another_pool_names_both_nodes(atlas: Atlas) -> None:
    trajectory = atlas.trajectories[1]
    entry = trajectory.entries[2]
    context = [*trajectory.prompt, *trajectory.output[:3]]
    pool = pool_of(entry)
    assert len(atlas(context, pool)) == len(pool)
    other = DraftPool((*pool.tokens[:3], 99, *pool.tokens[4:]), pool.parents, pool.path_probs)
    match = f"node 3 is token 99 under {pool.parents[3]} in this run and token {pool.tokens[3]} under {pool.parents[3]}"
    with pytest.raises(ValueError, match=match):
        atlas(context, other)
    longer = DraftPool((*pool.tokens, 1), (*pool.parents, ROOT), (*pool.path_probs, 0.1))
    with pytest.raises(ValueError, match=f"node {len(pool)} is token 1 under -1 in this run and no such node"):
        atlas(context, longer)
    with pytest.raises(ValueError, match="node 3 is token 99"):
        atlas.truth(context, other)


def test_a_shallower_pool_reads_its_part(atlas: Atlas) -> None:
    trajectory = atlas.trajectories[1]
    entry, context = trajectory.entries[0], [*trajectory.prompt, trajectory.output[0]]
    whole = Routes.from_indices(entry.indices[0], entry.indices[1:], experts=8)
    for count in (0, 2, 6, len(entry.tokens)):
        pool = pool_of(entry).prefix(count)
        assert atlas(context, pool) == whole.prefix(count)
        assert atlas.truth(context, pool).next_tokens == entry.next_tokens[: 1 + count]


@pytest.mark.parametrize("accuracy", [0.0, 0.6, 0.9])
def test_noise_has_the_accuracy_asked_for(accuracy: float) -> None:
    true = made_up()
    noisy = true.noisy(accuracy)
    kept = np.concatenate(
        [
            (a.indices == b.indices).ravel()
            for old, new in zip(true.trajectories, noisy.trajectories, strict=True)
            for a, b in zip(old.entries, new.entries, strict=True)
        ]
    )
    assert abs(kept.mean() - accuracy) <= 4 * (accuracy * (1 - accuracy) / kept.size) ** 0.5
    assert noisy.made_with == true.made_with


def test_noise_follows_from_seed_prompt_and_position_not_from_the_order() -> None:
    def arrays(atlas: Atlas) -> dict:
        return {t.prompt: np.stack([entry.indices for entry in t.entries]) for t in atlas.trajectories}

    true = made_up()
    turned = Atlas(reversed(true.trajectories), experts=true.experts)
    one, other = arrays(true.noisy(0.5, seed=3)), arrays(turned.noisy(0.5, seed=3))
    assert all((one[prompt] == other[prompt]).all() for prompt in one)
    again, changed = arrays(true.noisy(0.5, seed=3)), arrays(true.noisy(0.5, seed=4))
    assert all((one[prompt] == again[prompt]).all() for prompt in one)
    assert all((one[prompt] != changed[prompt]).any() for prompt in one)
    mask = {prompt: one[prompt] != arrays(true)[prompt] for prompt in one}
    assert (mask[(0,)] != mask[(1,)]).any()  # another prompt, other noise
    assert (mask[(0,)][0] != mask[(0,)][1]).any()


def test_perfect_routes_are_the_true_ones_and_noise_keeps_the_truth_apart(engine: Engine, atlas: Atlas) -> None:
    noisy = atlas.noisy(0.5)
    decoding = engine.decode(
        PROMPTS[1], method=SPECFIT, cost=COST, routes=noisy, truth=atlas.truth, max_new_tokens=LIMIT
    )
    differing = 0
    for cycle in decoding:
        assert cycle.estimate is not None and cycle.truth is not None
        assert cycle.truth.routes.root == cycle.verified.root
        differing += cycle.estimate != cycle.truth.routes
    assert differing > 0
    assert tuple(decoding.output) == atlas.trajectories[1].output


def test_stale_settings_are_named(engine: Engine, atlas: Atlas) -> None:
    atlas.check(engine.route_settings)
    other = {**engine.route_settings, "draft": {"top_k": 3, "depth": 5, "max_pool": 18}}
    with pytest.raises(ValueError, match=r"the atlas is stale \(draft: .*'top_k': 2.* then, .*'top_k': 3.* now\)"):
        atlas.check(other)


def test_prompts_that_do_not_fit_are_refused(engine: Engine) -> None:
    with pytest.raises(ValueError, match="token 64 is outside the target's vocabulary of 64"):
        record_atlas(engine, [(64,)], max_new_tokens=2)
    with pytest.raises(ValueError, match="model's context of 256"):
        record_atlas(engine, [(1,) * 250], max_new_tokens=10)


def test_it_serves_any_decoding_of_its_prompts(engine: Engine, atlas: Atlas) -> None:
    for limit in (1, 2, LIMIT):
        for number in (2, 0, 1, 0):
            decoding = engine.decode(
                PROMPTS[number], method=SPECFIT, cost=COST, routes=atlas, truth=atlas.truth, max_new_tokens=limit
            )
            assert isinstance(decoding, Decoding)
            list(decoding)
            assert tuple(decoding.output) == atlas.trajectories[number].output[:limit]
