"""World files: what is saved comes back, and what is no world, or does not fit together, is refused in a sentence."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import specfit
from specfit.objective import CycleState
from specfit.workloads import Limits, Workload, spec_bench
from specfit.world import Position, World, WorldError, embedded_world
from tests.recorded import toy_recording
from tests.toys import EXPERTS, ToyDrafter, ToyWorld


def assert_equal(one: World, other: World) -> None:
    """In every part; arrays by value."""
    for name in ("workload", "layers", "experts", "layer_experts", "eos", "made_with", "tokens", "skipped"):
        assert getattr(one, name) == getattr(other, name), name
    for a, b in zip(one.prompts, other.prompts, strict=True):
        assert replace(a, positions=()) == replace(b, positions=())
        for p, q in zip(a.positions, b.positions, strict=True):
            assert (p.pool, p.next_tokens) == (q.pool, q.next_tokens)
            assert (p.indices == q.indices).all()


def test_save_and_load_are_inverse(tmp_path: Path) -> None:
    for number, world in enumerate(
        (
            toy_recording(ToyWorld(1)),
            toy_recording(ToyWorld(2), limit=1),  # prompts without a single position
            toy_recording(ToyWorld(3), ((1,), (2, 3)), eos=(4,), top_k=3, depth=2),
        )
    ):
        path = tmp_path / f"{number}.npz"
        world.save(path)
        assert_equal(World.load(path), world)
        again = tmp_path / "again.npz"
        World.load(path).save(again)
        assert_equal(World.load(again), world)
    assert not list(tmp_path.glob("*.new"))


def test_levels_are_what_a_drafter_yields() -> None:
    toy = ToyWorld(5)
    world = toy_recording(toy)
    for prompt in world.prompts:
        for at, position in enumerate(prompt.positions[:6]):
            drafter = ToyDrafter(toy)
            drafter.context = [*prompt.prompt, *prompt.output[: at + 1]]
            assert position.levels == tuple(drafter.levels(max_depth=5))
            context = drafter.context
            assert position.routes(EXPERTS) == toy.routes(context, position.pool)
    assert len(list(world.states())) == world.positions
    assert isinstance(next(world.states()), CycleState)


def test_a_file_that_is_no_world_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "world.npz"
    toy_recording(ToyWorld(1)).save(path)
    whole = path.read_bytes()
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    np.savez(tmp_path / "about.npz", about=np.array("[1]"))
    np.savez(tmp_path / "deep.npz", about=np.array("[" * 99_999))
    np.savez(tmp_path / "pickle.npz", about=np.array([{"a": 1}], dtype=object))
    np.save(tmp_path / "array.npy", np.zeros(3))
    broken = [whole[:40], whole[: len(whole) // 2], whole[:-30], b"", b"not a world"]
    broken.append(whole[: len(whole) // 2] + b"\0" * 200 + whole[len(whole) // 2 + 200 :])
    broken += [
        (tmp_path / name).read_bytes() for name in ("other.npz", "about.npz", "deep.npz", "pickle.npz", "array.npy")
    ]
    for content in broken:
        path.write_bytes(content)
        with pytest.raises(WorldError, match=r"world.npz is no world.*record one with `specfit record`"):
            World.load(path)
    with pytest.raises(WorldError, match=r"missing.npz is no world"):
        World.load(tmp_path / "missing.npz")


def changed(path: Path, **columns: object) -> Path:
    """The file with other columns; `about` as a function of its dict."""
    with np.load(path, allow_pickle=False) as file:
        data = {name: file[name] for name in file.files}
    for name, change in columns.items():
        if name == "about":
            about = json.loads(str(data["about"]))
            change(about)
            data["about"] = np.array(json.dumps(about))
        else:
            data[name] = change(data[name])
    np.savez_compressed(path, **data)
    return path


def older(about: dict) -> None:
    about["version"] = 0


def an_atlas(about: dict) -> None:
    del about["format"]


def nameless(about: dict) -> None:
    del about["prompts"][0]["request_id"]


@pytest.mark.parametrize(
    ("columns", "match"),
    [
        ({"about": older}, "it has version 0, and this specfit reads 1"),
        ({"about": an_atlas}, "it does not call itself one"),
        ({"about": nameless}, "request_id"),
        ({"tokens": lambda x: x[:-1]}, "its columns are shorter than it says"),
        ({"next_tokens": lambda x: np.append(x, 1)}, "its columns are longer than it says"),
        ({"next_tokens": lambda x: (x + 1) % 12}, "predicts another token than the one that follows"),
        ({"path_probs": lambda x: x * np.nan}, "path probability nan; expected a number in"),
        ({"parents": lambda x: x + 40}, "a parent is ROOT"),
        ({"indices": lambda x: x + 8}, "names an expert that its layer does not have"),
        ({"indices": lambda x: x[:, :-1]}, r"has routes of shape \(\d+, 2, 2\)"),
        ({"prefill": lambda x: x + 8}, "names wrong experts in layer 0's prefill; ids are 0..7"),
        ({"prefill": lambda x: x * 0}, "names wrong experts"),
        ({"lengths": lambda x: x * 0}, "longer than it says"),
        ({"lengths": lambda x: -x}, "shorter than it says"),
    ],
)
def test_columns_that_do_not_fit_together(columns: dict, match: str, tmp_path: Path) -> None:
    path = tmp_path / "world.npz"
    toy_recording(ToyWorld(1)).save(path)
    with pytest.raises(WorldError, match=match):
        World.load(changed(path, **columns))


def test_a_stale_world_names_what_differs() -> None:
    world = toy_recording(ToyWorld(1))
    world.check(world.made_with)
    with pytest.raises(WorldError, match=r"the world is stale \(dtype: float32 then, bfloat16 now\)"):
        world.check({**world.made_with, "dtype": "bfloat16"})


def test_a_world_has_prompts_and_a_part_of_it_too() -> None:
    world = toy_recording(ToyWorld(1))
    assert world.first(2).prompts == world.prompts[:2]
    assert repr(world) == "<World toy: 3 prompts, 117 positions, 3 layers x 8 experts>"
    for count in (0, 4, -1):
        with pytest.raises(WorldError, match=f"{count} prompts were asked of a world of 3"):
            world.first(count)
    with pytest.raises(WorldError, match="the world of 'toy' holds no prompts"):
        replace(world, prompts=())
    with pytest.raises(WorldError, match="a world of 3 layers x 8 experts names"):
        replace(world, layer_experts=(8, 8))


def test_a_position_that_predicts_another_text_is_refused() -> None:
    world = toy_recording(ToyWorld(1))
    first = world.prompts[0]
    wrong = Position(first.positions[0].pool, first.positions[0].indices, (99, *first.positions[0].next_tokens[1:]))
    with pytest.raises(WorldError, match="position 0 of prompt 'toy/0/0' predicts another token"):
        replace(world, prompts=(replace(first, positions=(wrong, *first.positions[1:])),))


@pytest.mark.parametrize(("name", "prompts"), [("problems", 30), ("news", 30), ("calibration", 12)])
def test_worlds_ship_with_the_package(name: str, prompts: int) -> None:
    world = embedded_world(name)
    assert len(world.prompts) == prompts
    assert all(prompt.output[-1] in world.eos for prompt in world.prompts)
    assert not world.skipped
    if name != "calibration":
        asked = specfit.embedded_workload(name, count=prompts)
        assert [prompt.request_id for prompt in world.prompts] == [asked.request_id(q) for q in asked.questions]


def test_no_other_world_ships() -> None:
    with pytest.raises(WorldError, match=r"no world '\.\./x' ships with the package; choose one of calibration, news"):
        embedded_world("../x")


def test_recording_leaves_out_what_does_not_fit_and_says_why(tiny) -> None:
    workload = spec_bench(tiny.questions, limits=Limits(max_new_tokens=3), name="toy")
    long = replace(workload.questions[1], turns=(" ".join(["t1"] * 300), "t1"))
    told: list[int] = []
    with specfit.load_engine(tiny.target, drafter=tiny.drafter, self_test=False) as engine:
        mixed = replace(workload, questions=(workload.questions[0], long))
        world = specfit.record_world(engine, mixed, raw=True, progress=told.append)
        with pytest.raises(ValueError, match="no prompt of workload 'toy' could be recorded: the prompt has 300"):
            specfit.record_world(engine, Workload("toy", (long,), workload.limits), raw=True)
    assert [prompt.request_id for prompt in world.prompts] == ["toy/1/0"]
    assert list(world.skipped) == ["toy/2/0"] and "300 tokens" in world.skipped["toy/2/0"]
    assert told == [1, 2]
    with (
        specfit.load_engine(tiny.target, self_test=False) as engine,
        pytest.raises(ValueError, match="load the engine with a drafter"),
    ):
        specfit.record_world(engine, workload, raw=True)
