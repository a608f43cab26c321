"""`specfit train-embedded`: make the embedded pair again, from nothing."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    train = commands.add_parser("train-embedded", help="make the embedded pair again, from nothing", allow_abbrev=False)
    train.add_argument("--out", type=Path, required=True, metavar="DIR")
    train.add_argument("--seed", type=int, default=0)
    train.set_defaults(command=_train)


def _train(options: argparse.Namespace) -> None:
    from specfit.embedded.train import main as train  # here: it loads torch

    train(options.out, seed=options.seed)
