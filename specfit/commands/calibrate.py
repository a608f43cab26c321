"""`specfit calibrate`: fit cost coefficients to this machine."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from specfit.commands import options as add_options
from specfit.commands.setup import fit_cost, make_engine, set_threads


def add(commands: Any) -> None:
    fit = commands.add_parser("calibrate", help="fit cost coefficients to this machine", allow_abbrev=False)
    add_options.configuration(fit)
    add_options.costs(fit, given=False)
    fit.add_argument("--raw", action="store_true", help=argparse.SUPPRESS)
    fit.add_argument("--out", type=Path, default=Path("calibration.json"), metavar="FILE")
    fit.set_defaults(command=_calibrate)


def _calibrate(options: argparse.Namespace) -> None:
    set_threads(options)
    folder = options.out.parent
    folder.mkdir(parents=True, exist_ok=True)
    with make_engine(options) as engine:
        fitted = fit_cost(options, engine, folder)
    fitted.save(options.out)
    print(fitted)
    print(f"\n{options.out}")
