"""Replay gives what the live engine gives, to the last digit: for toys of every kind, and for a real tiny pair."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import starmap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import specfit
from specfit.engine.atlas import Atlas
from specfit.methods import AR, EAGLE3, SPECFIT, Method
from specfit.metrics import measure, speedup
from specfit.modelled import ModelledClock, retime
from specfit.objective import CostModel, CycleState, Selection, evaluate
from specfit.records import CycleRecord, RunRecord, StageTimes
from specfit.replay import replay
from specfit.routes import Routes
from specfit.run_folder import load_run, save_run
from specfit.runs import RouteChoice, run_method
from specfit.select import MinUnionPolicy, OnlinePricePolicy, OptTreeStop, PrefixPolicy
from specfit.workloads import Limits, spec_bench
from specfit.world import World
from tests.recorded import toy_recording
from tests.toys import EXPERTS, TOY_COST, VOCABULARY, ToyTarget, ToyWorld, toy_decoding, toy_request

CLOCK = ModelledClock(forward_ms=5.0, level_ms=0.5, expert_ms=0.25, miss_ms=2.0)
COST = CostModel.affine(5.0, 0.1, expert_ms=0.3)
OPT_TREE = Method("opt-tree", PrefixPolicy(7), adaptive_depth=True, uses_routes=False, stop=OptTreeStop(7, 0.3))
METHODS = (AR, EAGLE3, SPECFIT, OPT_TREE, Method("min-union", MinUnionPolicy(3)))


def timeless(cycle: CycleRecord) -> CycleRecord:
    """A cycle without what no replay can know: its wall time."""
    return replace(cycle, times=StageTimes(), counts=replace(cycle.counts, wait_ms=0.0))


def as_drafted_in(other: CycleRecord, cycle: CycleRecord) -> CycleRecord:
    """The cycle with the other's path probabilities, from which its own differ by rounding alone.

    A drafter reads the target's features, and a forward over other rows rounds these another way: even two live methods
    do not agree on the last digits of p.
    """
    assert np.allclose(cycle.pool.path_probs, other.pool.path_probs, rtol=5e-3, atol=1e-6)
    assert cycle.selection.reward == pytest.approx(other.selection.reward, rel=1e-3)
    pool = replace(cycle.pool, path_probs=other.pool.path_probs)
    return replace(cycle, pool=pool, selection=replace(cycle.selection, reward=other.selection.reward))


def assert_same(live: RunRecord, replayed: RunRecord, *, exact: bool = False) -> None:
    """All that is recorded of every request is the same, wall times apart; unless `exact`, p to float rounding."""
    assert [request.request_id for request in live.requests] == [request.request_id for request in replayed.requests]
    for was, request in zip(live.requests, replayed.requests, strict=True):
        for name in ("prompt_tokens", "output_tokens", "output_text", "stop_reason", "question_id", "category"):
            assert getattr(was, name) == getattr(request, name)
        assert replace(was.prefill, wait_ms=0.0) == request.prefill
        cycles = request.cycles if exact else starmap(as_drafted_in, zip(was.cycles, request.cycles, strict=True))
        assert list(map(timeless, was.cycles)) == list(map(timeless, cycles))


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    seed=st.integers(0, 10**6),
    method=st.sampled_from(METHODS),
    slots=st.integers(1, EXPERTS),
    cost=st.builds(CostModel, st.lists(st.floats(0, 20), min_size=8, max_size=8).map(tuple), st.floats(0, 2)),
    depth=st.integers(1, 6),
    limit=st.integers(1, 25),
    eos=st.sets(st.integers(0, VOCABULARY - 1), max_size=3),
)
def test_a_replay_is_the_toy_run(seed, method, slots, cost, depth, limit, eos) -> None:
    toy, prompts = ToyWorld(seed), ((0, 1, 2), (5,), (2, 9))
    target = ToyTarget(toy, slots=slots)  # one for all requests: the caches carry over
    requests = tuple(
        toy_request(
            number,
            toy_decoding(
                toy, prompt, method=method, target=target, max_new_tokens=limit, eos=tuple(eos), cost=cost, depth=depth
            ),
        )
        for number, prompt in enumerate(prompts)
    )
    world = toy_recording(toy, prompts, limit=limit, eos=tuple(eos), depth=depth)
    replayed = replay(world, method, cost, slots, CLOCK)
    live = RunRecord(replayed.settings, {}, requests, world.layers, world.experts)
    assert_same(live, replayed, exact=True)
    assert [r.prefill_ms for r in retime(live, CLOCK).requests] == [r.prefill_ms for r in replayed.requests]
    assert [r.request_ms for r in retime(live, CLOCK).requests] == [r.request_ms for r in replayed.requests]


@pytest.fixture(scope="module")
def workload(tiny):
    return spec_bench(tiny.questions, limits=Limits(max_new_tokens=10), name="toy")


@pytest.fixture(scope="module")
def recorded(tiny, workload, tmp_path_factory) -> World:
    """A world of the tiny real pair that has been to a file and back."""
    path = tmp_path_factory.mktemp("world") / "world.npz"
    with specfit.load_engine(tiny.target, drafter=tiny.drafter, self_test=False) as engine:
        specfit.record_world(engine, workload, raw=True).save(path)
    return World.load(path)


@pytest.mark.parametrize(("slots", "cleared"), [(8, False), (3, False), (1, False), (3, True)])
def test_a_replay_is_the_live_engine(tiny, workload, recorded: World, tmp_path: Path, slots: int, cleared: bool):
    atlas = Atlas.of_world(recorded)
    pair = {"drafter": tiny.drafter, "self_test": False}
    with specfit.load_engine(tiny.target, slots_per_layer=slots, cleared=cleared, **pair) as engine:
        recorded.check(engine.route_settings)
        for method in (AR, EAGLE3, SPECFIT):
            live = run_method(engine, workload, tmp_path / method.name, method=method, cost=COST, atlas=atlas, raw=True)
            replayed = replay(recorded, method, COST, slots, CLOCK, cleared=cleared)
            assert_same(live, replayed)
            assert len(replayed.cycles()) >= 20
            assert sum(cycle.counts.misses for _, cycle in live.cycles()) > 0 or slots == 8
            assert measure(replayed) == measure(retime(live, CLOCK))
            assert live.tokens.items() <= replayed.tokens.items() == recorded.tokens.items()


def test_noisy_routes_are_those_of_the_live_engines_atlas(tiny, workload, recorded: World, tmp_path: Path) -> None:
    atlas = Atlas.of_world(recorded)
    choice = RouteChoice(accuracy=0.6, seed=3)
    with specfit.load_engine(tiny.target, drafter=tiny.drafter, slots_per_layer=4, self_test=False) as engine:
        live = run_method(
            engine, workload, tmp_path / "noisy", method=SPECFIT, cost=COST, atlas=atlas, routes=choice, raw=True
        )
    noisy = replay(recorded, SPECFIT, COST, 4, CLOCK, accuracy=0.6, seed=3)
    assert_same(live, noisy)
    assert any(cycle.estimate != cycle.truth.routes for _, cycle in noisy.cycles())
    own = replay(recorded, SPECFIT, COST, 4, CLOCK, routes=atlas.noisy(0.6, seed=3))
    assert own.requests == noisy.requests
    assert own.settings["routes"] == {"source": "Atlas"}


def test_the_shipped_world_is_what_the_embedded_pair_does(tmp_path: Path) -> None:
    import torch

    torch.set_num_threads(1)
    world = specfit.embedded_world("problems").first(1)
    workload = specfit.embedded_workload("problems", count=1)
    with specfit.load_engine("embedded", slots_per_layer=16, self_test=False) as engine:
        world.check(engine.route_settings)
        live = run_method(engine, workload, tmp_path / "run", method=EAGLE3, atlas=Atlas.of_world(world))
    replayed = replay(world, EAGLE3, None, 16, CLOCK)
    assert_same(live, replayed)


def test_replaying_takes_no_torch() -> None:
    script = (
        "import sys, specfit; world = specfit.embedded_world('problems').first(1); "
        "run = specfit.replay(world, specfit.EAGLE3, slots=8); "
        "print(len(run.requests), [m for m in ('torch', 'transformers', 'scipy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1 []"


def test_a_shorter_limit_is_a_shorter_run(recorded: World) -> None:
    short, whole = (replay(recorded, SPECFIT, COST, 4, CLOCK, max_new_tokens=limit) for limit in (6, None))
    for cut, request in zip(short.requests, whole.requests, strict=True):
        assert cut.output_tokens == request.output_tokens[:6]
        assert cut.output_text == ""
    with pytest.raises(ValueError, match=r"'toy/1/0' was recorded for 10 new tokens and 11 are asked for; record"):
        replay(recorded, SPECFIT, COST, 4, CLOCK, max_new_tokens=11)


def test_an_answer_that_ended_may_be_given_a_longer_limit() -> None:
    toy = ToyWorld(3)
    end = toy.greedy((0, 1, 2), 9)[-1]
    world = toy_recording(toy, ((0, 1, 2),), limit=30, eos=(end,))
    run = replay(world, EAGLE3, None, 4, CLOCK, max_new_tokens=99)
    assert run.requests[0].stop_reason == "eos"


def test_the_record_is_a_run_like_any_other(recorded: World, tmp_path: Path) -> None:
    run, base = replay(recorded, SPECFIT, COST, 4, CLOCK), replay(recorded, AR, COST, 4, CLOCK)
    save_run(tmp_path / "run", run)
    assert load_run(tmp_path / "run").requests == run.requests
    assert run.settings["link"]["kind"] == "modelled"
    assert run.settings["target"] == base.settings["target"]
    assert speedup(run, base).ratio_of_sums == measure(run).decode_tps / measure(base).decode_tps
    assert run.machine["note"].startswith("replayed from a recorded world")


def test_a_plain_function_is_a_method_under_its_own_name() -> None:
    def likely(state: CycleState, cost: CostModel) -> Selection:
        return evaluate(state, [node for node, p in enumerate(state.pool.path_probs) if p >= 0.3][:7], cost)

    world = toy_recording(ToyWorld(1))
    run = replay(world, likely, TOY_COST, 4, CLOCK)
    assert (run.method, run.settings["max_nodes"]) == ("likely", 7)
    for _, cycle in run.cycles():
        assert all(cycle.pool.path_probs[node] >= 0.3 for node in cycle.selection.nodes)
    assert run.requests == replay(world, Method("x", likely), TOY_COST, 4, CLOCK).requests


def test_a_replay_does_not_depend_on_earlier_ones() -> None:
    world, method = toy_recording(ToyWorld(2)), Method("online", OnlinePricePolicy(), adaptive_depth=True)
    one = replay(world, method, TOY_COST, 4, CLOCK)
    replay(world, SPECFIT, TOY_COST, 2, CLOCK)
    assert replay(world, method, TOY_COST, 4, CLOCK) == one
    assert method.policy.price is None  # the method itself has seen nothing


def test_without_a_clock_no_time_passes_and_nothing_else_changes() -> None:
    world = toy_recording(ToyWorld(2))
    still, timed = replay(world, SPECFIT, TOY_COST, 4), replay(world, SPECFIT, TOY_COST, 4, CLOCK)
    assert measure(still).decode_tps is None
    assert list(map(timeless, (c for _, c in still.cycles()))) == list(map(timeless, (c for _, c in timed.cycles())))


def answering(nodes: object) -> object:
    def rule(state: CycleState, cost: CostModel) -> object:
        return nodes if not isinstance(nodes, tuple) else Selection(nodes, 1.0, 1.0, 0)

    return rule


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"method": answering((5,))}, "selected without its parent"),
        ({"method": answering((99,))}, r"node 99 is not in the pool; its nodes are 0\.\."),
        ({"method": answering((0, 0))}, "names a node twice"),
        ({"method": answering((0, 1, 2, 3, 4, 5, 6, 7))}, "8 nodes are selected; the limit is K = 7"),
        ({"method": answering([0])}, "returned a list; expected a Selection"),
        ({"method": answering(None)}, "returned a NoneType; expected a Selection"),
        ({"method": "specfitt"}, "method 'specfitt' is unknown; choose ar, eagle3, specfit"),
        ({"slots": 0}, "slots per layer must be between 1 and the world's 8 experts; got 0"),
        ({"slots": 9}, "got 9"),
        ({"slots": 2.5}, "got 2.5"),
        ({"cost": None}, "'specfit' weighs time; give it cost coefficients"),
        ({"cost": CostModel((1.0, 2.0), 0.1)}, "intercepts b_0..b_1"),
        ({"accuracy": 1.2}, r"share in \[0, 1\]; got 1.2"),
        ({"accuracy": float("nan")}, "got nan"),
        ({"accuracy": 0.5, "routes": lambda context, pool: None}, "give one"),
        ({"routes": lambda context, pool: Routes(0, (), 3, 8)}, "routes are given for 0 nodes; the pool has"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
    ],
)
def test_what_cannot_be_replayed_gets_a_sentence(change: dict, match: str) -> None:
    given = {"method": SPECFIT, "cost": TOY_COST, "slots": 4, "clock": CLOCK, **change}
    with pytest.raises(ValueError, match=match):
        replay(toy_recording(ToyWorld(0)), **given)


def test_coefficients_and_clocks_are_numbers() -> None:
    with pytest.raises(ValueError, match=r"beta \(expert_ms\) is nan"):
        CostModel.affine(1.0, 0.0, expert_ms=float("nan"))
    with pytest.raises(ValueError, match="miss_ms of a modelled clock is inf"):
        replace(CLOCK, miss_ms=float("inf"))
