"""Route heads and the other sources without an atlas: what they estimate, when, for whom, and that no token changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import specfit
from specfit.engine.engine import Engine
from specfit.engine.greedy_walk import walk_greedily
from specfit.engine.route_head import RouteHead, pair_fingerprint
from specfit.engine.route_sources import HeadRoutes, LastTokenRoutes, PriorRoutes, shipped_head
from specfit.engine.route_training import RouteRecipe, train_head
from specfit.methods import AR, EAGLE3, SPECFIT, Method
from specfit.routes import Routes, bitmap_experts, bitmaps_from_indices
from specfit.tree import EMPTY_POOL, ROOT, DraftPool
from tests.models import tiny_drafter

COST = specfit.CostModel.affine(5.0, 0.1, expert_ms=0.3)
PROMPTS = ((1, 7, 9, 40), (2, 7, 9, 41), (5,), (8, 8, 8, 50, 3))
FAST = RouteRecipe(steps=30, batch=64)


def load(tiny, **more) -> Engine:
    return specfit.load_engine(tiny.target, drafter=tiny.drafter, self_test=False, **more)


@pytest.fixture(scope="module")
def engine(tiny) -> Iterator[Engine]:
    with load(tiny, slots_per_layer=3) as engine:
        yield engine


@pytest.fixture(scope="module")
def head(engine) -> RouteHead:
    return train_head(engine, PROMPTS, max_new_tokens=16, recipe=FAST)


@pytest.fixture(scope="module")
def saved(head, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("head") / "head.safetensors"
    head.save(path)
    return path


@pytest.fixture(scope="module")
def embedded() -> Iterator[Engine]:
    with specfit.load_engine("embedded", slots_per_layer=12, self_test=False) as engine:
        yield engine


def begin(engine: Engine, prompt: tuple[int, ...]) -> list[int]:
    """Run a prompt; the context, its last token pending."""
    engine.drafter.begin()
    context = [*prompt, engine.target.prefill(prompt).next_tokens[0]]
    engine.drafter.extend(context[1:], engine.target.commit(()))
    return context


@torch.inference_mode()
def expected(engine: Engine, head: RouteHead, pool: DraftPool) -> list[int]:
    """What the head says of the root and every node of the tree just grown, one row at a time."""
    drafter, shape = engine.drafter, head.shape
    growth = drafter.growth
    own = {node: states[row] for nodes, states in growth.expanded for row, node in enumerate(nodes)}

    def bitmap(kind: str, token: int, *states: torch.Tensor) -> int:
        vectors = [drafter.head.embed(torch.tensor(token)), *states]
        x = torch.cat([v / (v.square().mean() + 1e-6).sqrt() for v in vectors])
        logits = (x @ head.weights[kind].float() + head.biases[kind].float()).view(shape.layers, shape.experts)
        return bitmaps_from_indices(logits.topk(shape.top_k).indices[None].numpy(), experts=shape.experts)[0]

    found = [bitmap("root", growth.pending.token, growth.pending.feature[0, 0], growth.pending.state[0, 0])]
    for node, (token, parent) in enumerate(zip(pool.tokens, pool.parents, strict=True)):
        if node in own:
            found.append(bitmap("inner", token, own[parent], own[node]))
        else:
            found.append(bitmap("leaf", token, own[parent]))
    return found


# -- what is estimated


def test_every_level_is_estimated_from_the_states_that_are_there(engine, head) -> None:
    context, source = begin(engine, PROMPTS[0]), HeadRoutes(engine, head)
    sizes = []
    for pool in engine.drafter.levels(max_depth=5):
        routes = source(context, pool)
        assert [routes.root, *routes.nodes] == expected(engine, head, pool)
        sizes.append(len(pool))
    assert sizes == [2, 6, 10, 14, 18]
    assert HeadRoutes(engine, head)(context, pool) == routes  # asked once, at the end: the same
    for bitmap in (routes.root, *routes.nodes):
        chosen = bitmap_experts(bitmap, layers=engine.layers, experts=engine.experts)
        assert [len(layer) for layer in chosen] == [head.shape.top_k] * engine.layers


def test_a_stop_between_levels_and_a_restored_drafter_leave_nothing_behind(engine, head) -> None:
    context, source, drafter = begin(engine, PROMPTS[1]), HeadRoutes(engine, head), engine.drafter
    drafter.catch_up()
    state = drafter.snapshot()
    for pool in drafter.levels(max_depth=5):
        first = source(context, pool)
        if pool.levels == 2:
            break  # as the depth stop does
    verdict = engine.target.verify(context[-1], pool, (0,))
    drafter.extend([verdict.next_tokens[0]], engine.target.commit((0,)))
    source([*context, verdict.next_tokens[0]], drafter.full_pool())  # another position, with another tree
    engine.target.rewind()
    drafter.restore(state)
    for again in drafter.levels(max_depth=2):
        routes = source(context, again)
    assert again == pool and routes == first


def test_the_root_is_estimated_where_nothing_is_drafted(engine, head) -> None:
    context = begin(engine, PROMPTS[0])
    routes = HeadRoutes(engine, head)(context, EMPTY_POOL)
    engine.drafter.full_pool()
    assert (routes.root, routes.nodes) == (expected(engine, head, EMPTY_POOL)[0], ())


def test_a_pool_from_elsewhere_is_refused(engine, head) -> None:
    context, source = begin(engine, PROMPTS[0]), HeadRoutes(engine, head)
    pool = engine.drafter.full_pool()
    other = DraftPool((pool.tokens[0] + 1, *pool.tokens[1:]), pool.parents, pool.path_probs)
    for where, asked in ((context, other), (context, pool.prefix(2)), ([*context[:-1], context[-1] + 1], pool)):
        with pytest.raises(ValueError, match="has not just grown this pool"):
            source(where, asked)
    assert source(context, pool).nodes


def test_last_token_routes_are_those_of_the_token_before_the_root(engine) -> None:
    decoding = engine.decode(PROMPTS[3], method=SPECFIT, cost=COST, routes=LastTokenRoutes(engine), max_new_tokens=16)
    before = None
    for cycle in decoding:
        assert set(cycle.estimate.nodes) <= {cycle.estimate.root}
        if before is not None:
            assert cycle.estimate.root == before
        kept = len(cycle.committed_tokens) - 1  # accepted nodes whose rows stay
        last = cycle.accepted[kept - 1] if kept else None
        at = {node: place for place, node in enumerate(cycle.selection.nodes)}
        before = cycle.verified.root if last is None else cycle.verified.nodes[at[last]]
    assert cycle.index > 0


def test_the_prior_is_each_layers_most_used_experts(engine, head) -> None:
    pool = DraftPool((1, 2), (ROOT, 0), (0.5, 0.25))
    routes = PriorRoutes(engine, head)((1,), pool)
    top = np.sort(np.argsort(-head.prior.numpy(), axis=1)[:, : head.shape.top_k], axis=1)
    assert bitmap_experts(routes.root, layers=engine.layers, experts=engine.experts) == top.tolist()
    assert set(routes.nodes) == {routes.root}
    assert head.prior.sum(dim=1).numpy() == pytest.approx(head.shape.top_k)


# -- the head that ships


def test_the_shipped_head_is_as_good_as_its_card_says(embedded) -> None:
    head = shipped_head(embedded)
    prompt = specfit.runs.prompts_of(embedded, specfit.embedded_workload("news", count=1))[0].ids
    source, prior = HeadRoutes(embedded, head), PriorRoutes(embedded, head)
    seen: dict[str, list[float]] = {"head": [], "prior": []}
    unions = []
    context = [*prompt]

    def watch(root: int, step) -> None:
        context.append(root)
        true = Routes.from_indices(step.indices[0], step.indices[1:], experts=embedded.experts)
        for name, asked in (("head", source), ("prior", prior)):
            said = asked(context, step.pool)
            pairs = zip((true.root, *true.nodes), (said.root, *said.nodes), strict=True)
            seen[name] += [(a & b).bit_count() / a.bit_count() for a, b in pairs]
            if name == "head":
                unions.append(specfit.expert_union(said, range(7)) / specfit.expert_union(true, range(7)))

    walk_greedily(embedded, prompt, max_new_tokens=16, watch=watch)
    assert np.mean(seen["head"]) > 0.75 > 0.4 > np.mean(seen["prior"])
    assert 0.85 < np.mean(unions) < 1.1
    card = head.card["accuracy"]
    assert np.mean(card["leaf"]) > 0.75 and np.mean(card["inner"]) > np.mean(card["leaf"])
    assert not any(name.endswith("test") or "-" not in name for name in head.card["workloads"])  # no test prompt in it


def test_no_source_changes_a_token(embedded) -> None:
    prompt = specfit.runs.prompts_of(embedded, specfit.embedded_workload("problems", count=1))[0].ids

    def text(method: Method, routes=None) -> list[int]:
        decoding = embedded.decode(prompt, method=method, cost=COST, routes=routes, max_new_tokens=24)
        for _ in decoding:
            pass
        return decoding.output

    plain = text(AR)
    assert text(EAGLE3) == plain
    at_once = Method("at once", policy=SPECFIT.policy)  # asks for routes once a cycle, at full depth
    for source in (HeadRoutes(embedded), LastTokenRoutes(embedded), PriorRoutes(embedded)):
        assert text(SPECFIT, source) == plain, source
        assert text(at_once, source) == plain, source


# -- files and pairs


def test_a_head_is_read_back_as_it_was_saved(head, saved) -> None:
    again = RouteHead.load(saved)
    assert again.shape == head.shape and again.card == json.loads(json.dumps(head.card))
    assert again.digest == head.digest
    for kind in head.weights:
        assert torch.equal(again.weights[kind], head.weights[kind])


def test_training_gives_the_same_head_again(engine) -> None:
    digests = {train_head(engine, PROMPTS[:2], max_new_tokens=4, recipe=replace(FAST, seed=s)).digest for s in (0, 0)}
    other = train_head(engine, PROMPTS[:2], max_new_tokens=4, recipe=replace(FAST, seed=1)).digest
    assert len(digests) == 1 and other not in digests


def spoil(saved: Path, path: Path, change) -> Path:
    """The saved head with changed tensors or card."""
    from safetensors import safe_open

    with safe_open(saved, framework="pt") as file:
        card = json.loads(file.metadata()["card"])
    tensors = load_file(saved)
    change(tensors, card)
    save_file(tensors, path, metadata={"card": json.dumps(card)})
    return path


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t, c: t["leaf.weight"][3].fill_(float("nan")), "leaf.weight holds values that are no finite numbers"),
        (lambda t, c: t["prior"].fill_(float("inf")), "prior holds values"),
        (lambda t, c: t.update({"root.bias": t["root.bias"][:-1]}), "root.bias has shape"),
        (lambda t, c: t.update({"prior": t["prior"].int()}), "prior holds values"),
        (lambda t, c: t.pop("inner.weight"), "lacks 'inner.weight'"),
        (lambda t, c: t.update({"more": torch.zeros(1)}), "a tensor more that no route head has"),
        (lambda t, c: c["shape"].update(top_k=99), "top 99 of 8"),
        (lambda t, c: c["shape"].update(experts="8"), "no route head"),
        (lambda t, c: c["shape"].pop("layers"), "no route head"),
        (lambda t, c: c.update(format="another"), "another format"),
        (lambda t, c: c.pop("format"), "lacks 'format'"),
    ],
)
def test_a_spoilt_head_is_one_sentence(saved, tmp_path: Path, change, said: str) -> None:
    with pytest.raises(ValueError, match="is no route head") as error:
        RouteHead.load(spoil(saved, tmp_path / "bad.safetensors", change))
    assert said in str(error.value) and "\n" not in str(error.value)


def test_what_is_no_head_is_one_sentence(saved, tiny, tmp_path: Path) -> None:
    (tmp_path / "cut.safetensors").write_bytes(saved.read_bytes()[:-100])
    (tmp_path / "empty.safetensors").write_bytes(b"")
    for path in (
        tmp_path / "cut.safetensors",
        tmp_path / "empty.safetensors",
        tmp_path / "nothing.safetensors",
        tmp_path,
        tiny.drafter / "model.safetensors",  # a checkpoint, with no card
    ):
        with pytest.raises(ValueError, match="is no route head"):
            RouteHead.load(path)


def test_a_head_of_another_pair_is_refused(tiny, engine, head, embedded, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="for another pair"):
        HeadRoutes(embedded, head)
    with pytest.raises(ValueError, match="no route head for this pair"):
        HeadRoutes(engine)
    tiny_drafter(tmp_path / "drafter", seed=5)
    with specfit.load_engine(tiny.target, drafter=tmp_path / "drafter", self_test=False) as other:
        with pytest.raises(ValueError, match="other weights"):
            HeadRoutes(other, head)
        with pytest.raises(ValueError, match="other weights"):
            PriorRoutes(other, head)
    with specfit.load_engine(tiny.target, self_test=False) as alone, pytest.raises(ValueError, match="with a drafter"):
        HeadRoutes(alone, head)


def test_slots_and_dtype_do_not_make_another_pair(tiny, engine, head) -> None:
    with load(tiny, dtype="bfloat16") as low:
        assert pair_fingerprint(low) == pair_fingerprint(engine)
        head.check(low)


def test_a_head_needs_prompts_to_learn_from_and_to_measure_on(engine) -> None:
    with pytest.raises(ValueError, match="at least 2 prompts"):
        train_head(engine, PROMPTS[:1], max_new_tokens=4, recipe=FAST)
    with pytest.raises(ValueError, match="no example of a"):
        train_head(engine, PROMPTS[:2], max_new_tokens=1, recipe=FAST)
    with pytest.raises(ValueError, match="steps"):
        replace(FAST, steps=0)


def test_a_closed_engine_answers_nothing(tiny, head) -> None:
    with load(tiny) as engine:
        source, last = HeadRoutes(engine, head), LastTokenRoutes(engine)
    for closed in (source, last):
        with pytest.raises(ValueError, match="closed"):
            closed((1,), EMPTY_POOL)
