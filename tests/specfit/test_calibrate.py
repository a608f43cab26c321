"""Calibration: both protocols on a tiny model, what a calibration remembers, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import specfit
from specfit.calibrate import Calibration, calibrate, consecutive_probes, paper_probes
from specfit.engine.link import EmulatedLink

PROMPTS = [(1, 7, 9, 40), (2, 7, 9, 41), (8, 8, 8, 50, 3)]


@pytest.fixture(scope="module")
def engine(tiny):
    with specfit.load_engine(
        tiny.target, drafter=tiny.drafter, slots_per_layer=4, link=0.02, self_test=False
    ) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def atlas(tiny):
    with specfit.load_engine(tiny.target, drafter=tiny.drafter, self_test=False) as resident:
        return specfit.record_atlas(resident, PROMPTS, max_new_tokens=30)


def test_paper_protocol_probes_nine_states_with_two_trees_of_every_size(engine, atlas) -> None:
    probes = list(paper_probes(engine, PROMPTS, atlas, max_new_tokens=30))
    assert len(probes) == 9 * 8 * 2
    assert [sum(probe.nodes == size for probe in probes) for size in range(8)] == [18] * 8
    assert all(probe.levels == 5 and probe.ms > 0 and probe.union > 0 for probe in probes)
    pairs = zip(probes[::2], probes[1::2], strict=True)  # prefix tree, then minimum-union tree of the same size
    assert all(least.union <= prefix.union for prefix, least in pairs)


def test_probing_leaves_the_request_as_it_was(engine, atlas) -> None:
    """The paper's protocol decodes on between its states, and the text is still the target's own."""
    prompt = PROMPTS[0]
    expected = engine.decode(prompt, method=specfit.AR, max_new_tokens=30)
    list(expected)
    text = next(t for t in atlas.trajectories if t.prompt == prompt).output
    assert tuple(expected.output) == text
    list(
        paper_probes(engine, PROMPTS[:1], atlas, max_new_tokens=30)
    )  # the atlas refuses any prefix that is not on this text


def test_consecutive_protocol_varies_size_and_depth_and_drops_the_first(engine, atlas) -> None:
    probes = list(consecutive_probes(engine, PROMPTS, atlas, max_new_tokens=30, cycles=60, seed=1))
    assert len(probes) == 60
    assert len({probe.nodes for probe in probes}) >= 6 and {probe.levels for probe in probes} >= {1, 2, 3, 4, 5}
    again = list(consecutive_probes(engine, PROMPTS, atlas, max_new_tokens=30, cycles=60, seed=1))
    assert [(p.nodes, p.levels, p.union) for p in again] == [(p.nodes, p.levels, p.union) for p in probes]


def test_a_calibration_says_where_it_holds(engine, atlas, tmp_path: Path) -> None:
    fitted = calibrate(engine, PROMPTS, atlas, names=("1", "2", "4"), max_new_tokens=30)
    path = tmp_path / "calibration.json"
    fitted.save(path)
    assert Calibration.load(path) == fitted
    assert specfit.CostModel.load(path) == fitted.cost
    saved = json.loads(path.read_text())
    assert saved["protocol"] == "consecutive" and saved["probes"] == 200 and saved["prompts"] == ["1", "2", "4"]
    assert saved["machine"]["processor"] and saved["settings"]["slots_per_layer"] == 4 and saved["date"]
    shown = str(fitted)
    assert all(word in shown for word in ("R^2", "residuals", "condition number", "beta", "gamma"))
    fitted.check(engine.settings)
    with pytest.raises(ValueError, match="slots_per_layer 4 then, 5 now"):
        fitted.check({**engine.settings, "slots_per_layer": 5})
    with pytest.raises(ValueError, match="link"):
        fitted.check({**engine.settings, "link": EmulatedLink(0.5).describe()})


def test_what_is_no_calibration_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    for content in ("", "[]", "{}", '{"cost": {"intercepts_ms": [1, 2]}}', '{"cost": 3}'):
        path.write_text(content)
        with pytest.raises(ValueError, match="no calibration"):
            Calibration.load(path)
    with pytest.raises(ValueError, match="no calibration"):
        Calibration.load(tmp_path / "missing.json")


def test_an_unknown_protocol_and_answers_too_short_are_refused(engine, atlas) -> None:
    with pytest.raises(ValueError, match="choose paper or consecutive"):
        calibrate(engine, PROMPTS, atlas, protocol="quick")
