"""`specfit calibrate`: fit cost coefficients to this machine."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from specfit.commands import options as add_options
from specfit.commands.cost import fit_cost
from specfit.commands.places import output_file
from specfit.commands.setup import make_engine, need_drafter, set_threads


def add(commands: Any) -> None:
    fit = commands.add_parser("calibrate", help="fit cost coefficients to this machine", allow_abbrev=False)
    add_options.configuration(fit)
    add_options.seed(fit, "the probes")
    add_options.costs(fit, given=False)
    fit.add_argument("--raw", action="store_true", help=argparse.SUPPRESS)
    fit.add_argument("--out", type=Path, default=Path("calibration.json"), metavar="FILE")
    fit.set_defaults(command=_calibrate)


def _calibrate(options: argparse.Namespace) -> None:
    need_drafter(options, "`specfit calibrate`")
    set_threads(options)
    with output_file(options.out, new=False), make_engine(options) as engine:
        fitted = fit_cost(options, engine)
    fitted.save(options.out)
    print(fitted)
    print(f"\n{options.out}")
