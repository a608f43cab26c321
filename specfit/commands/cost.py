"""Cost coefficients for a command: the given ones, those that its folder holds, or a fit of this machine."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from specfit.calibrate import Calibration, calibrate, probe_count
from specfit.commands import options as add_options
from specfit.commands.setup import has_head
from specfit.cycle import RouteSource
from specfit.demo import CALIBRATION_TOKENS, bar, calibration_workload
from specfit.methods import Method
from specfit.report import printable
from specfit.run_reading import read_header
from specfit.runs import RouteChoice, prompts_of
from specfit.workloads import Limits, Workload, spec_bench

if TYPE_CHECKING:
    from specfit.engine.engine import Engine

COST_FILE = "calibration.json"  # of a run's folder


def check_cost_options(options: argparse.Namespace, folder: Path, methods: Sequence[Method]) -> None:
    """Before anything takes long: ValueError for coefficients that are none or too few for these methods, for a fit
    without questions, and for an option that would go unheard beside coefficients that are given, or that the folder
    holds."""
    needed = any(method.uses_routes for method in methods)
    asked, kept = ("--protocol", "--calibration-questions"), _kept_cost(folder)
    if options.cost is not None:
        add_options.refuse_given(options, asked, "--cost gives coefficients, so none are fitted")
    there = options.cost or kept
    fitted = None if there is None else Calibration.load(there)
    if fitted is not None:
        too_few = _too_few(fitted, methods)
        if too_few is not None and not _may_do_without(options, folder, methods):
            raise ValueError(f"{there} has {too_few}; take fewer nodes, or fit with as many")
    elif needed or wants_cost(options, folder):
        add_options.refuse_given(options, ["--force-cost"], "coefficients are fitted to this very configuration")
        _calibration_workload(options)
    else:
        add_options.refuse_given(options, ["--force-cost"], f"--method {options.method} needs no coefficients")
    if options.cost is None and fitted is not None:
        mend = f"give another --out, or move {kept} away to fit anew"
        if options.protocol not in (None, fitted.protocol):
            raise ValueError(
                f"--protocol {options.protocol} comes too late: {kept} was fitted with the {fitted.protocol} protocol, "
                f"and the runs beside it rest on that; {mend}"
            )
        if options.calibration_questions is not None:
            names = _names(_calibration_workload(options))
            if names != fitted.prompts:
                raise ValueError(
                    f"--calibration-questions comes too late: {kept} was fitted with prompts "
                    f"{', '.join(fitted.prompts)}, and the file's are {', '.join(names)}; {mend}"
                )


def wants_cost(options: argparse.Namespace, folder: Path) -> bool:
    """Whether a method that reads no routes gets coefficients to report with, all the same."""
    given = (options.cost, options.protocol, options.calibration_questions, _kept_cost(folder))
    return any(one is not None for one in given)


def find_cost(
    options: argparse.Namespace,
    engine: Engine,
    folder: Path,
    methods: Sequence[Method],
    choice: RouteChoice | None = None,
) -> Calibration | None:
    """The given coefficients, those an earlier session left in the folder, or new ones.

    None where the folder's belong to another method's configuration, and these methods decode without any.
    """
    kept = options.cost or _kept_cost(folder)
    if kept is not None:
        fitted = Calibration.load(kept)
        try:
            if too_few := _too_few(fitted, methods):
                raise ValueError(f"it has {too_few}")
            if not options.force_cost:
                fitted.check(engine.settings)
        except ValueError as error:
            if not _may_do_without(options, folder, methods):
                raise
            print(printable(f"{kept} is left aside, and no time is predicted: {str(error).split(';')[0]}"))
            return None
        return fitted
    fitted = fit_cost(options, engine, choice)
    fitted.save(folder / COST_FILE)
    print(fitted, end="\n\n")
    return fitted


def _too_few(fitted: Calibration, methods: Sequence[Method]) -> str | None:
    """What it lacks, if one of the methods verifies more nodes than it reaches."""
    known, most = fitted.cost.max_nodes, max(method.max_nodes for method in methods)
    return f"coefficients for up to {known} nodes, and --max-nodes is {most}" if known < most else None


def _may_do_without(options: argparse.Namespace, folder: Path, methods: Sequence[Method]) -> bool:
    """Whether coefficients in the folder serve these methods only where they fit: no method reads routes or was begun
    with them, and no option asks for any."""
    asked = (options.cost, options.protocol, options.calibration_questions, options.force_cost or None)
    return all(one is None for one in asked) and not any(
        method.uses_routes or _begun_with_cost(folder / method.name) for method in methods
    )


def _begun_with_cost(run: Path) -> bool:
    return (run / "run.json").exists() and read_header(run)["settings"].get("cost") is not None


def _kept_cost(folder: Path) -> Path | None:
    path = folder / COST_FILE
    return path if path.exists() else None


def fit_cost(options: argparse.Namespace, engine: Engine, choice: RouteChoice | None = None) -> Calibration:
    """Coefficients of this engine, fitted now.

    Probe trees are chosen, and their unions counted, with the pair's head where `choice` takes no atlas and there is
    one; else with the target's own routes, asked for outside every probe.
    """
    workload, protocol = _calibration_workload(options), options.protocol or "consecutive"
    from specfit.engine.route_sources import HeadRoutes, TargetRoutes  # here: they load torch

    routes: RouteSource
    if choice is not None and not choice.needs_atlas and has_head(options):
        routes = HeadRoutes(engine, choice.head)
    else:
        routes = TargetRoutes(engine)
    with bar("calibrate", probe_count(protocol)) as step:
        return calibrate(
            engine,
            [prompt.ids for prompt in prompts_of(engine, workload, raw=options.raw)],
            routes,
            protocol=protocol,
            max_nodes=options.max_nodes,
            max_new_tokens=CALIBRATION_TOKENS,
            names=_names(workload),
            seed=options.seed,
            progress=step,
        )


def _calibration_workload(options: argparse.Namespace) -> Workload:
    if options.calibration_questions is not None:
        limits = Limits(max_new_tokens=CALIBRATION_TOKENS)
        return spec_bench(options.calibration_questions, limit=3, limits=limits, name="calibration")
    if options.target != "embedded":
        raise ValueError("this target needs --cost FILE, or --calibration-questions FILE to fit coefficients with")
    return calibration_workload()


def _names(workload: Workload) -> tuple[str, ...]:
    return tuple(str(question.id) for question in workload.questions)
