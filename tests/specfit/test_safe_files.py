"""Names that every file system takes, folders that are always new, and files that a crash cannot spoil."""

from __future__ import annotations

import os
from pathlib import Path, PureWindowsPath

import pytest

from specfit.safe_files import disk_errors, new_folder, parse_json, replace_file, safe_name, write_all

ODD = [
    "org/na:me", "a/b\\c?*", "x" * 300, "CON", "con", "nul", "com1", "LPT9", "a.", "a ", "", ".", "..", "-", "_a",
    "Model", "model!", "\u4e2d\u6587", "\ud800", "a\x00b", "a\u2028b", "a-0123456789", "a--b", "a-", "~",
    "2026-11-29T17:00",
]  # fmt: skip


def test_odd_texts_become_names_that_every_system_takes_and_stay_apart() -> None:
    names = [safe_name(text) for text in ODD]
    assert len({name.lower() for name in names}) == len(ODD)
    for name in names:
        assert 0 < len(name) <= 60 and name == name.lower() and name.isascii()
        assert not set(name) - set("abcdefghijklmnopqrstuvwxyz0123456789-_")
        assert PureWindowsPath(name).name == name and Path(name).name == name
        assert name not in ("con", "nul", "com1", "lpt9")
        assert safe_name(name) == name or name[-11] == "-"


@pytest.mark.parametrize("text", ["problems", "spec-bench-math_reasoning", "run-3", "24_slots"])
def test_a_plain_name_stays(text: str) -> None:
    assert safe_name(text) == text


def test_case_alone_makes_another_name() -> None:
    assert safe_name("Run").lower() != safe_name("run").lower()
    assert safe_name("x" * 61)[:40] == "x" * 40 and safe_name("x" * 61) != safe_name("x" * 62)


def test_folders_made_in_the_same_second_are_apart(tmp_path: Path) -> None:
    made = [new_folder(tmp_path / "runs", "org/na:me") for _ in range(5)]
    assert len(set(made)) == 5 and all(folder.is_dir() and ":" not in folder.name for folder in made)


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    replace_file(path, b"old")
    monkeypatch.setattr(os, "fsync", lambda file: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"


def test_a_file_that_takes_a_part_gets_the_rest(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, True)
    with open(writing, "wb", buffering=0) as file, open(reading, "rb") as other:
        write_all(file, b"x" * 5000)
        assert other.read(5000) == b"x" * 5000
    with open(tmp_path / "empty", "wb", buffering=0) as file:
        write_all(file, b"")


@pytest.mark.parametrize(
    ("number", "words"), [(28, "the disk is full"), (30, "the disk is read-only"), (5, "Input/output error")]
)
def test_disk_errors_are_one_sentence(number: int, words: str) -> None:
    with (
        pytest.raises(ValueError, match=rf"^saving failed: {words} \(b\.txt\); try again$"),
        disk_errors(ValueError, "saving", "try again"),
    ):
        raise OSError(number, os.strerror(number), "/a/b.txt")


def test_json_that_no_parser_takes_is_a_value_error() -> None:
    assert parse_json(b'{"a": [1]}') == {"a": [1]}
    for text in ("[" * 99_999, '{"a":' * 99_999, b"\xff", ""):
        with pytest.raises(ValueError):
            parse_json(text)
