"""`specfit atlas`: record the routes of a workload."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from specfit.commands import options as add_options
from specfit.commands.setup import make_atlas, make_workload, set_threads


def add(commands: Any) -> None:
    atlas = commands.add_parser("atlas", help="record the routes of a workload", allow_abbrev=False)
    add_options.questions(atlas)
    add_options.configuration(atlas)
    atlas.add_argument("--out", type=Path, default=Path("atlas.npz"), metavar="FILE")
    atlas.set_defaults(command=_atlas)


def _atlas(options: argparse.Namespace) -> None:
    set_threads(options)
    workload = make_workload(options)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    atlas = make_atlas(options, workload, options.out)
    positions = sum(len(trajectory.entries) for trajectory in atlas.trajectories)
    print(f"{len(atlas.trajectories)} prompts, {positions} positions\n{options.out}")
