"""Losslessness against the library's own model: exact in float32, up to near-ties in bfloat16, and wrong is caught."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from specfit import embedded_workload
from specfit.cli import main
from specfit.engine.engine import Engine, load_engine
from specfit.engine.near_ties import (
    NEAR_TIE,
    GreedyText,
    check_lossless,
    engine_reference,
    first_difference,
    library_reference,
    ulp,
)
from specfit.methods import AR, EAGLE3
from tests.models import tiny_pair

torch.set_num_threads(1)
PROMPTS = [[3, 9, 27], [5], [40, 41, 40, 41, 40]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_pair(tmp_path_factory.mktemp("pair"))


def load(folder: Path, **settings: Any) -> Engine:
    return load_engine(folder / "target", drafter=folder / "drafter", device="cpu", self_test=False, **settings)


# -- one difference --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "dtype", "step"),
    [
        (16.0, torch.bfloat16, 0.125),
        (15.9, torch.bfloat16, 0.0625),
        (-3.0, torch.bfloat16, 2**-6),
        (1.0, torch.float16, 2**-10),
        (1.0, torch.float32, 2**-23),
    ],
)
def test_a_unit_in_the_last_place_is_the_step_to_the_next_number(value: float, dtype: torch.dtype, step: float) -> None:
    assert ulp(value, dtype) == step
    here = torch.tensor(value, dtype=dtype)
    assert float((torch.nextafter(here.abs(), torch.tensor(math.inf, dtype=dtype)) - here.abs()).double()) == step
    assert ulp(0.0, dtype) > 0


def text_of(*rows: tuple[float, ...], dtype: torch.dtype = torch.bfloat16) -> GreedyText:
    logits = tuple(torch.tensor(row, dtype=dtype) for row in rows)
    return GreedyText(tuple(int(row.argmax()) for row in logits), logits)


def test_the_first_difference_is_told_with_its_gaps() -> None:
    expected = text_of((0.0, 9.0, 1.0), (16.0, 15.5, 2.0), (1.0, 2.0, 3.0))
    assert first_difference(expected, [1, 0, 2]) is None
    near = first_difference(expected, [1, 1, 0])
    assert near is not None
    assert (near.position, near.expected, near.found, near.top_2_gap, near.gap) == (1, 0, 1, 0.5, 0.5)
    assert near.ulps == 4 <= NEAR_TIE and near.near_tie
    far = first_difference(expected, [1, 2, 2])  # not the token that was nearly as good, but another one
    assert far is not None and far.top_2_gap == 0.5 and far.gap == 14 and not far.near_tie


def test_in_float32_no_difference_is_a_near_tie() -> None:
    tie = first_difference(text_of((5.0, 5.0), dtype=torch.float32), [1])
    assert tie is not None and tie.ulps == 0 and not tie.near_tie


def test_a_text_that_ends_early_is_no_near_tie() -> None:
    expected = text_of((0.0, 9.0), (9.0, 0.0))
    short = first_difference(expected, [1])
    assert short is not None and (short.position, short.found) == (1, -1) and not short.near_tie
    with pytest.raises(ValueError, match="the text goes on after token 2"):
        first_difference(expected, [1, 0, 0])


# -- whole engines ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reference", [library_reference, engine_reference])
def test_in_float32_the_texts_are_equal(folder: Path, reference: Any) -> None:
    with load(folder, slots_per_layer=3) as engine:
        found = check_lossless(engine, PROMPTS, reference(engine), methods=(AR, EAGLE3), max_new_tokens=16)
    assert [(one.prompt, one.method, one.tokens) for one in found] == [
        (number, method, 16) for number in range(3) for method in ("ar", "eagle3")
    ]
    assert all(one.difference is None for one in found)


def test_the_references_logits_are_what_its_tokens_came_from(folder: Path) -> None:
    with load(folder) as engine:
        library, own = library_reference(engine)(PROMPTS[0], 6), engine_reference(engine)(PROMPTS[0], 6)
    assert library.tokens == own.tokens and len(library.logits) == len(own.logits) == 6
    for theirs, ours, token in zip(library.logits, own.logits, own.tokens, strict=True):
        assert int(ours.argmax()) == token and torch.allclose(theirs, ours, atol=1e-4)


def test_the_embedded_pair_in_bfloat16_differs_by_near_ties_at_most() -> None:
    with load_engine("embedded", dtype="bfloat16", device="cpu") as engine:
        prompts = [engine.encode(question.turns[0]) for question in embedded_workload("news", count=2).questions]
        found = check_lossless(engine, prompts, library_reference(engine), methods=(AR, EAGLE3), max_new_tokens=24)
    assert len(found) == 4
    assert all(one.difference is None or one.difference.near_tie for one in found), found


def changed(folder: Path, copy: Path) -> Path:
    """A copy of the pair whose target has another output matrix: an engine that computes something else."""
    shutil.copytree(folder, copy)
    weights = load_file(copy / "target" / "model.safetensors")
    weights["lm_head.weight"] = weights["lm_head.weight"].flip(0).contiguous()
    save_file(weights, copy / "target" / "model.safetensors", metadata={"format": "pt"})
    return copy


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_wrong_engine_is_caught(folder: Path, tmp_path: Path, dtype: str) -> None:
    with load(folder, dtype=dtype) as engine:
        right = library_reference(engine)
    with load(changed(folder, tmp_path / "wrong"), dtype=dtype) as engine:
        found = check_lossless(engine, PROMPTS, right, methods=(AR, EAGLE3), max_new_tokens=8)
    assert all(one.difference is not None and not one.difference.near_tie for one in found)


def test_a_tree_that_sees_too_much_is_caught_by_the_engines_own_reference(folder: Path, monkeypatch) -> None:
    """The self-test would refuse it; where that is off, this does."""
    from specfit.engine.target import OffloadedTarget

    honest = OffloadedTarget._tree_mask
    with load(folder, dtype="bfloat16") as engine:
        monkeypatch.setattr(OffloadedTarget, "_tree_mask", lambda *args: torch.zeros_like(honest(*args)))
        reference = engine_reference(engine)
        found = check_lossless(engine, PROMPTS, reference, methods=(EAGLE3,), max_new_tokens=30)
    assert any(one.difference is not None and not one.difference.near_tie for one in found)


# -- the command -----------------------------------------------------------------------------------------------------


def test_the_command_names_its_reference_and_fails_by_name(tiny, tmp_path: Path, capsys) -> None:
    pair = ["--target", str(tiny.target), "--drafter", str(tiny.drafter)]
    what = ["--workload", str(tiny.questions), "--category", "one", "--raw", "--max-new-tokens", "8"]
    assert main(["check-lossless", *pair, *what]) == 0
    printed = capsys.readouterr().out
    assert "reference: the library's own model, float32; 2 prompts, up to 8 tokens each" in printed
    assert [line.split(":")[0] for line in printed.splitlines()[1:]] == ["ar", "eagle3", "specfit"]
    assert printed.count("2 of 2 texts equal, 16 tokens before a difference") == 3
    assert main(["check-lossless", *pair, *what, "--dtype", "bfloat16", "--reference", "engine"]) == 0
    assert "reference: this engine's AR, bfloat16" in capsys.readouterr().out
    assert main(["check-lossless", *pair[:2], *what, "--reference", "engine"]) == 2
    assert "without a drafter there is only AR to check" in capsys.readouterr().err
