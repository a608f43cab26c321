"""`specfit run`: decode a workload with one method, or all."""

from __future__ import annotations

import argparse
from typing import Any

from specfit.commands import options as add_options
from specfit.commands.cost import check_cost_options, find_cost, wants_cost
from specfit.commands.places import publish, run_folder
from specfit.commands.setup import (
    atlas_path,
    choose_routes,
    fits_a_recording,
    make_atlas,
    make_engine,
    make_workload,
    need_drafter,
    set_threads,
)
from specfit.demo import bar, run_step
from specfit.methods import AR, EAGLE3, SPECFIT, with_max_nodes
from specfit.report import printable, report
from specfit.run_folder import load_failures
from specfit.runs import run_method

METHODS = {method.name: method for method in (AR, EAGLE3, SPECFIT)}


def add(commands: Any) -> None:
    run = commands.add_parser("run", help="decode a workload with one method, or all", allow_abbrev=False)
    run.add_argument("--method", choices=[*METHODS, "all"], default="all")
    add_options.questions(run)
    add_options.configuration(run)
    add_options.seed(run, "the calibration's probes, and of noisy routes")
    add_options.costs(run)
    add_options.routes(run)
    run.add_argument("--truth", action="store_true", help="record pool truths even where no method reads routes")
    add_options.out(run, "folder of the runs; an existing one is resumed")
    run.set_defaults(command=_run)


def _run(options: argparse.Namespace) -> None:
    workload = make_workload(options)
    methods = [METHODS[name] for name in METHODS] if options.method == "all" else [METHODS[options.method]]
    methods = [with_max_nodes(method, options.max_nodes) for method in methods]
    drafting = next((method.name for method in methods if method.max_nodes > 0), None)
    if drafting is not None or options.truth:
        need_drafter(options, f"method {drafting}" if drafting is not None else "--truth")
    set_threads(options)
    choice = choose_routes(options)
    reads_routes = any(method.uses_routes for method in methods)
    if not reads_routes:
        add_options.refuse_given(options, ["--routes", "--head"], f"--method {options.method} reads no routes")
    wants_atlas = options.truth or (reads_routes and choice.needs_atlas)
    if not wants_atlas:
        add_options.refuse_given(options, ["--atlas"], "no method here reads an atlas, unless with --truth")
    if wants_atlas and not fits_a_recording(options):
        if options.truth:
            raise ValueError("--truth records what a pool holds, which fits in float32 only; add --dtype float32")
        wants_atlas = False  # the exact routes are then asked from the target itself
    with run_folder(options, f"{workload.name}-{options.method}") as folder:
        check_cost_options(options, folder, methods)
        atlas = make_atlas(options, workload, atlas_path(options, workload, folder)) if wants_atlas else None
        runs = []
        with make_engine(options) as engine:
            weighs = reads_routes or wants_cost(options, folder)
            fitted = find_cost(options, engine, folder, methods, choice) if weighs else None
            for method in methods:
                with bar(f"{workload.name} {method.name}", len(workload.questions)) as step:
                    run = run_method(
                        engine,
                        workload,
                        folder / method.name,
                        method=method,
                        cost=None if fitted is None else fitted.cost,
                        atlas=atlas,
                        routes=choice,
                        raw=options.raw,
                        progress=run_step(step),
                    )
                runs.append(run)
        publish(report(runs), report(runs, style="markdown"), folder)
        failed = {method.name: load_failures(folder / method.name) for method in methods}
    for name, requests in failed.items():
        for request_id, why in requests.items():
            print(printable(f"not done by {name}: {request_id}: {why}"))
    missing = sum(map(len, failed.values()))
    if missing:
        how_many = "one request was" if missing == 1 else f"{missing} requests were"
        raise ValueError(f"{how_many} not done, and means are over the others; the reasons stand above")
