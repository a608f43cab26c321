"""`specfit demo`: the main job on the embedded model."""

from __future__ import annotations

import argparse
from typing import Any

from specfit.commands import options as add_options
from specfit.commands.places import publish, run_folder
from specfit.commands.setup import set_threads
from specfit.demo import LINK_MS, SLOTS, run_demo
from specfit.report import report


def add(commands: Any) -> None:
    demo = commands.add_parser(
        "demo", help="all methods on both embedded workloads, with and without the cache", allow_abbrev=False
    )
    demo.add_argument("--count", type=add_options.positive, default=3, metavar="N", help="prompts of each workload (3)")
    demo.add_argument(
        "--slots", type=add_options.positive, default=SLOTS, help=f"expert slots per layer with the cache ({SLOTS})"
    )
    add_options.link(demo, LINK_MS)
    add_options.out(demo, "folder of the runs (runs/demo-...)")
    add_options.threads(demo)
    demo.set_defaults(command=_demo)


def _demo(options: argparse.Namespace) -> None:
    set_threads(options)
    with run_folder(options, "demo") as folder:
        runs = run_demo(folder, count=options.count, slots=options.slots, link_ms=options.link_ms)
        publish(report(runs), report(runs, style="markdown"), folder)
