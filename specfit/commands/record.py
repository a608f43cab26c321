"""`specfit record`: make a world from prompts, for `specfit replay` and `specfit.replay`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from specfit.commands import options as add_options
from specfit.commands.places import output_file
from specfit.commands.setup import make_engine, make_workload, need_drafter, set_threads
from specfit.demo import bar
from specfit.recording import record_world
from specfit.report import printable


def add(commands: Any) -> None:
    record = commands.add_parser("record", help="record a workload, to replay any policy on it", allow_abbrev=False)
    add_options.questions(record)
    add_options.pair(record)
    add_options.room(record)
    record.add_argument("--out", type=Path, default=Path("world.npz"), metavar="FILE", help="a new file (world.npz)")
    record.set_defaults(command=_record)


def _record(options: argparse.Namespace) -> None:
    workload = make_workload(options)
    need_drafter(options, "`specfit record`")
    set_threads(options)
    with (
        output_file(options.out),
        make_engine(options) as engine,
        bar(f"record {workload.name}", len(workload.questions)) as step,
    ):
        world = record_world(engine, workload, raw=options.raw, path=options.out, progress=step)
    for request_id, reason in world.skipped.items():
        print(printable(f"left out {request_id}: {reason}"))
    print(f"{len(world.prompts)} prompts, {world.positions} positions\n{options.out}")
