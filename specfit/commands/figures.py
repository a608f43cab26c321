"""`specfit figures`: figures and tables of finished runs, as files."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from specfit.commands import options as add_options
from specfit.run_folder import load_run
from specfit.runs import find_runs


def add(commands: Any) -> None:
    figures = commands.add_parser("figures", help="figures and tables of finished runs, as files", allow_abbrev=False)
    figures.add_argument("folders", nargs="+", type=Path, metavar="RUN")
    figures.add_argument("--out", type=Path, required=True, metavar="DIR")
    figures.add_argument(
        "--transfer-ms",
        type=add_options.milliseconds,
        metavar="MS",
        help="time one expert's copy adds (Eq. 8), instead of the one measured",
    )
    figures.add_argument("--formats", default="pdf,svg,png", help="of the figures (pdf,svg,png)")
    figures.set_defaults(command=_figures)


def _figures(options: argparse.Namespace) -> None:
    try:
        from workbench.export import export_all
    except ModuleNotFoundError as error:
        raise ValueError(
            f"figures need the workbench extra ({error.name} is missing): pip install specfit-workbench[workbench]"
        ) from error
    runs = [load_run(folder) for folder in find_runs(options.folders)]
    for path in export_all(runs, options.out, transfer_ms=options.transfer_ms, formats=options.formats.split(",")):
        print(path)
