"""`specfit train-embedded`: make the embedded pair again, from nothing."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from specfit.commands import options as add_options
from specfit.commands.places import no_empty_folders

WRITTEN = ("target", "drafter", "figures.txt")


def add(commands: Any) -> None:
    train = commands.add_parser("train-embedded", help="make the embedded pair again, from nothing", allow_abbrev=False)
    train.add_argument("--out", type=Path, required=True, metavar="DIR")
    add_options.seed(train, "everything")
    train.set_defaults(command=_train)


def _train(options: argparse.Namespace) -> None:
    with no_empty_folders(options.out):
        there = [name for name in WRITTEN if (options.out / name).exists()]
        if there:
            raise ValueError(f"{options.out} holds {there[0]!r} already; give another --out, or move it away")
        from specfit.embedded.train import main as train  # here: it loads torch

        train(options.out, seed=options.seed)
