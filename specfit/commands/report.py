"""`specfit report`: tables of finished runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from specfit.methods import SPECFIT
from specfit.objective import CostModel
from specfit.report import cache_name, printable, report
from specfit.run_folder import load_run
from specfit.runs import find_runs


def add(commands: Any) -> None:
    show = commands.add_parser("report", help="tables of finished runs", allow_abbrev=False)
    show.add_argument("folders", nargs="+", type=Path, metavar="RUN", help="run folders, or folders that hold some")
    show.add_argument("--theory", action="store_true", help="Table 5 of the SpecFit runs, beside the paper's")
    show.add_argument("--markdown", action="store_true")
    show.set_defaults(command=_report)


def _report(options: argparse.Namespace) -> None:
    runs = [load_run(folder) for folder in find_runs(options.folders)]
    if options.theory:
        from specfit.theory.table_5 import render_table_5, table_5  # here: it loads the solvers

        for run in runs:
            if run.settings.get("cost") and run.method == SPECFIT.name:
                print(f"{printable(str(run.settings['workload']))}, {cache_name(run)}")
                print(render_table_5(table_5(run, CostModel.from_dict(dict(run.settings["cost"])))))
    else:
        print(report(runs, style="markdown" if options.markdown else "text"), end="")
