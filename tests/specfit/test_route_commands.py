"""Route sources as a user asks for them: train-routes, run --routes, and runs without an atlas."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import specfit
from specfit.calibrate import Calibration
from specfit.cli import main
from specfit.commands.options import route_choice
from specfit.engine.route_head import RouteHead
from specfit.fit import Fit
from specfit.methods import SPECFIT
from specfit.run_folder import RunError, load_run
from specfit.runs import RouteChoice, run_method
from specfit.workloads import Limits, spec_bench
from tests.models import tiny_drafter

COST = specfit.CostModel.affine(5.0, 0.1, expert_ms=0.3)


def said(capsys: pytest.CaptureFixture) -> str:
    lines = [line for line in capsys.readouterr().err.replace("\r", "\n").splitlines() if line.startswith("specfit: ")]
    assert len(lines) == 1, lines
    return lines[0]


@pytest.fixture(scope="module")
def pair(tiny) -> list[str]:
    return ["--target", str(tiny.target), "--drafter", str(tiny.drafter), "--raw", "--max-new-tokens", "12"]


@pytest.fixture(scope="module")
def head(tiny, pair, tmp_path_factory) -> Path:
    """A head that the command trained."""
    path = tmp_path_factory.mktemp("head") / "new" / "head.safetensors"
    assert main(["train-routes", *pair, "--questions", str(tiny.questions), "--out", str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def cost(tmp_path_factory) -> list[str]:
    """Options that spare a run its calibration."""
    fit = Fit(COST, r2=1, rms_ms=0, worst_ms=0, condition=1, count=0, residuals_ms=(), warnings=())
    path = tmp_path_factory.mktemp("cost") / "cost.json"
    Calibration.of(fit, protocol="consecutive", settings={}, prompts=()).save(path)
    return ["--cost", str(path), "--force-cost"]


def test_the_card_says_for_whom_and_how_good(tiny, head, capsys) -> None:
    card = RouteHead.load(head).card
    assert card["target"] == str(tiny.target) and card["drafter"] == str(tiny.drafter)
    assert card["workloads"] == {"file": [1, 2, 3, 4]} and card["max_new_tokens"] == 12
    assert (card["prompts"], card["held_out_prompts"]) == (3, 1)
    for kind in ("root", "inner", "leaf"):
        assert card["rows"][kind] > 0 and len(card["accuracy"][kind]) == 4
        assert all(0 <= share <= 1 for share in card["accuracy"][kind])


def test_run_takes_the_head_and_needs_no_atlas(tiny, pair, head, tmp_path: Path, capsys) -> None:
    questions = ["--workload", str(tiny.questions), "--calibration-questions", str(tiny.questions)]
    command = ["run", *pair, *questions, "--head", str(head), "--slots", "4", "--out"]
    assert main([*command, str(tmp_path / "head")]) == 0
    assert not list((tmp_path / "head").glob("*.npz"))
    runs = {name: load_run(tmp_path / "head" / name) for name in ("ar", "eagle3", "specfit")}
    assert runs["specfit"].settings["routes"] == {"source": "head", "head": RouteHead.load(head).digest}
    assert runs["ar"].settings["routes"] is None
    texts = [[request.output_tokens for request in run.requests] for run in runs.values()]
    assert texts[0] == texts[1] == texts[2]
    assert all(cycle.truth is None for _, cycle in runs["specfit"].cycles())
    assert main([*command, str(tmp_path / "head")]) == 0  # finished already


@pytest.fixture(scope="module")
def atlases(tmp_path_factory) -> Path:
    """A folder that runs share."""
    return tmp_path_factory.mktemp("atlases")


@pytest.fixture(scope="module")
def texts(tiny) -> list[tuple[int, ...]]:
    """The greedy text of every question."""
    workload = spec_bench(tiny.questions, limits=Limits(max_new_tokens=12))
    with specfit.load_engine(tiny.target, self_test=False) as engine, TemporaryDirectory() as folder:
        run = run_method(engine, workload, folder, method=specfit.AR, raw=True)
    return [request.output_tokens for request in run.requests]


@pytest.mark.parametrize("source", ["atlas", "noisy:0.5", "last-token", "prior", "head"])
def test_every_source_gives_the_same_text(
    tiny, pair, head, cost, texts, atlases: Path, tmp_path: Path, source: str
) -> None:
    more = ["--head", str(head)] if source in ("prior", "head") else []
    command = ["run", *pair, "--workload", str(tiny.questions), "--method", "specfit", "--truth", "--routes", source]
    command += ["--atlas", str(atlases)]
    assert main([*command, *more, *cost, "--out", str(tmp_path / "run")]) == 0
    run = load_run(tmp_path / "run" / "specfit")
    assert run.settings["routes"]["source"] == (
        source if source in ("atlas", "head", "prior", "last-token") else "atlas"
    )
    if "0.5" in source:
        assert run.settings["routes"]["accuracy"] == 0.5
    assert [request.output_tokens for request in run.requests] == texts
    cycles = [cycle for _, cycle in run.cycles()]
    assert all(cycle.truth is not None for cycle in cycles)
    assert (source == "atlas") == all(cycle.estimate == cycle.truth.routes for cycle in cycles)


def test_runs_share_an_atlas_until_the_question_or_the_pair_changes(
    tiny, pair, cost, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["run", *pair, *cost, "--workload", str(tiny.questions), "--method", "specfit", "--category"]
    assert main([*command, "one"]) == 0
    (first,) = (tmp_path / "runs" / "atlases").iterdir()
    stamp = first.stat().st_mtime_ns
    assert main([*command, "one", "--slots", "3"]) == 0
    assert first.stat().st_mtime_ns == stamp
    assert main([*command, "two"]) == 0
    assert main([*command, "one", "--depth", "2"]) == 0
    assert len(list(first.parent.iterdir())) == 3


def test_the_embedded_pair_runs_with_its_own_head(cost, tmp_path: Path) -> None:
    command = ["run", "--workload", "news", "--count", "1", "--max-new-tokens", "6", "--method", "specfit"]
    assert main([*command, *cost, "--out", str(tmp_path / "run")]) == 0
    assert load_run(tmp_path / "run" / "specfit").settings["routes"]["source"] == "head"
    assert not list((tmp_path / "run").glob("*.npz"))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--routes", "head"], "no route head for this pair"),
        (["--routes", "prior"], "no route head for this pair"),
        (["--routes", "atlas", "--head", "HEAD"], "--head is read by --routes head and prior"),
        (["--routes", "head", "--head", "HEAD", "--atlas", "a.npz"], "head needs none"),
        (["--head", "COST"], "is no route head"),
        (["--head", "HEAD", "--drafter", "OTHER"], "other weights"),
    ],
)
def test_what_does_not_fit_is_one_sentence(
    tiny, pair, head, cost, tmp_path: Path, arguments: list[str], sentence: str, capsys
) -> None:
    tiny_drafter(tmp_path / "other", seed=5)
    words = {"HEAD": str(head), "COST": cost[1], "OTHER": str(tmp_path / "other")}
    given = [words.get(word, word) for word in arguments]
    assert main(["run", *pair, "--workload", str(tiny.questions), *cost, *given, "--out", str(tmp_path / "run")]) == 2
    assert sentence in said(capsys)


@pytest.mark.parametrize("text", ["noisy", "noisy:2", "heads", "-1", "nan", ""])
def test_an_unknown_source_names_the_known_ones(text: str, capsys) -> None:
    with pytest.raises(SystemExit):
        main(["run", f"--routes={text}"])
    assert "atlas, head, noisy:SHARE, last-token, prior" in said(capsys)


def test_a_bare_share_is_noise_on_the_atlas() -> None:
    assert route_choice("0.5") == route_choice("noisy:0.5") == RouteChoice(accuracy=0.5)


def test_train_routes_refuses_what_it_cannot_do(tiny, pair, head, capsys) -> None:
    assert main(["train-routes", *pair, "--out", str(head)]) == 2
    assert "--questions FILE" in said(capsys)
    assert main(["train-routes", *pair, "--questions", str(tiny.questions), "--out", str(head)]) == 2
    assert "is there already" in said(capsys)
    assert main(["train-routes", "--category", "one"]) == 2
    assert "give --questions" in said(capsys)


def test_a_choice_of_sources_in_python(tiny, head, tmp_path: Path) -> None:
    workload = spec_bench(tiny.questions, limit=1, limits=Limits(max_new_tokens=8), name="toy")
    choice = RouteChoice(source="head", head=RouteHead.load(head))
    with specfit.load_engine(tiny.target, drafter=tiny.drafter, self_test=False) as engine:
        run = run_method(engine, workload, tmp_path, method=SPECFIT, cost=COST, routes=choice, raw=True)
        assert run.complete and not choice.needs_atlas
        with pytest.raises(RunError, match="routes"):
            run_method(
                engine, workload, tmp_path, method=SPECFIT, cost=COST, routes=RouteChoice(source="last-token"), raw=True
            )
    with pytest.raises(ValueError, match="routes come from"):
        RouteChoice(source="magic")
    with pytest.raises(ValueError, match="has its own"):
        RouteChoice(source="head", accuracy=0.6)
