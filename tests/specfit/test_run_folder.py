"""The run folder: what is written comes back equal, whatever interrupts the writing."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import process_time, sleep
from typing import Any

import numpy as np
import pytest

from specfit.run_folder import RunError, RunWriter, load_failures, load_run, save_run
from tests.specfit.run_records import (
    EXPERTS,
    LAYERS,
    MACHINE,
    SETTINGS,
    append_until_killed,
    dice_request,
    dice_run,
    open_writer,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in ("lock", "sessions.jsonl")}


# -- round trip ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_records_come_back_equal(folder: Path, seed: int) -> None:
    run = dice_run(6, seed=seed)
    save_run(folder, run)
    assert load_run(folder) == run


def test_an_empty_run_comes_back_equal(folder: Path) -> None:
    save_run(folder, dice_run(0))
    assert load_run(folder) == dice_run(0)


def test_half_a_surrogate_pair_comes_back_equal(folder: Path) -> None:
    request = replace(dice_request(0), output_text="\ud83d", category="\ude00")
    save_run(folder, replace(dice_run(0), requests=(request,)))
    assert load_run(folder).requests == (request,)


def test_a_run_cut_short_says_so(folder: Path) -> None:
    writer = open_writer(folder)
    writer.append(dice_request(0))
    assert not load_run(folder).complete  # while it is being written
    writer.close()
    assert not load_run(folder).complete
    with open_writer(folder) as writer:
        writer.append(dice_request(1))
    assert load_run(folder).complete
    with open_writer(folder) as writer:
        pass
    assert load_run(folder).complete
    with suppress(KeyboardInterrupt), open_writer(folder) as writer:
        writer.append(dice_request(2))
        raise KeyboardInterrupt
    again = load_run(folder)
    assert not again.complete and again.requests == tuple(dice_request(number) for number in range(3))


def test_pandas_and_numpy_read_it_without_us(folder: Path) -> None:
    pandas = pytest.importorskip("pandas")
    run = dice_run(5)
    save_run(folder, run)
    requests = pandas.read_json(folder / "requests.jsonl", lines=True)
    cycles = pandas.read_json(folder / "cycles.jsonl", lines=True)
    assert list(requests.request_id) == [request.request_id for request in run.requests]
    assert cycles.misses.sum() == sum(cycle.counts.misses for _, cycle in run.cycles())
    header = json.loads((folder / "run.json").read_text())
    width = (header["layers"] * header["experts"] + 7) // 8
    rows = np.fromfile(folder / "routes.bin", np.uint8).reshape(-1, width)
    bits = np.unpackbits(rows, axis=1, count=LAYERS * EXPERTS, bitorder="little")
    last = run.cycles()[-1][1]
    union = bits[cycles.verified_rows.iloc[-1]].any(axis=0).sum()
    expected = last.verified.root
    for bitmap in last.verified.nodes:
        expected |= bitmap
    assert union == expected.bit_count()


def test_equal_bitmaps_of_a_request_are_stored_once(folder: Path) -> None:
    request = next(r for r in map(dice_request, range(50)) if any(c.truth and len(c.pool) > 2 for c in r.cycles))
    cycle = next(c for c in request.cycles if c.truth and len(c.pool) > 2)
    assert cycle.truth is not None
    cycle = replace(cycle, index=0, estimate=cycle.truth.routes)
    with open_writer(folder) as writer:
        writer.append(replace(request, cycles=(cycle,)))
    assert (folder / "routes.bin").stat().st_size == 3 * (1 + len(cycle.pool))


def test_numpy_scalars_are_numbers_and_come_back_equal(folder: Path) -> None:
    scalars: Any = {"request_ms": np.float64(3.5), "question_id": np.int64(4), "prompt_tokens": (np.int64(7),)}
    request = replace(dice_request(1), **scalars)
    with open_writer(folder, settings=SETTINGS | {"ids": (1, 2)}) as writer:
        writer.append(request)
    assert load_run(folder).requests == (request,)
    assert load_run(folder).settings["ids"] == [1, 2]


def test_token_texts_are_those_first_given(folder: Path) -> None:
    with open_writer(folder) as writer:
        writer.append(dice_request(0), tokens={5: "a", 6: "\u2028"})
    with open_writer(folder) as writer:
        writer.append(dice_request(1), tokens={5: "b", 7: "c"})
    assert load_run(folder).tokens == {5: "a", 6: "\u2028", 7: "c"}


def test_failures_are_kept_with_their_reason_until_the_request_is_done(folder: Path) -> None:
    with open_writer(folder) as writer:
        writer.append_failure("toy/0/0", "the template refuses it")
        writer.append_failure("toy/9/0", "NaN logits\u2028")
        writer.append(dice_request(0))
    assert load_failures(folder) == {"toy/9/0": "NaN logits\u2028"}
    assert [request.request_id for request in load_run(folder).requests] == ["toy/0/0"]


# -- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"request_ms": float("nan")}, r"request_ms is nan"),
        ({"request_ms": float("inf")}, r"request_ms is inf"),
        ({"extra": {"a": {"b": [0.0, float("-inf")]}}}, r"extra\.a\.b\[1\] is -inf"),
        ({"extra": {3: "x"}}, r"extra has the key 3"),
        ({"extra": {"x": {1, 2}}}, r"extra\.x is a set"),
        ({"extra": {"x": Path("x")}}, r"extra\.x is a \w*Path"),
        ({"prefill": None}, r"."),
    ],
)
def test_what_json_cannot_give_back_is_refused_and_nothing_written(folder: Path, change: dict, named: str) -> None:
    writer = open_writer(folder)
    writer.append(dice_request(0))
    before = contents(folder)
    with pytest.raises((RunError, AttributeError), match=named):
        writer.append(replace(dice_request(1), **change))
    assert contents(folder) == before
    writer.append(dice_request(1))
    writer.close()
    assert load_run(folder).requests == (dice_request(0), dice_request(1))


def test_settings_that_json_cannot_hold_are_refused_before_a_folder_is_made(folder: Path) -> None:
    with pytest.raises(RunError, match=r"settings\.limit is inf"):
        open_writer(folder, settings={"method": "ar", "limit": float("inf")})
    with pytest.raises(RunError, match="settings of a run name its method"):
        open_writer(folder, settings={"slots": 3})
    with pytest.raises(RunError, match="at least one MoE layer"):
        open_writer(folder, layers=0)
    assert not folder.exists()


def test_routes_of_another_shape_and_a_request_twice_are_refused(folder: Path) -> None:
    request = next(r for r in map(dice_request, range(9)) if r.cycles)
    with open_writer(folder, layers=2) as writer, pytest.raises(RunError, match=r"3 layers of 7 experts.*2 of 7"):
        writer.append(request)
    with open_writer(folder.with_name("other")) as writer:
        writer.append(request)
        with pytest.raises(RunError, match="is already in"):
            writer.append(request)
    with pytest.raises(RunError, match="is closed"):
        writer.append(dice_request(99))


def test_another_configuration_is_refused_by_the_keys_that_differ(folder: Path) -> None:
    with open_writer(folder, settings=SETTINGS | {"started": "then", "a": 1, "seed": 1}) as writer:
        writer.append(dice_request(0))
    before = contents(folder)
    other = {**SETTINGS, "started": "now", "link": {"kind": "cuda", "gb_s": 1.5}, "b": True, "seed": True}
    with pytest.raises(RunError) as caught:
        open_writer(folder, settings=other, experts=9)
    text = str(caught.value)
    for part in (
        "experts: there 7, here 9",
        'link.kind: there "emulated", here "cuda"',
        "a: only there",
        "b: only here",
    ):
        assert part in text
    assert "seed: there 1, here true" in text and "gb_s" not in text and "started" not in text
    assert contents(folder) == before


def test_a_changed_machine_is_noted_and_stays_in_the_record(folder: Path) -> None:
    open_writer(folder).close()
    open_writer(folder, machine=MACHINE | {"started": "later"}).close()
    assert load_run(folder).machine == MACHINE
    writer = open_writer(folder, machine=MACHINE | {"processor": "other"})
    writer.close()
    assert len(writer.notes) == 1 and 'processor: there "toy", here "other"' in writer.notes[0]
    assert load_run(folder).machine == MACHINE | {"other_machines": [MACHINE | {"processor": "other"}]}


def test_a_folder_that_is_no_run_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(RunError, match=r"is no run but holds 'thesis\.tex'"):
        open_writer(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(RunError, match="is a file"):
        open_writer(tmp_path / "thesis.tex")
    for path, why in [("", "has no run.json"), ("thesis.tex", "is a file"), ("nowhere", "does not exist")]:
        with pytest.raises(RunError, match=why):
            load_run(tmp_path / path)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('{"format": "specfit-run", "version": 7}', "format version 7; this specfit reads version 1"),
        ('{"format": "other", "version": 1}', "holds 'other'"),
        ('{"format": "specfit-run", "version": 1}', "layers, experts, settings or machine is missing"),
        ("{", "run.json is damaged"),
        ("[]", "run.json is damaged"),
    ],
)
def test_another_version_is_refused_by_name(folder: Path, text: str, named: str) -> None:
    save_run(folder, dice_run(1))
    (folder / "run.json").write_text(text)
    with pytest.raises(RunError, match=named):
        load_run(folder)
    with pytest.raises(RunError, match=named):
        open_writer(folder)


# -- torn and damaged files ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tail", [b'{"question_id":2,"tok', '{"text": "\U0001f600'.encode()[:-2], b"\x00" * 9, b"12", b"[]", b" "]
)
def test_a_torn_last_line_is_passed_over_and_cut_on_resuming(folder: Path, tail: bytes) -> None:
    open_writer(folder).close()
    with open_writer(folder) as writer:
        writer.append(dice_request(0))
    with open(folder / "requests.jsonl", "ab") as file:
        file.write(tail)
    assert load_run(folder).requests == (dice_request(0),)
    with open_writer(folder) as writer:
        assert writer.finished == ("toy/0/0",)
        writer.append(dice_request(1))
    assert (folder / "requests.torn").read_bytes() == tail + b"\n"
    assert load_run(folder).requests == (dice_request(0), dice_request(1))


def test_a_whole_last_line_without_newline_counts_and_gets_one(folder: Path) -> None:
    save_run(folder, dice_run(2))
    path = folder / "requests.jsonl"
    path.write_bytes(path.read_bytes()[:-1])
    assert load_run(folder) == dice_run(2)
    with open_writer(folder) as writer:
        writer.append(dice_request(2))
    assert load_run(folder) == dice_run(3)


@pytest.mark.parametrize("raw", [b"{}", b'{"a": 1', b"", b"\xff", b'{"request_id": NaN}'])
def test_damage_in_the_middle_is_refused_with_the_line_number(folder: Path, raw: bytes) -> None:
    save_run(folder, dice_run(4))
    path = folder / "requests.jsonl"
    lines = path.read_bytes().split(b"\n")
    lines[2] = raw
    path.write_bytes(b"\n".join(lines))
    for attempt in (load_run, open_writer):
        with pytest.raises(RunError, match=r"requests\.jsonl is damaged: line 3: "):
            attempt(folder)


@pytest.mark.parametrize(
    ("find", "put"),
    [(b'"index": 0', b'"index": 5'), (b'"root"', b'"toor"'), (b'"verified_rows": [', b'"verified_rows": [999999, ')],
)
def test_a_damaged_cycle_is_refused_with_the_line_number(folder: Path, find: bytes, put: bytes) -> None:
    save_run(folder, dice_run(4))
    path = folder / "cycles.jsonl"
    lines = path.read_bytes().split(b"\n")
    number = next(number for number, line in enumerate(lines) if number > 1 and find in line)
    lines[number] = lines[number].replace(find, put, 1)
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(RunError, match=rf"cycles\.jsonl is damaged: line {number + 1}: "):
        load_run(folder)


@pytest.mark.parametrize("name", ["cycles.jsonl", "routes.bin", "requests.jsonl"])
def test_files_that_hold_less_than_the_requests_say_are_refused(folder: Path, name: str) -> None:
    save_run(folder, dice_run(4))
    path = folder / name
    path.write_bytes(path.read_bytes()[:-1]) if name != "requests.jsonl" else path.unlink()
    for attempt in (load_run, open_writer):
        with pytest.raises(RunError, match=rf"{name}"):
            attempt(folder)


def test_a_repeated_request_is_refused_with_the_line_number(folder: Path) -> None:
    save_run(folder, dice_run(2))
    path = folder / "requests.jsonl"
    path.write_bytes(path.read_bytes() * 2)
    with pytest.raises(RunError, match="line 3: request 'toy/0/0' is there already"):
        load_run(folder)


# -- interruptions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("left", [[], ["lock"], ["lock", "routes.bin", "cycles.jsonl"], ["lock", "run.json.new"]])
def test_a_stop_while_the_run_is_created_leaves_a_folder_that_can_be_used(folder: Path, left: list[str]) -> None:
    folder.mkdir()
    for name in left:
        (folder / name).write_text("{" if name == "run.json.new" else "")
    save_run(folder, dice_run(2))
    assert load_run(folder) == dice_run(2)


def test_a_stop_at_any_byte_loses_only_the_unfinished_request(folder: Path, tmp_path: Path) -> None:
    names = ("routes.bin", "cycles.jsonl", "requests.jsonl")  # the order of writing
    requests = [r for r in map(dice_request, range(20)) if len(r.cycles) > 1][:3]
    with open_writer(folder) as writer:
        writer.append(requests[0])
        before = contents(folder)
        writer.append(requests[1])
    added = [contents(folder)[name][len(before[name]) :] for name in names]
    total = sum(map(len, added))
    for stop in sorted({*range(0, total, total // 36), *range(total - 5, total + 1)}):
        copy = tmp_path / f"stop-{stop}"
        shutil.copytree(folder, copy)
        left = stop
        for name, data in zip(names, added, strict=True):
            (copy / name).write_bytes(before[name] + data[: max(left, 0)])
            left -= len(data)
        kept = 2 if stop >= total - 1 else 1  # a last line without its newline is whole
        assert load_run(copy).requests == tuple(requests[:kept])
        with open_writer(copy) as writer:
            for request in requests:
                if request.request_id not in writer.finished:
                    writer.append(request)
        assert load_run(copy).requests == tuple(requests)


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def start_writing(folder: Path, chunk: int | None, *, wait: bool = True) -> Any:
    """Another process that writes to the folder; with `wait`, one that has opened it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.specfit.run_records"])
    sessions = folder / "sessions.jsonl"
    size = size_of(sessions)
    child = context.Process(target=append_until_killed, args=(str(folder), chunk))
    child.start()
    for _ in range(30_000 if wait else 0):
        if size_of(sessions) > size:
            return child
        sleep(0.002)
    assert not wait, "the other process never opened the folder"
    return child


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_killed_writers_lose_and_repeat_nothing(folder: Path) -> None:
    dice = random.Random(4)
    kept = 0
    for kill in range(24):
        child = start_writing(folder, dice.choice([None, 1, 11, 200]), wait=bool(kill % 6))
        child.join(dice.uniform(0, 0.06))
        child.kill()
        child.join()
        assert child.exitcode == -signal.SIGKILL
        if not (folder / "run.json").exists():
            continue  # too early to have begun
        found = load_run(folder)
        assert found.requests == tuple(dice_request(number) for number in range(len(found.requests)))
        assert len(found.requests) >= kept
        assert not found.complete
        kept = len(found.requests)
    assert kept
    append_until_killed(str(folder), None, requests=kept + 3)
    again = load_run(folder)
    assert again.complete and again.requests == tuple(dice_request(number) for number in range(kept + 3))


def test_a_second_writer_is_refused_and_told_who_holds_the_folder(folder: Path) -> None:
    with open_writer(folder), pytest.raises(RunError, match=f"is being written by process {os.getpid()}, since 20"):
        open_writer(folder)
    open_writer(folder).close()


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_another_process_is_refused_until_the_first_dies(folder: Path) -> None:
    child = start_writing(folder, 1)
    with pytest.raises(RunError, match=f"process {child.pid}"):
        open_writer(folder)
    child.kill()
    child.join()
    open_writer(folder).close()


def on_a_small_disk(folder: str, limit: int) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    with open_writer(folder) as writer:
        try:
            for number in range(len(writer.finished), 1000):
                writer.append(dice_request(number))
        except RunError as error:
            Path(folder).with_name("said.txt").write_text(f"{len(writer.finished)} {error}"[:limit])
            with pytest.raises(RunError, match="is closed"):
                writer.append(dice_request(number))
            raise SystemExit(3) from None


@pytest.mark.skipif(sys.platform == "win32", reason="no resource limits")
@pytest.mark.parametrize("limit", [5000, 20011])
def test_a_full_disk_ends_in_one_sentence_and_the_run_resumes(folder: Path, limit: int) -> None:
    context = multiprocessing.get_context("forkserver")
    for round_limit in (limit, 2 * limit):
        child = context.Process(target=on_a_small_disk, args=(str(folder), round_limit))
        child.start()
        child.join()
        assert child.exitcode == 3
        count, text = (folder.with_name("said.txt")).read_text().split(" ", 1)
        assert f"saving request 'toy/{count}/0' in {folder} failed: a limit on file sizes is reached" in text
        assert f"its {count} finished requests are kept" in text and "resume" in text
        assert load_run(folder).requests == tuple(dice_request(number) for number in range(int(count)))
        assert not (folder / "requests.torn").exists()  # the failed request was taken back
    with open_writer(folder) as writer:
        writer.append(dice_request(int(count)))
    assert len(load_run(folder).requests) == int(count) + 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_no_room_for_a_line_at_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = open_writer(folder)
    writer.append(dice_request(0))
    with open("/dev/full", "wb", buffering=0) as full:
        monkeypatch.setitem(writer._files, "requests.jsonl", full)
        with pytest.raises(RunError, match="the disk is full; its 1 finished requests are kept"):
            writer.append(dice_request(1))
    assert load_run(folder).requests == (dice_request(0),)
    with open_writer(folder) as writer:
        writer.append(dice_request(1))
    assert load_run(folder).requests == (dice_request(0), dice_request(1))


def test_ctrl_c_in_the_middle_of_a_write_takes_the_request_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules[RunWriter.__module__]
    whole: Any = module.write_all
    calls: list[bytes] = []

    def interrupted(file: Any, data: bytes) -> None:
        calls.append(data)
        if len(calls) == 3:
            whole(file, data[:10])
            raise KeyboardInterrupt
        whole(file, data)

    with open_writer(folder) as writer:
        writer.append(dice_request(0))
    writer = open_writer(folder)
    monkeypatch.setattr(module, "write_all", interrupted)
    with pytest.raises(KeyboardInterrupt):
        writer.append(dice_request(1))
    monkeypatch.undo()
    assert [len(calls), (folder / "requests.jsonl").read_bytes().count(b"\n")] == [3, 1]
    assert load_run(folder).requests == (dice_request(0),)


def test_a_folder_that_cannot_be_written_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, *args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(RunError, match=f"opening the run in {folder} failed: permission is denied"):
        open_writer(folder)


def test_a_thousand_cycles_open_quickly(folder: Path) -> None:
    cycles = [cycle for number in range(600) for cycle in dice_request(number).cycles]
    cycles = [replace(cycle, index=index) for index, cycle in enumerate(cycles)]
    assert len(cycles) > 1000
    run = replace(dice_run(0), requests=(replace(dice_request(0), cycles=tuple(cycles)),))
    save_run(folder, run)
    start = process_time()  # not the wall clock: the machine may be busy
    found = load_run(folder)
    assert process_time() - start < 2
    assert found == run
