"""`specfit record`: make a world from prompts, for `specfit replay` and `specfit.replay`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from specfit.commands import options as add_options
from specfit.commands.setup import make_engine, make_workload, set_threads
from specfit.demo import bar
from specfit.recording import record_world


def add(commands: Any) -> None:
    record = commands.add_parser("record", help="record a workload, to replay any policy on it", allow_abbrev=False)
    add_options.questions(record)
    add_options.configuration(record)
    record.add_argument("--out", type=Path, default=Path("world.npz"), metavar="FILE", help="a new file (world.npz)")
    record.set_defaults(command=_record)


def _record(options: argparse.Namespace) -> None:
    set_threads(options)
    workload = make_workload(options)
    if options.out.exists():
        raise ValueError(f"{options.out} is there already; give another --out, or move it away")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with make_engine(options) as engine, bar(f"record {workload.name}", len(workload.questions)) as step:
        world = record_world(engine, workload, raw=options.raw, progress=step)
    world.save(options.out)
    for request_id, reason in world.skipped.items():
        print(f"left out {request_id}: {reason}")
    print(f"{len(world.prompts)} prompts, {world.positions} positions\n{options.out}")
