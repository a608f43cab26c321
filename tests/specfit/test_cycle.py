"""The decode cycle over toys: every method gives the greedy text, whatever it costs, and its records add up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specfit.cycle import Decoding, StopRule, accepted_path
from specfit.methods import AR, EAGLE3, SPECFIT, Method, with_max_nodes
from specfit.objective import CostModel, CycleState, Selection, evaluate
from specfit.records import ForwardCounts, StageTimes, Verdict
from specfit.routes import Routes
from specfit.select import PrefixPolicy, select_exact
from specfit.tree import ROOT, DraftPool, is_legal
from tests.toys import EXPERTS, TOY_COST, VOCABULARY, ToyDrafter, ToyTarget, ToyWorld, toy_decoding, toy_request

METHODS = (AR, EAGLE3, SPECFIT)
COSTS = (
    CostModel.affine(1000.0, 0.0, expert_ms=0.0),  # nodes are free: as many as K allows
    CostModel.affine(0.0, 0.0, expert_ms=1.0),  # experts are all that costs
    CostModel.affine(0.0, 1000.0, expert_ms=0.0),  # nodes are ruinous: the root alone
    CostModel((5.0, 9.0, 4.0, 8.0, 3.0, 7.0, 2.0, 6.0), 0.1, 0.3),  # falling intercepts, levels cost
)

worlds = st.builds(ToyWorld, st.integers(0, 10**6), memory=st.integers(0, 4))
prompts = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=6)
any_cost = st.builds(
    CostModel,
    st.lists(st.floats(0, 20), min_size=8, max_size=8).map(tuple),
    st.floats(0, 2),
    st.sampled_from([0.0, 0.5]),
)


def decode_all(decoding: Decoding, target: ToyTarget, world: ToyWorld, limit: int, eos: Sequence[int]) -> list:
    """Decode to the end and check what must hold of every request, whoever decoded it."""
    prompt = decoding.prompt
    cycles = []
    for cycle in decoding:
        cycles.append(cycle)
        assert cycle.index == len(cycles) - 1
        assert cycle.prefix_length == len(prompt) + len(decoding.output) - 1 - cycle.committed
        assert is_legal(cycle.pool, cycle.selection.nodes)
        assert set(cycle.accepted) <= set(cycle.selection.nodes)
        tokens = tuple(cycle.pool.tokens[node] for node in cycle.accepted)
        assert cycle.committed_tokens[: len(tokens)] == tokens
        assert cycle.committed - len(tokens) == (0 if tokens == cycle.committed_tokens else 1)
        assert cycle.pool.levels <= max(0, limit - len(decoding.output) + cycle.committed - 1)
        assert len(cycle.verified) == len(cycle.selection.nodes)
        assert cycle.counts.demand == cycle.counts.hits + cycle.counts.misses
    output = decoding.output
    assert output == world.greedy(prompt, limit, eos)
    assert decoding.stop_reason == ("eos" if output[-1] in eos else "limit")
    assert sum(cycle.committed for cycle in cycles) == len(output) - 1
    assert [token for cycle in cycles for token in cycle.committed_tokens] == output[1:]
    assert target.cached == [*prompt, *output[:-1]]
    assert decoding.context == [*prompt, *output]
    return cycles


@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    world=worlds,
    prompt=prompts,
    method=st.sampled_from(METHODS),
    cost=any_cost,
    depth=st.integers(1, 6),
    top_k=st.integers(1, 4),
    max_nodes=st.integers(1, 7),
    slots=st.integers(1, EXPERTS),
    limit=st.integers(1, 25),
    eos=st.sets(st.integers(0, VOCABULARY - 1), max_size=4),
)
def test_any_decoding_is_the_greedy_text(
    world, prompt, method, cost, depth, top_k, max_nodes, slots, limit, eos
) -> None:
    method = with_max_nodes(method, max_nodes)
    target = ToyTarget(world, slots=slots)
    drafter = ToyDrafter(world, top_k=top_k, depth=depth).begin(prompt) if method.max_nodes else None
    decoding = Decoding(
        prompt,
        target=target,
        drafter=drafter,
        method=method,
        cost=cost,
        routes=world.routes if method.uses_routes else None,
        truth=world.truth,
        max_new_tokens=limit,
        eos=eos,
    )
    cycles = decode_all(decoding, target, world, limit, eos)
    for cycle in cycles:
        assert len(cycle.selection.nodes) <= method.max_nodes
        assert cycle.verified.root == cycle.truth.routes.root
        assert cycle.verified.nodes == tuple(cycle.truth.routes.nodes[node] for node in cycle.selection.nodes)
        if not method.uses_routes:
            assert cycle.estimate is None
            state = CycleState(cycle.pool, cycle.truth.routes)
            assert cycle.selection == evaluate(state, cycle.selection.nodes, cost)
    if drafter is not None:
        assert drafter.context == decoding.context


@pytest.mark.parametrize("cost", COSTS, ids=["free", "experts", "ruinous", "odd"])
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@pytest.mark.parametrize("slots", [1, 3, EXPERTS])
def test_every_method_cost_and_cache_gives_the_same_text(method: Method, cost: CostModel, slots: int) -> None:
    world = ToyWorld(7)
    target = ToyTarget(world, slots=slots)
    cycles = decode_all(toy_decoding(world, (3, 1, 2), method=method, target=target, cost=cost), target, world, 40, ())
    if method is SPECFIT and cost is COSTS[2]:
        assert all(cycle.selection.nodes == () for cycle in cycles)  # case I1: drafts that cannot pay are not verified
        assert all(cycle.pool.levels == 1 for cycle in cycles[:-1])
    if method is not AR and cost is COSTS[0]:
        assert max(cycle.committed for cycle in cycles) > 2


@pytest.mark.parametrize("method", [AR, EAGLE3], ids=lambda method: method.name)
def test_a_choice_that_read_no_routes_is_priced_by_those_it_ran(method: Method) -> None:
    world = ToyWorld(3)

    def choices(with_truth: bool) -> list[Selection]:
        target, drafter = ToyTarget(world, slots=4), ToyDrafter(world).begin((3, 1, 2)) if method.max_nodes else None
        decoding = Decoding(
            (3, 1, 2), target=target, drafter=drafter, method=method, cost=TOY_COST,
            truth=world.truth if with_truth else None, max_new_tokens=20,
        )  # fmt: skip
        cycles = list(decoding)
        assert all(cycle.selection.union == cycle.counts.demand for cycle in cycles)
        return [cycle.selection for cycle in cycles]

    assert choices(False) == choices(True)


# -- a scripted world: what the target says and what is drafted, written out ------------------------------------------


class Script:
    """A target that follows one text, and a drafter that offers given trees, (tokens, parents) a cycle."""

    def __init__(self, text: Sequence[int], trees: Sequence[tuple[Sequence[int], Sequence[int]]] = ()) -> None:
        self.text, self.trees = list(text), list(trees)
        self.cached: list[int] = []
        self.extended: list[int] = []
        self.asked: list[int] = []

    def prefill(self, prompt: Sequence[int]) -> Verdict:
        self.cached = list(prompt)
        self.start = len(prompt)
        return Verdict((self.text[0],), ForwardCounts())

    def verify(self, root: int, pool: DraftPool, nodes: Sequence[int]) -> Verdict:
        at = len(self.cached) - self.start
        assert root == self.text[at]
        self.rows = [root, *(pool.tokens[node] for node in nodes)]
        after = []
        for node in (ROOT, *nodes):
            depth = 0 if node == ROOT else pool.depths[node]
            after.append(self.text[at + 1 + depth] if at + 1 + depth < len(self.text) else 0)
        return Verdict(tuple(after), ForwardCounts())

    def commit(self, rows: Sequence[int]) -> list[int]:
        assert list(rows) == sorted(rows)
        self.cached += [self.rows[row] for row in rows]
        return list(rows)

    def synchronize(self) -> None:
        pass

    def resident_before(self) -> None:
        return None

    def true_routes(self) -> Routes:
        return Routes(0, (0,) * (len(self.rows) - 1), 1, 1)

    def extend(self, tokens: Sequence[int], features: object) -> None:
        if features:
            assert len(tokens) == len(features)  # one feature for each committed token
        self.extended += tokens

    def catch_up(self) -> None:
        pass

    def levels(self, *, max_depth: int) -> Iterator[DraftPool]:
        self.asked.append(max_depth)
        tokens, parents = self.trees.pop(0)
        pool = DraftPool(tuple(tokens), tuple(parents), tuple(0.9**i for i in range(1, 1 + len(tokens))))
        for level in range(1, min(pool.levels, max_depth) + 1):
            yield pool.prefix(sum(depth <= level for depth in pool.depths))


def scripted(
    script: Script,
    *,
    limit: int = 20,
    eos: Sequence[int] = (),
    prompt: Sequence[int] = (8, 8),
    stop: StopRule | None = None,
) -> Decoding:
    free = CostModel.affine(1.0, 0.0, expert_ms=0.0)
    ends = {"max_new_tokens": limit, "eos": eos, "stop": stop}
    return Decoding(prompt, target=script, drafter=script, method=EAGLE3, cost=free, **ends)


def chain(*tokens: int) -> tuple[Sequence[int], Sequence[int]]:
    return tokens, range(-1, len(tokens) - 1)


def test_nothing_is_counted_past_the_end() -> None:
    """Case F1: of the accepted chain [a, EOS, b, c] two are emitted and two accepted."""
    script = Script([1, 2, 5, 3, 4, 6], [chain(2, 5, 3, 4)])
    decoding = scripted(script, eos=(5,))
    (cycle,) = decoding
    assert cycle.committed_tokens == (2, 5)
    assert cycle.accepted == (0, 1)
    assert decoding.output == [1, 2, 5]
    assert decoding.stop_reason == "eos"
    assert script.cached == [8, 8, 1, 2]


def test_eos_as_an_inner_node_ends_the_block() -> None:
    """Case F2: root -> EOS -> x and root -> y, two EOS tokens."""
    script = Script([1, 3, 7, 7], [((3, 7, 4), (-1, 0, -1))])
    (cycle,) = decoding = list(scripted(script, eos=(5, 3)))
    assert cycle.committed_tokens == (3,)
    assert cycle.accepted == (0,)
    assert script.cached == [8, 8, 1]
    assert decoding


def test_eos_as_the_bonus_token() -> None:
    script = Script([1, 2, 5, 9], [chain(2)])
    decoding = scripted(script, eos=(5,))
    (cycle,) = decoding
    assert (cycle.committed_tokens, cycle.accepted) == ((2, 5), (0,))
    assert script.cached == [8, 8, 1, 2]


def test_eos_as_the_first_token_decodes_nothing() -> None:
    script = Script([5, 2])
    decoding = scripted(script, eos=(5,))
    assert list(decoding) == []
    assert (decoding.output, decoding.stop_reason) == ([5], "eos")
    assert script.cached == [8, 8]


def test_acceptance_stops_at_the_first_mismatch() -> None:
    """Case F23: draft [1, 2, 3, 4] where the target says [1, 9, 3, 4]."""
    script = Script([0, 1, 9, 3, 4], [chain(1, 2, 3, 4)])
    cycle = next(iter(scripted(script)))
    assert cycle.accepted == (0,)
    assert cycle.committed_tokens == (1, 9)


@pytest.mark.parametrize("limit", [1, 2, 6])
def test_the_limit_counts_tokens_and_caps_the_draft(limit: int) -> None:
    """Case F5: drafts that are always right, five levels deep."""
    text = list(range(1, 30))
    script = Script(text, [chain(*text[1:6])] * 2)
    decoding = scripted(script, limit=limit)
    cycles = list(decoding)
    assert decoding.output == text[:limit]
    assert decoding.stop_reason == "limit"
    assert script.cached == [8, 8, *text[: limit - 1]]
    assert script.asked == ([limit - 2] if limit > 2 else [])  # no draft where only one token may follow
    assert [cycle.committed for cycle in cycles] == ([limit - 1] if limit > 1 else [])


def test_the_limit_inside_an_accepted_block_cuts_it() -> None:
    """A drafter that ignores the level limit cannot make a request longer."""

    class Stubborn(Script):
        def levels(self, *, max_depth: int) -> Iterator[DraftPool]:
            return super().levels(max_depth=9)

    script = Stubborn(list(range(1, 30)), [chain(2, 3, 4, 5, 6)])
    decoding = scripted(script, limit=4)
    (cycle,) = decoding
    assert decoding.output == [1, 2, 3, 4]
    assert (cycle.committed_tokens, cycle.accepted) == ((2, 3, 4), (0, 1, 2))
    assert script.cached == [8, 8, 1, 2, 3]


class StopAt:
    """A stop rule that ends the text with one token, and writes down what it was shown."""

    def __init__(self, token: int) -> None:
        self.token, self.shown = token, []

    def __call__(self, tokens: Sequence[int]) -> int | None:
        self.shown.append(tuple(tokens))
        return tokens.index(self.token) + 1 if self.token in tokens else None


@pytest.mark.parametrize(
    ("at", "output", "reason", "shown"),
    [
        (1, [1], "stop", [(1,)]),  # the first token, which is prefill's
        (3, [1, 2, 3], "stop", [(1,), (2, 3, 4)]),  # in the middle of an accepted block
        (4, [1, 2, 3, 4], "stop", [(1,), (2, 3, 4)]),  # as the token after it
        (6, [1, 2, 3, 4, 5, 6], "eos", [(1,), (2, 3, 4), (5, 6)]),  # EOS and the stop in one token
        (7, [1, 2, 3, 4, 5, 6], "eos", [(1,), (2, 3, 4), (5, 6)]),  # past EOS: nobody looks there
    ],
)
def test_a_stop_rule_cuts_a_block_where_it_says(at: int, output: list[int], reason: str, shown: list) -> None:
    """Case F3: the rule sees every token that would be emitted, once and in order; the KV cache is cut to match."""
    script, stop = Script(list(range(1, 20)), [chain(2, 3), chain(5, 6, 7)]), StopAt(at)
    decoding = scripted(script, eos=(6,), stop=stop)
    cycles = list(decoding)
    assert (decoding.output, decoding.stop_reason, stop.shown) == (output, reason, shown)
    assert script.cached == [8, 8, *output[:-1]]
    assert [token for cycle in cycles for token in cycle.committed_tokens] == output[1:]
    assert all(len(cycle.accepted) <= cycle.committed for cycle in cycles)


def test_a_stop_rule_at_the_limit_is_named() -> None:
    decoding = scripted(Script([1, 2, 3, 4], [chain(2, 3)]), limit=3, stop=StopAt(3))
    list(decoding)
    assert (decoding.output, decoding.stop_reason) == ([1, 2, 3], "stop")


def test_a_prompt_of_one_token() -> None:
    """Case F7: no pair of feature and next embedding but the first token's."""
    script = Script([1, 2, 3, 4], [chain(2), chain(4)])
    decoding = scripted(script, prompt=(7,), limit=4)
    list(decoding)
    assert decoding.output == [1, 2, 3, 4]
    assert script.extended == [1, 2, 3, 4]
    assert script.cached == [7, 1, 2, 3]


def test_a_drafter_that_offers_nothing() -> None:
    """Case F19: no pool at all is the root alone."""

    class Silent(Script):
        def levels(self, *, max_depth: int) -> Iterator[DraftPool]:
            return iter(())

    decoding = scripted(Silent([1, 2, 3]), limit=3)
    assert [(cycle.accepted, cycle.pool.levels) for cycle in decoding] == [((), 0), ((), 0)]
    assert decoding.output == [1, 2, 3]


def test_the_accepted_path_goes_down_the_branch_the_target_takes() -> None:
    pool = DraftPool((4, 5, 6, 6, 7), (ROOT, ROOT, 0, 1, 3), (0.5, 0.4, 0.3, 0.3, 0.2))
    assert accepted_path(pool, (0, 1, 2, 3, 4), (5, 0, 6, 0, 7, 9)) == ((1, 3, 4), 9)
    assert accepted_path(pool, (0, 1, 3), (5, 0, 6, 9)) == ((1, 3), 9)
    assert accepted_path(pool, (1, 3), (4, 6, 9)) == ((), 4)  # its child 0 was not verified
    assert accepted_path(pool, (), (3,)) == ((), 3)


# -- adaptive depth ---------------------------------------------------------------------------------------------------


STOPPING = CostModel.affine(3.0, 0.4, expert_ms=0.35)


def full_pool(world: ToyWorld, context: Sequence[int], depth: int) -> DraftPool:
    drafter = ToyDrafter(world, depth=depth).begin((0,))
    drafter.context = list(context)
    *_, pool = drafter.levels(max_depth=depth)
    return pool


@pytest.mark.parametrize("seed", range(12))
def test_lemma_2_depth_stops_when_the_newest_level_is_left_out(seed: int) -> None:
    """And where the full pool's choice stays within the levels drafted, it is the same choice."""
    world, whole = ToyWorld(seed), 0
    for cycle in toy_decoding(world, (1, 2), cost=STOPPING):
        context = [1, 2, *world.greedy((1, 2), 40)][: cycle.prefix_length + 1]
        depth = min(5, 40 - (cycle.prefix_length - 2) - 2)
        if depth < 1:
            continue
        pool = full_pool(world, context, depth)
        assert cycle.pool == pool.prefix(len(cycle.pool))
        seed_nodes: tuple[int, ...] = ()
        for level in range(1, cycle.pool.levels + 1):
            part = pool.prefix(sum(d <= level for d in pool.depths))
            choice = select_exact(CycleState(part, world.routes(context, part)), STOPPING, 7, seed=seed_nodes)
            seed_nodes = choice.nodes
            newest = any(part.depths[node] == level for node in choice.nodes)
            assert newest or level == cycle.pool.levels  # not a level later
        assert choice == cycle.selection
        assert not newest or cycle.pool.levels == depth  # nor a level earlier
        best = select_exact(CycleState(pool, world.routes(context, pool)), STOPPING, 7)
        if max((pool.depths[node] for node in best.nodes), default=0) <= cycle.pool.levels:
            assert best.nodes == cycle.selection.nodes
            whole += 1
    assert whole > 0


def test_depth_stops_somewhere_and_goes_on_elsewhere() -> None:
    levels = [
        cycle.pool.levels
        for seed in range(6)
        for cycle in list(toy_decoding(ToyWorld(seed), (1, 2), cost=STOPPING))[:-3]
    ]
    assert len(set(levels)) > 2


# -- records and clocks -----------------------------------------------------------------------------------------------


class Ticking:
    """A clock that moves on by 1, 2, 3, ... ms at every look."""

    def __init__(self) -> None:
        self.now, self.steps = 0.0, count(1)

    def __call__(self) -> float:
        self.now += next(self.steps) / 1e3
        return self.now


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_stage_times_sum_to_the_cycle_and_cycles_to_the_request(method: Method) -> None:
    world, clock = ToyWorld(2), Ticking()
    spans: list[float] = []

    class Timed(ToyTarget):
        def true_routes(self) -> Routes:
            spans.append(clock.now)  # the cycle's clock has stopped
            return super().true_routes()

    def truth(context: Sequence[int], pool: DraftPool) -> object:
        clock()  # time that must not be counted
        return world.truth(context, pool)

    decoding = Decoding(
        (1, 2, 3),
        target=Timed(world),
        drafter=ToyDrafter(world).begin((1, 2, 3)) if method.max_nodes else None,
        method=method,
        cost=TOY_COST,
        routes=world.routes if method.uses_routes else None,
        truth=truth,
        max_new_tokens=30,
        clock=clock,
    )
    decoding.prefill()
    assert decoding.prefill_ms == pytest.approx(2.0)  # the second look
    total, before = decoding.prefill_ms, clock.now
    for cycle in decoding:
        times = cycle.times
        assert times.total_ms == pytest.approx(times.draft_ms + times.select_ms + times.verify_ms + times.commit_ms)
        assert min(times.select_ms, times.verify_ms, times.commit_ms) > 0
        assert (times.draft_ms > 0) == (cycle.pool.levels > 0)
        assert times.total_ms < 1e3 * (spans[-1] - before)
        total += times.total_ms
        before = clock.now
    assert decoding.request_ms == pytest.approx(total)


def test_prefill_happens_once() -> None:
    world = ToyWorld(0)
    decoding = toy_decoding(world, (1, 2))
    decoding.prefill()
    decoding.prefill()
    assert len(decoding.output) == 1
    list(decoding)
    assert decoding.output == world.greedy((1, 2), 40)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_the_same_seeds_give_the_same_records(method: Method) -> None:
    def record() -> object:
        world = ToyWorld(11)
        request = toy_request(1, toy_decoding(world, (4, 2), method=method, target=ToyTarget(world, slots=3)))
        cycles = tuple(
            replace(cycle, times=StageTimes(), counts=replace(cycle.counts, wait_ms=0.0)) for cycle in request.cycles
        )
        return replace(request, cycles=cycles, request_ms=0.0, prefill_ms=0.0)

    assert record() == record()


def test_leaving_early_keeps_what_was_yielded() -> None:
    world, target = ToyWorld(3), ToyTarget(ToyWorld(3))
    decoding = toy_decoding(world, (1, 2), target=target)
    for cycle in decoding:
        if cycle.index == 2:
            break
    assert decoding.output == world.greedy((1, 2), len(decoding.output))
    assert target.cached == [1, 2, *decoding.output[:-1]]
    assert decoding.stop_reason == ""


# -- bad policies and bad arguments -----------------------------------------------------------------------------------


def run_policy(policy: object, **changes: object) -> None:
    world = ToyWorld(0)
    list(toy_decoding(world, (1, 2), method=Method("mine", policy=policy, **changes)))


def raw(nodes: object) -> Selection:
    return Selection(nodes, 1.0, 1.0, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        (raw((2,)), "node 2 is selected without its parent"),
        (raw((99,)), "node 99 is not in the pool"),
        (raw((-1,)), "node -1 is not in the pool"),
        (raw((0, 0)), "names a node twice"),
        (raw((0, 1, 2, 3)), "4 nodes are selected; the limit is K = 3"),
        (raw(None), "a selection is a collection of pool node ids; got None"),
        (raw((0.0,)), "a selection is a collection of pool node ids"),
        (raw("01"), "a selection is a collection of pool node ids"),
        (None, "the policy of method 'mine' returned a NoneType; expected a Selection"),
        ((0, 1), "the policy of method 'mine' returned a tuple; expected a Selection, which specfit.evaluate"),
    ],
)
def test_an_illegal_answer_of_a_policy_gets_one_sentence(answer: object, match: str) -> None:
    with pytest.raises(ValueError, match=match) as caught:
        run_policy(lambda state, cost: answer, max_nodes=3)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("wrap", [lambda n: list(reversed(n)), set, np.array, lambda n: tuple(np.array(n))])
def test_a_policy_may_name_its_nodes_in_any_order_and_container(wrap) -> None:
    """The target is given ascending plain integers all the same, so the text stays the greedy one."""
    world, target = ToyWorld(5), ToyTarget(ToyWorld(5))

    def policy(state: CycleState, cost: CostModel) -> Selection:
        found = PrefixPolicy(max_nodes=7)(state, cost)
        return replace(found, nodes=wrap(found.nodes))

    method = Method("mine", policy=policy)
    cycles = decode_all(toy_decoding(world, (1, 2), method=method, target=target), target, world, 40, ())
    for cycle in cycles:
        assert cycle.selection.nodes == tuple(sorted(cycle.selection.nodes))
        assert all(type(node) is int for node in cycle.selection.nodes)
    assert max(len(cycle.accepted) for cycle in cycles) > 1


def test_bad_arguments_get_one_sentence() -> None:
    world = ToyWorld(0)
    with pytest.raises(ValueError, match="the prompt has no tokens"):
        toy_decoding(world, ())
    with pytest.raises(ValueError, match="max_new_tokens is 0; expected at least 1"):
        toy_decoding(world, (1,), max_new_tokens=0)
    common = {"target": ToyTarget(world), "cost": TOY_COST, "max_new_tokens": 4}
    with pytest.raises(ValueError, match="'eagle3' verifies draft nodes; load the engine with a drafter"):
        Decoding((1,), drafter=None, method=EAGLE3, **common)
    with pytest.raises(ValueError, match="'specfit' reads expert routes; pass routes="):
        Decoding((1,), drafter=ToyDrafter(world), method=SPECFIT, **common)


def test_a_cost_for_smaller_trees_says_so() -> None:
    with pytest.raises(ValueError, match=r"intercepts b_0..b_3; a tree of \d draft nodes needs"):
        list(toy_decoding(ToyWorld(0), (1, 2), cost=CostModel.affine(1.0, 0.0, expert_ms=0.1, max_nodes=3)))


def test_a_record_says_what_was_in_the_slots_before_its_forward() -> None:
    """Hits are the executed experts that were resident; in a cycle where the union fits, that is all of them."""
    world = ToyWorld(0)
    for cycle in toy_decoding(world, (1, 2, 3), method=EAGLE3, target=ToyTarget(world, slots=6)):
        executed = cycle.verified.root
        for bitmap in cycle.verified.nodes:
            executed |= bitmap
        assert cycle.resident is not None
        assert (executed & cycle.resident).bit_count() == cycle.counts.hits
