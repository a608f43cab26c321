"""`specfit atlas`: record the routes of a workload."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from specfit.commands import options as add_options
from specfit.commands.places import output_file
from specfit.commands.setup import make_atlas, make_workload, need_drafter, set_threads


def add(commands: Any) -> None:
    atlas = commands.add_parser("atlas", help="record the routes of a workload", allow_abbrev=False)
    add_options.questions(atlas)
    add_options.pair(atlas)
    atlas.add_argument("--device-memory", metavar="SIZE", help="of the GPU, such as 20GB (what it has free)")
    atlas.add_argument("--out", type=Path, default=Path("atlas.npz"), metavar="FILE")
    atlas.set_defaults(command=_atlas)


def _atlas(options: argparse.Namespace) -> None:
    workload = make_workload(options)
    need_drafter(options, "`specfit atlas`")
    set_threads(options)
    with output_file(options.out, new=False):
        atlas = make_atlas(options, workload, options.out)
    positions = sum(len(trajectory.entries) for trajectory in atlas.trajectories)
    print(f"{len(atlas.trajectories)} prompts, {positions} positions\n{options.out}")
