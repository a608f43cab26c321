"""`specfit report`: tables of finished runs, or the whole report of an experiment."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specfit.commands import options as add_options
from specfit.experiments.document import Picture
from specfit.experiments.folder import is_experiment
from specfit.experiments.report import write_report
from specfit.methods import SPECFIT
from specfit.objective import CostModel
from specfit.records import RunRecord
from specfit.report import cache_name, printable, report, told_apart
from specfit.run_folder import load_run
from specfit.runs import find_runs


def add(commands: Any) -> None:
    show = commands.add_parser("report", help="tables of finished runs, or of an experiment", allow_abbrev=False)
    show.add_argument(
        "folders", nargs="+", type=Path, metavar="RUN", help="run folders, folders that hold some, or an experiment's"
    )
    show.add_argument("--theory", action="store_true", help="Table 5 of the SpecFit runs, beside the paper's")
    show.add_argument("--markdown", action="store_true")
    show.set_defaults(command=_report)


def _report(options: argparse.Namespace) -> None:
    if len(options.folders) == 1 and is_experiment(options.folders[0]) and not options.theory:
        text, files = write_report(options.folders[0], _pictures)
        markdown = next(path for path in files if path.suffix == ".md")
        print(markdown.read_text(encoding="utf-8") if options.markdown else text)
        print("\n".join(map(str, files[:2])))
        return
    runs = [load_run(folder) for folder in find_runs(options.folders)]
    if options.theory:
        add_options.refuse_given(options, ["--markdown"], "Table 5 is text")
        if not any(run.settings.get("cost") and run.method == SPECFIT.name for run in runs):
            raise ValueError("--theory needs a run of method specfit with its coefficients, and none of these is one")
        from specfit.theory.table_5 import render_table_5, table_5  # here: it loads the solvers

        for run, named in zip(runs, told_apart(runs), strict=True):
            if run.settings.get("cost") and run.method == SPECFIT.name:
                title = [str(run.settings["workload"]), cache_name(run)]
                title += [] if named.method == run.method else [named.method]
                print(printable(", ".join(title)))
                print(render_table_5(table_5(run, CostModel.from_dict(dict(run.settings["cost"])))))
    else:
        print(report(runs, style="markdown" if options.markdown else "text"), end="")


def _pictures(runs: Sequence[RunRecord]) -> list[Picture]:
    """The paper's figures from these runs, where the workbench extra is installed."""
    try:
        from workbench.figures import cache_pressure, decode_throughput, stage_times
        from workbench.paper_figures import figure_bytes
        from workbench.run_table import by_workload
    except ModuleNotFoundError as error:
        print(f"report.html has no figures: the workbench extra is missing ({error.name})", file=sys.stderr)
        return []
    charts = [(chart.title, chart) for chart in decode_throughput(runs)]
    for workload, group in by_workload(runs).items():
        charts.append((f"Time per cycle by stage, {workload}", stage_times(group)))
        if len({cache_name(run) for run in group}) > 1:
            charts.append((f"Cache pressure, {workload}", cache_pressure(group)))
    drawn = [(title, chart) for title, chart in charts if not chart.empty]
    return [
        Picture(" ".join([f"{title}.", *chart.notes]), figure_bytes(chart.matplotlib(), "svg"))
        for title, chart in drawn
    ]
