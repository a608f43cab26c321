"""Routes asked from the target itself: an atlas's in float32, and there where an atlas cannot be, in bfloat16."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

import pytest

from specfit.calibrate import calibrate
from specfit.engine.atlas import record_atlas
from specfit.engine.engine import Engine, expected_route_settings, load_engine
from specfit.engine.link import EmulatedLink
from specfit.engine.route_sources import TargetRoutes
from specfit.experiments.published import exact_routes
from specfit.methods import AR, SPECFIT
from specfit.objective import CostModel
from specfit.records import CycleRecord
from specfit.runs import run_method
from specfit.workloads import Limits, Question, Workload
from tests.models import tiny_pair

COST = CostModel.affine(2.0, 0.1, expert_ms=0.05)
LIMITS = Limits(max_new_tokens=10)
PROMPTS = ((3, 1, 4, 1, 5), tuple(range(20, 32)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_pair(tmp_path_factory.mktemp("pair"))


def load(folder: Path, **settings: object) -> Engine:
    return load_engine(folder / "target", drafter=folder / "drafter", device="cpu", self_test=False, **settings)


def what_happened(cycle: CycleRecord) -> tuple:
    counts = cycle.counts
    return cycle.pool.tokens, cycle.selection.nodes, cycle.committed_tokens, counts.hits, counts.misses, cycle.resident


@pytest.mark.parametrize("accuracy", [1.0, 0.5])
def test_cycles_are_those_with_an_atlas_and_asking_leaves_no_trace(folder: Path, accuracy: float) -> None:
    with load(folder, slots_per_layer=4) as engine:
        atlas = record_atlas(engine, PROMPTS, max_new_tokens=16)
        found = []
        for routes in (atlas, TargetRoutes(engine, accuracy=accuracy)):
            engine.reset()
            decoded = [engine.decode(p, method=SPECFIT, cost=COST, routes=routes, max_new_tokens=16) for p in PROMPTS]
            cycles = [cycle for decoding in decoded for cycle in decoding]
            found.append(([d.output for d in decoded], [what_happened(cycle) for cycle in cycles]))
            estimates = [(cycle.estimate, cycle.verified) for cycle in cycles]
    (texts, _), (same_texts, _) = found
    assert texts == same_texts
    if accuracy == 1.0:
        assert found[0][1] == found[1][1]
    else:
        assert any(estimate.root != verified.root for estimate, verified in estimates)


def test_bfloat16_decodes_and_calibrates_where_an_atlas_would_not_fit(folder: Path) -> None:
    with load(folder, slots_per_layer=4, dtype="bfloat16") as engine:
        ar = engine.decode(PROMPTS[0], method=AR, max_new_tokens=8)
        assert len(list(ar)) == 7
        routes = TargetRoutes(engine)
        assert list(engine.decode(PROMPTS[0], method=SPECFIT, cost=COST, routes=routes, max_new_tokens=24))
        fitted = calibrate(engine, PROMPTS, routes, max_new_tokens=40)
    assert fitted.probes == 200


def test_a_run_in_bfloat16_asks_for_what_an_atlas_would_say(folder: Path, tmp_path: Path) -> None:
    workload = Workload(
        "two", tuple(Question(i, "any", (text,)) for i, text in enumerate(("w3 w4", "w7 w8 w9"))), LIMITS
    )
    with load(folder, slots_per_layer=4, dtype="bfloat16") as engine:
        run = run_method(engine, workload, tmp_path / "run", method=SPECFIT, cost=COST, raw=True)
    assert run.complete and len(run.requests) == 2
    assert run.settings["routes"] == {"source": "target", "accuracy": 1.0, "seed": 0}
    assert all(cycle.truth is None and cycle.estimate is not None for _, cycle in run.cycles())
    assert exact_routes(run)


def test_the_clock_stands_still_while_it_asks(folder: Path) -> None:
    with load(folder, slots_per_layer=2, link=EmulatedLink(1.0)) as engine:
        routes = TargetRoutes(engine)
        decoding = engine.decode(PROMPTS[0], method=SPECFIT, cost=COST, routes=routes, max_new_tokens=12)
        start = perf_counter()
        cycles = list(decoding)
        wall = 1e3 * (perf_counter() - start)
    asked = 1e3 * (perf_counter() - routes.clock())
    assert asked > sum(cycle.times.select_ms for cycle in cycles)  # misses of whole pools, at a millisecond each
    assert decoding.request_ms < wall - asked / 2


def test_an_accuracy_is_a_share(folder: Path) -> None:
    with load(folder) as engine, pytest.raises(ValueError, match="share in"):
        TargetRoutes(engine, accuracy=1.5)


def test_a_foreign_drafter_of_the_embedded_target_has_its_own_name(tmp_path: Path) -> None:
    from specfit import embedded  # its own drafter, under another name

    with load_engine("embedded", drafter=embedded.drafter_folder(), self_test=False) as engine:
        assert engine.settings["drafter"] == str(embedded.drafter_folder())
        assert engine.route_settings == expected_route_settings("embedded", drafter=embedded.drafter_folder())
    with load_engine("embedded", drafter="embedded", self_test=False) as engine:
        assert engine.route_settings == expected_route_settings("embedded")
