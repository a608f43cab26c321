"""The command line. Every mistake of the caller ends in one sentence on stderr and exit code 2; nothing is lost."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from specfit.calibrate import CYCLES, Calibration, calibrate
from specfit.demo import CALIBRATION_TOKENS, LINK_MS, SLOTS, bar, calibration_workload, run_demo, run_step
from specfit.methods import AR, EAGLE3, SPECFIT, with_max_nodes
from specfit.objective import CostModel
from specfit.report import cache_name, printable, report
from specfit.run_folder import load_run, new_folder
from specfit.runs import RouteChoice, ensure_atlas, find_runs, prompts_of, run_method
from specfit.workloads import Limits, Workload, embedded_workload, paper_ids, spec_bench

if TYPE_CHECKING:
    from specfit.engine.engine import Engine

METHODS = {method.name: method for method in (AR, EAGLE3, SPECFIT)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        options.command(options)
    except (ValueError, OSError) as error:
        print(f"specfit: {_sentence(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("specfit: stopped; finished requests are kept, and the same command goes on from there", file=sys.stderr)
        return 130
    return 0


# -- commands --------------------------------------------------------------------------------------------------------


def _demo(options: argparse.Namespace) -> None:
    _set_threads(options)
    folder = options.out or new_folder("runs", "demo")
    runs = run_demo(folder, count=options.count, slots=options.slots, link_ms=options.link_ms)
    _publish(report(runs), report(runs, style="markdown"), folder)


def _run(options: argparse.Namespace) -> None:
    _set_threads(options)
    workload = _workload(options)
    methods = [METHODS[name] for name in METHODS] if options.method == "all" else [METHODS[options.method]]
    methods = [with_max_nodes(method, options.max_nodes) for method in methods]
    folder = options.out or new_folder("runs", f"{workload.name}-{options.method}")
    folder.mkdir(parents=True, exist_ok=True)
    reads_routes = any(method.uses_routes for method in methods)
    atlas = None
    if reads_routes or options.truth:
        atlas = _atlas(options, workload, options.atlas or folder / f"atlas-{workload.name}.npz")
    runs = []
    with _engine(options) as engine:
        cost = _cost(options, engine, folder).cost if reads_routes else None
        for method in methods:
            with bar(f"{workload.name} {method.name}", len(workload.questions)) as step:
                run = run_method(
                    engine,
                    workload,
                    folder / method.name,
                    method=method,
                    cost=cost,
                    atlas=atlas,
                    routes=RouteChoice(accuracy=options.routes, seed=options.seed),
                    raw=options.raw,
                    progress=run_step(step),
                )
            runs.append(run)
    _publish(report(runs), report(runs, style="markdown"), folder)


def _calibrate(options: argparse.Namespace) -> None:
    _set_threads(options)
    folder = options.out.parent
    folder.mkdir(parents=True, exist_ok=True)
    with _engine(options) as engine:
        fitted = _fit(options, engine, folder)
    fitted.save(options.out)
    print(fitted)
    print(f"\n{options.out}")


def _atlas_command(options: argparse.Namespace) -> None:
    _set_threads(options)
    workload = _workload(options)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    atlas = _atlas(options, workload, options.out)
    positions = sum(len(trajectory.entries) for trajectory in atlas.trajectories)
    print(f"{len(atlas.trajectories)} prompts, {positions} positions\n{options.out}")


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


def _figures(options: argparse.Namespace) -> None:
    try:
        from workbench.export import export_all
    except ModuleNotFoundError as error:
        raise ValueError(
            f"figures need the workbench extra ({error.name} is missing): pip install specfit-workbench[workbench]"
        ) from error
    for path in export_all([load_run(folder) for folder in find_runs(options.folders)], options.out):
        print(path)


def _train(options: argparse.Namespace) -> None:
    from specfit.embedded.train import main as train  # here: it loads torch

    train(options.out, seed=options.seed)


# -- what several commands need --------------------------------------------------------------------------------------


def _engine(options: argparse.Namespace) -> Engine:
    from specfit.engine.engine import load_engine

    return load_engine(
        options.target,
        drafter=options.drafter,
        slots_per_layer=options.slots,
        cleared=options.cleared,
        link=options.link_ms,
        **_model(options),
    )


def _model(options: argparse.Namespace) -> dict[str, Any]:
    from specfit.engine.drafter import DraftConfig

    draft = DraftConfig(top_k=options.top_k, depth=options.depth, max_pool=options.max_pool)
    return {"draft": draft, "device": options.device, "dtype": options.dtype}


def _atlas(options: argparse.Namespace, workload: Workload, path: Path) -> Any:
    from specfit.engine.engine import load_engine

    def resident() -> Engine:
        return load_engine(options.target, drafter=options.drafter, self_test=False, **_model(options))

    with bar(f"atlas {workload.name}", len(workload.questions)) as step:
        return ensure_atlas(path, resident, workload, raw=options.raw, progress=step)


def _cost(options: argparse.Namespace, engine: Engine, folder: Path) -> Calibration:
    """The given coefficients, those an earlier session left in the folder, or new ones."""
    kept = folder / "calibration.json"
    if options.cost is not None or kept.exists():
        fitted = Calibration.load(options.cost or kept)
        if not options.force_cost:
            fitted.check(engine.settings)
        return fitted
    fitted = _fit(options, engine, folder)
    fitted.save(kept)
    print(fitted, end="\n\n")
    return fitted


def _fit(options: argparse.Namespace, engine: Engine, folder: Path) -> Calibration:
    if options.target != "embedded" and options.calibration_questions is None:
        raise ValueError("this target needs --cost FILE, or --calibration-questions FILE to fit coefficients with")
    if options.calibration_questions is None:
        workload = calibration_workload()
    else:
        limits = Limits(max_new_tokens=CALIBRATION_TOKENS)
        workload = spec_bench(options.calibration_questions, limit=3, limits=limits, name="calibration")
    atlas = _atlas(options, workload, folder / "atlas-calibration.npz")
    with bar("calibrate", CYCLES if options.protocol == "consecutive" else 144) as step:
        return calibrate(
            engine,
            [prompt.ids for prompt in prompts_of(engine, workload, raw=options.raw)],
            atlas,
            protocol=options.protocol,
            max_nodes=options.max_nodes,
            max_new_tokens=CALIBRATION_TOKENS,
            names=[str(question.id) for question in workload.questions],
            seed=options.seed,
            progress=step,
        )


def _workload(options: argparse.Namespace) -> Workload:
    limits = None if options.max_new_tokens is None else Limits(max_new_tokens=options.max_new_tokens)
    if options.workload in ("problems", "news"):
        if options.category or options.ids:
            raise ValueError("--category and --ids choose from a question file; the embedded workloads take --count")
        more = {} if options.max_new_tokens is None else {"max_new_tokens": options.max_new_tokens}
        return embedded_workload(options.workload, count=options.count or 8, **more)
    ids: Any = options.ids.split(",") if options.ids else None
    if options.ids in ("summarization", "gsm8k", "gsm8k-4090"):
        ids, paper = paper_ids(options.ids)
        limits = limits or paper
    return spec_bench(options.workload, category=options.category, ids=ids, limit=options.count, limits=limits)


def _set_threads(options: argparse.Namespace) -> None:
    from specfit.engine.engine import use_threads

    use_threads(options.threads)


def _publish(text: str, markdown: str, folder: Path) -> None:
    (folder / "report.md").write_text(markdown, encoding="utf-8")
    print(f"\n{text}\n{folder}")


def _sentence(error: Exception) -> str:
    if isinstance(error, FileExistsError | NotADirectoryError):
        return f"{error.filename} is a file where a folder is needed; give another --out"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return " ".join(str(error).split())


# -- options ---------------------------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """Complains in one sentence."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"specfit: {message} (see {self.prog} --help)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="specfit", description="Which draft tokens are worth verifying? See README.md.", allow_abbrev=False
    )
    commands = parser.add_subparsers(dest="name", required=True, metavar="COMMAND", parser_class=_Parser)

    demo = commands.add_parser(
        "demo", help="all methods on both embedded workloads, with and without the cache", allow_abbrev=False
    )
    demo.add_argument("--count", type=_positive, default=3, metavar="N", help="prompts of each workload (3)")
    demo.add_argument("--slots", type=_positive, default=SLOTS, help=f"expert slots per layer with the cache ({SLOTS})")
    demo.add_argument("--link-ms", type=float, default=LINK_MS, help=f"emulated link, ms per expert ({LINK_MS})")
    _out(demo, "folder of the runs (runs/demo-...)")
    _threads(demo)
    demo.set_defaults(command=_demo)

    run = commands.add_parser("run", help="decode a workload with one method, or all", allow_abbrev=False)
    run.add_argument("--method", choices=[*METHODS, "all"], default="all")
    _questions(run)
    _configuration(run)
    _costs(run)
    run.add_argument(
        "--routes", type=_share, default=1.0, metavar="ACCURACY", help="accuracy of the route estimates (1)"
    )
    run.add_argument("--atlas", type=Path, metavar="FILE", help="keep the atlas there rather than in the run's folder")
    run.add_argument("--truth", action="store_true", help="record pool truths even where no method reads routes")
    _out(run, "folder of the runs; an existing one is resumed")
    run.set_defaults(command=_run)

    fit = commands.add_parser("calibrate", help="fit cost coefficients to this machine", allow_abbrev=False)
    _configuration(fit)
    _costs(fit, given=False)
    fit.add_argument("--raw", action="store_true", help=argparse.SUPPRESS)
    fit.add_argument("--out", type=Path, default=Path("calibration.json"), metavar="FILE")
    fit.set_defaults(command=_calibrate)

    atlas = commands.add_parser("atlas", help="record the routes of a workload", allow_abbrev=False)
    _questions(atlas)
    _configuration(atlas)
    atlas.add_argument("--out", type=Path, default=Path("atlas.npz"), metavar="FILE")
    atlas.set_defaults(command=_atlas_command)

    show = commands.add_parser("report", help="tables of finished runs", allow_abbrev=False)
    show.add_argument("folders", nargs="+", type=Path, metavar="RUN", help="run folders, or folders that hold some")
    show.add_argument("--theory", action="store_true", help="Table 5 of the SpecFit runs, beside the paper's")
    show.add_argument("--markdown", action="store_true")
    show.set_defaults(command=_report)

    figures = commands.add_parser("figures", help="figures and tables of finished runs, as files", allow_abbrev=False)
    figures.add_argument("folders", nargs="+", type=Path, metavar="RUN")
    figures.add_argument("--out", type=Path, required=True, metavar="DIR")
    figures.set_defaults(command=_figures)

    train = commands.add_parser("train-embedded", help="make the embedded pair again, from nothing", allow_abbrev=False)
    train.add_argument("--out", type=Path, required=True, metavar="DIR")
    train.add_argument("--seed", type=int, default=0)
    train.set_defaults(command=_train)
    return parser


def _questions(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--workload", default="problems", help="problems, news, or a Spec-Bench question file (problems)"
    )
    parser.add_argument("--category", help="of a question file, exactly as spelt there")
    parser.add_argument("--ids", help="question ids, comma separated; or summarization, gsm8k, gsm8k-4090: the paper's")
    parser.add_argument("--count", type=_positive, metavar="N", help="the first N questions (embedded: 8; file: all)")
    parser.add_argument("--max-new-tokens", type=_positive, metavar="N")
    parser.add_argument("--raw", action="store_true", help="give questions as plain text, without a chat template")


def _configuration(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", default="embedded", help="embedded, a checkpoint folder, or a hub id (embedded)")
    parser.add_argument("--drafter", help="an EAGLE-3 checkpoint; the embedded target brings its own")
    parser.add_argument("--slots", type=_positive, help="expert slots per layer (all)")
    parser.add_argument("--cleared", action="store_true", help="clear the expert cache before every forward")
    parser.add_argument("--link-ms", type=float, help="emulated link, ms per expert (none)")
    parser.add_argument("--max-nodes", type=_positive, default=7, help="draft nodes verified at most, K (7)")
    parser.add_argument("--top-k", type=_positive, default=2, help="children of a drafted node, and nodes expanded (2)")
    parser.add_argument("--depth", type=_positive, default=5, help="drafted levels at most (5)")
    parser.add_argument("--max-pool", type=_positive, default=18, help="drafted nodes at most (18)")
    parser.add_argument("--device", help="cpu, cuda, ... (CUDA if there is one)")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], help="float32 on a CPU, else as stored")
    parser.add_argument("--seed", type=int, default=0)
    _threads(parser)


def _costs(parser: argparse.ArgumentParser, *, given: bool = True) -> None:
    parser.add_argument(
        "--protocol", choices=["consecutive", "paper"], default="consecutive", help="of the calibration"
    )
    parser.add_argument(
        "--calibration-questions", metavar="FILE", help="a question file to calibrate with (its first 3)"
    )
    if given:
        parser.add_argument("--cost", type=Path, metavar="FILE", help="coefficients of `specfit calibrate`")
        parser.add_argument("--force-cost", action="store_true", help="use them for another configuration all the same")


def _out(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--out", type=Path, metavar="DIR", help=text)


def _threads(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=_positive, default=1, help="CPU threads; small models want one (1)")


def _positive(text: str) -> int:
    value = int(text) if text.lstrip("-").isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of 1 or more")
    return value


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share between 0 and 1")
    return value


if __name__ == "__main__":
    sys.exit(main())
