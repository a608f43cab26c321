"""`specfit plan`: how much host and device memory a target needs, from its config alone."""

from __future__ import annotations

import argparse
from typing import Any

from specfit.commands import options as add_options


def add(commands: Any) -> None:
    plan = commands.add_parser(
        "plan", help="the memory that a target needs, and whether it fits; reads no weights", allow_abbrev=False
    )
    plan.add_argument("target", help="embedded, a checkpoint folder, or a hub id")
    plan.add_argument(
        "--slots", type=add_options.slots, metavar="N|SHARE", help="expert slots per layer (all that fit)"
    )
    plan.add_argument("--device-memory", metavar="SIZE", help="of the GPU, such as 20GB (what this one has free)")
    plan.add_argument("--host-memory", metavar="SIZE", help="such as 64GB (what this machine has left)")
    plan.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="what computes (cuda)")
    plan.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], help="float32 on a CPU, else as stored")
    plan.add_argument("--context", type=add_options.positive, metavar="N", help="tokens of prompt and answer (4096)")
    plan.add_argument("--drafter", metavar="DIR", help="a drafter's folder, to be counted as well")
    add_options.experts(plan)
    plan.set_defaults(command=_plan)


def _plan(options: argparse.Namespace) -> None:
    from specfit.engine.plan import plan_target  # here: it loads torch

    plan = plan_target(
        options.target,
        slots=options.slots,
        device=options.device,
        dtype=options.dtype,
        context=options.context,
        drafter=options.drafter,
        experts=options.experts,
        device_memory=options.device_memory,
        host_memory=options.host_memory,
    )
    print(plan)
    plan.check()
