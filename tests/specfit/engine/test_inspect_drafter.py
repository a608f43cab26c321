"""What a drafter was read as, and whether another reading of it fits better."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from specfit import embedded
from specfit.cli import main
from specfit.demo import calibration_workload
from specfit.engine.acceptance_probe import CHAIN, Probe, Text, Variant, accepted, greedy_text, variants
from specfit.engine.checkpoints import CheckpointError
from specfit.engine.drafter import DraftConfig, Eagle3Drafter
from specfit.engine.drafter_config import Overrides
from specfit.engine.engine import Engine, load_engine
from specfit.engine.inspect_drafter import inspect_drafter, probe_drafter
from specfit.methods import AR
from tests.checkpoint_toys import LAYOUTS, TOY, toy_head, write_drafter
from tests.models import tiny_pair

torch.set_num_threads(1)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_reported_without_its_target(tmp_path: Path, layout: str) -> None:
    report = str(inspect_drafter(write_drafter(tmp_path, toy_head(), layout=layout)))
    assert f"layout: {layout.removesuffix(' 0.1')}" in report
    assert "theta 10000" in report and "head_dim 4" in report and "vocabulary: 24 of 64 target tokens, by d2t" in report
    named = layout.startswith("speculators") or "SGLang" in layout
    assert ("target layers (2, 4, 5)" in report) == named
    assert ("target layers 2, L/2 and L-3 of a target with L layers" in report) == (not named)


def test_what_is_no_drafter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="this is no EAGLE-3 head"):
        inspect_drafter(embedded.target_folder())
    with pytest.raises(CheckpointError, match="is not a folder here"):
        inspect_drafter(tmp_path / "nowhere")


def test_one_choice_is_changed_at_a_time() -> None:
    found = dict(variants(TOY, layers=6, thetas=[1e4, 5e6]))
    assert found.pop("") == TOY
    assert set(found) == {
        "rope_theta=1000000.0",
        "rope_theta=5000000.0",
        "aux_layer_ids=(1, 3, 4)",  # one more would leave the target
        "norm_before_residual=True",
        "norm_output=True",
    }
    for option, config in found.items():
        name, value = option.split("=")
        have = config.rope_parameters["rope_theta"] if name == "rope_theta" else getattr(config, name)
        assert repr(have) == value
        assert sum(getattr(config, key) != getattr(TOY, key) for key in TOY.__slots__) == 1


def test_clearly_better_means_by_a_tenth_and_by_three_standard_errors() -> None:
    as_read, other = Variant("", (1, 1, 2, 1) * 30), Variant("norm_output=True", (2, 1, 2, 2) * 30)
    assert Probe((as_read, other)).better == (other,)
    assert "load it with overrides=specfit.Overrides(norm_output=True)" in str(Probe((as_read, other)))
    assert Probe((other, as_read)).better == ()
    few = Probe((Variant("", as_read.accepted[:4]), Variant("norm_output=True", other.accepted[:4])))
    assert few.better == () and "no other reading fits clearly better" in str(few)
    nothing = Variant("", (0,) * 50)
    assert "probably of another target" in str(Probe((nothing, nothing)))


@pytest.fixture(scope="module")
def engine() -> Engine:
    return load_engine("embedded", device="cpu", self_test=False)


@pytest.fixture(scope="module")
def prompts(engine: Engine) -> list[tuple[int, ...]]:
    return [engine.encode(question.turns[0]) for question in calibration_workload(2).questions]


def test_the_text_is_the_engines_own_and_chains_are_counted(engine: Engine, prompts) -> None:
    drafter = engine.drafter
    assert drafter is not None
    layers = drafter.head.config.aux_layer_ids
    text = greedy_text(engine.target.model, engine.offload, prompts[0], layers, 12, (), engine.target.device)
    decoding = engine.decode(prompts[0], method=AR, max_new_tokens=12)
    list(decoding)
    assert text.tokens == (*prompts[0], *decoding.output) and text.states[1].shape[1] == len(text.tokens) - 1
    chain = Eagle3Drafter(
        drafter.head,
        target_ids=drafter._target_ids,
        config=DraftConfig(top_k=1, depth=CHAIN, max_pool=CHAIN),
        eos=(),
        device=engine.target.device,
    )
    counts = list(accepted(chain, text))
    assert len(counts) == 11
    for position, count in enumerate(counts):  # each again, alone: nothing is carried from position to position
        known = text.prompt + 1 + position
        shorter = Text(text.tokens[: known + CHAIN], known - 1, text.states)
        assert next(accepted(chain, shorter)) == count


def test_a_wrong_reading_is_found_out(engine: Engine, prompts, tmp_path: Path) -> None:
    """The embedded head with a config.json that lies; the weights are right."""
    folder = tmp_path / "lying"
    shutil.copytree(embedded.drafter_folder(), folder)
    config = json.loads((folder / "config.json").read_text())
    for place in (config, config["transformer_layer_config"]):
        place.pop("rope_theta", None)
    config["transformer_layer_config"]["rope_parameters"] = {"rope_type": "default", "rope_theta": 3.0}
    (folder / "config.json").write_text(json.dumps(config))
    report, found = probe_drafter(engine, folder, prompts[:2], max_new_tokens=25)
    assert "theta 3," in str(report)
    assert found.better[0].option == "rope_theta=10000.0"


def test_an_override_reaches_the_engine_and_names_another_drafter() -> None:
    with load_engine("embedded", device="cpu", self_test=False, overrides=Overrides(rope_theta=5e5)) as engine:
        assert engine.drafter is not None
        assert engine.drafter.head.config.rope_parameters["rope_theta"] == 5e5
        assert engine.route_settings["drafter"] == "embedded rope_theta=500000.0"


def test_a_key_that_the_user_knows_may_be_waved_through(tmp_path: Path) -> None:
    tiny_pair(tmp_path)
    config = json.loads((tmp_path / "drafter" / "config.json").read_text())
    (tmp_path / "drafter" / "config.json").write_text(json.dumps(config | {"new_key": 3}))
    with pytest.raises(CheckpointError, match=r"pass ignore_keys=\('new_key',\)"):
        load_engine(tmp_path / "target", drafter=tmp_path / "drafter", device="cpu")
    waved = Overrides(ignore_keys=("new_key",))
    assert inspect_drafter(tmp_path / "drafter", overrides=waved).layout == "speculators"
    with load_engine(tmp_path / "target", drafter=tmp_path / "drafter", device="cpu", overrides=waved) as engine:
        assert engine.drafter is not None and "new_key" in str(engine.settings["drafter"])


def test_the_command(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    assert main(["inspect", "embedded"]) == 0
    assert "layout: speculators\ntarget layers (1, 3, 5)" in capsys.readouterr().out
    assert main(["inspect", "embedded", "--target", "embedded", "--max-new-tokens", "6"]) == 0
    printed = capsys.readouterr().out
    assert "accepted of a chain of 3, over 10 positions" in printed and "as read" in printed
    folder = write_drafter(tmp_path, toy_head())
    assert main(["inspect", str(folder), "--target", "embedded"]) == 2
    assert "the drafter's vocab_size is 64, the target's is 2048" in capsys.readouterr().err
