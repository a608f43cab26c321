"""`specfit export-answers`: runs as Spec-Bench answer files."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from specfit.answers import write_answers
from specfit.report import printable
from specfit.runs import find_runs
from specfit.safe_files import safe_name


def add(commands: Any) -> None:
    answers = commands.add_parser(
        "export-answers", help="answer files that Spec-Bench's speed.py and equal.py read", allow_abbrev=False
    )
    answers.add_argument("folders", nargs="+", type=Path, metavar="RUN", help="run folders, or folders that hold some")
    answers.add_argument("--out", type=Path, required=True, metavar="DIR")
    answers.set_defaults(command=_export)


def _export(options: argparse.Namespace) -> None:
    taken: dict[Path, Path] = {}
    for folder in find_runs(options.folders):
        path = options.out / f"{safe_name(folder.resolve().name)}.jsonl"
        if path in taken:
            raise ValueError(f"{folder} and {taken[path]} would both be written to {path}; export one after the other")
        taken[path] = folder
    for path, folder in taken.items():
        answers = write_answers(folder, path)
        print(f"{path}: {len(answers.lines)} questions")
        for note in answers.notes:
            print(printable(f"  {note}"))
