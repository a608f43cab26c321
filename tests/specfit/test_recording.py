"""Recordings that are stopped go on: killed at any moment, refused over other settings, and gone when they are done."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest

import specfit
from specfit.half_made import HalfMade, RecordingError
from specfit.recording import ensure_atlas, record_world
from specfit.workloads import Limits, spec_bench

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def engine(tiny):
    with specfit.load_engine(tiny.target, drafter=tiny.drafter, self_test=False) as engine:
        yield engine


def toy(tiny, *, tokens: int = 6):
    return spec_bench(tiny.questions, limits=Limits(max_new_tokens=tokens), name="toy")


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL and fork")
def test_a_killed_recording_loses_one_question_at_most_and_ends_the_same(tiny, engine, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    record_world(engine, toy(tiny), raw=True, path=whole / "world.npz")
    ensure_atlas(whole / "atlas.npz", lambda: nullcontext(engine), toy(tiny), raw=True)
    assert {path.name for path in whole.iterdir()} == {"world.npz", "atlas.npz"}

    program, killed = Path(__file__).with_name("recording_sessions.py"), tmp_path / "killed"
    killed.mkdir()
    ended = subprocess.run(
        [sys.executable, str(program), *map(str, (tiny.target, tiny.drafter, tiny.questions, killed))],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-2000:]
    kills, decoded = map(int, ended.stdout.split())
    assert kills >= 4
    assert decoded <= 2 * 5 + 2 * kills  # two recordings of 5 prompts; a question that is lost has 1 or 2
    for name in ("world.npz", "atlas.npz"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes()


class Stop(Exception):
    pass


def stop_after(questions: int, done: int) -> None:
    if done == questions:
        raise Stop


def test_a_stopped_recording_with_other_settings_is_refused_by_name(tiny, engine, tmp_path: Path) -> None:
    path = tmp_path / "world.npz"
    with pytest.raises(Stop):
        record_world(engine, toy(tiny), raw=True, path=path, progress=partial(stop_after, 2))
    with pytest.raises(RecordingError, match=r"half-made .* \(limits.max_new_tokens: there 6, here 5; .* finish it"):
        record_world(engine, toy(tiny, tokens=5), raw=True, path=path)
    half = {"questions": [1], **engine.route_settings}
    with pytest.raises(RecordingError, match="is being recorded by process"), HalfMade(tmp_path / "busy", half) as busy:
        record_world(engine, toy(tiny), raw=True, path=busy.file)
    assert not (tmp_path / "busy.part").exists()  # which held no finished question
    told: list[int] = []
    assert len(record_world(engine, toy(tiny), raw=True, path=path, progress=told.append).prompts) == 5
    assert told == [1, 2, 3, 4] and [left.name for left in tmp_path.iterdir()] == ["world.npz"]


def test_an_atlas_that_another_session_made_in_the_meantime_is_taken(
    tiny, engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, prefill, decoded = tmp_path / "a.npz", engine.target.prefill, list[object]()
    monkeypatch.setattr(engine.target, "prefill", lambda ids: decoded.append(ids) or prefill(ids))
    entering = HalfMade.__enter__

    def late(self: HalfMade) -> HalfMade:  # the other one records between the look and the lock
        monkeypatch.setattr(HalfMade, "__enter__", entering)
        ensure_atlas(path, lambda: nullcontext(engine), toy(tiny), raw=True)
        return entering(self)

    monkeypatch.setattr(HalfMade, "__enter__", late)
    atlas = ensure_atlas(path, lambda: nullcontext(engine), toy(tiny), raw=True)
    assert len(decoded) == len(atlas.trajectories) == 5
    assert [left.name for left in tmp_path.iterdir()] == ["a.npz"]


def test_a_recording_that_ends_takes_nothing_of_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused, remove = list[str](), shutil.rmtree

    def while_it_goes(folder: Path, **more: bool) -> None:
        with pytest.raises(RecordingError, match="is being recorded") as busy:
            HalfMade(tmp_path / "w.npz", {"a": 1}).__enter__()
        refused.append(str(busy.value))
        remove(folder, **more)

    monkeypatch.setattr(shutil, "rmtree", while_it_goes)
    with HalfMade(tmp_path / "w.npz", {"a": 1}):
        pass
    assert len(refused) == 1 and not list(tmp_path.iterdir())


def test_a_damaged_note_of_what_is_recorded_is_named(tmp_path: Path) -> None:
    (tmp_path / "w.npz.part").mkdir()
    (tmp_path / "w.npz.part" / "asked.json").write_text("[" * 99_999)
    with pytest.raises(RecordingError, match=r"asked\.json is damaged \(it is nested too deeply"):
        HalfMade(tmp_path / "w.npz", {}).__enter__()


def test_a_question_whose_decoding_fails_is_left_out_where_that_is_asked(
    tiny, engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill = engine.target.prefill

    def no_room(ids: tuple[int, ...]) -> object:
        if len(ids) == 1:  # question 3
            raise MemoryError("no room")
        return prefill(ids)

    monkeypatch.setattr(engine.target, "prefill", no_room)
    record = partial(ensure_atlas, resident=lambda: nullcontext(engine), raw=True)
    with pytest.raises(MemoryError):
        record(tmp_path / "a.npz", workload=toy(tiny))
    assert len(record(tmp_path / "a.npz", workload=toy(tiny), keep_going=True).trajectories) == 4
    only = spec_bench(tiny.questions, ids=[3], limits=Limits(max_new_tokens=6))
    with pytest.raises(MemoryError):
        record(tmp_path / "b.npz", workload=only, keep_going=True)
    assert [left.name for left in tmp_path.iterdir()] == ["a.npz"]
