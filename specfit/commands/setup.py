"""What the options of a command ask for: the workload, the engine, its atlas, its cost coefficients."""

from __future__ import annotations

import argparse
import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specfit.calibrate import CYCLES, Calibration, calibrate
from specfit.cycle import RouteSource
from specfit.demo import CALIBRATION_TOKENS, bar, calibration_workload
from specfit.runs import RouteChoice, ensure_atlas, prompts_of
from specfit.safe_files import safe_name
from specfit.workloads import Limits, Workload, embedded_workload, paper_ids, spec_bench

if TYPE_CHECKING:
    from specfit.engine.engine import Engine


def set_threads(options: argparse.Namespace) -> None:
    """Before any model is loaded."""
    from specfit.engine.engine import use_threads

    use_threads(options.threads)


def make_workload(options: argparse.Namespace) -> Workload:
    """The questions of `options.questions`."""
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


def make_engine(options: argparse.Namespace) -> Engine:
    """The engine of `options.configuration`."""
    from specfit.engine.engine import load_engine

    return load_engine(
        options.target,
        drafter=options.drafter,
        slots_per_layer=options.slots,
        device_memory=options.device_memory,
        cleared=options.cleared,
        link=options.link_ms,
        **_model(options),
    )


def make_atlas(options: argparse.Namespace, workload: Workload, path: Path) -> Any:
    """The atlas kept at `path` where it serves, else a new one that the same pair records with all experts resident."""
    from specfit.engine.engine import load_engine

    def resident() -> Engine:
        return load_engine(options.target, drafter=options.drafter, self_test=False, **_model(options))

    with bar(f"atlas {workload.name}", len(workload.questions)) as step:
        return ensure_atlas(
            path, resident, workload, raw=options.raw, expected=lambda: _route_settings(options), progress=step
        )


def atlas_path(options: argparse.Namespace, workload: Workload, folder: Path) -> Path:
    """Where a run keeps its atlas: the file of --atlas, or the run's own folder where the user gave one.

    Else a folder that all runs share, --atlas or the one beside the run's: under a name that pair, draft, dtype and
    questions decide, so that runs with other slots, links or methods record nothing again.
    """
    if options.atlas is not None and not options.atlas.is_dir():
        return options.atlas
    if options.atlas is None and options.out is not None:
        return folder / f"atlas-{workload.name}.npz"
    shared = options.atlas or folder.parent / "atlases"
    shared.mkdir(exist_ok=True)
    asked = (_route_settings(options), workload.questions, workload.limits, options.raw)
    return shared / f"{safe_name(workload.name)}-{hashlib.sha256(repr(asked).encode()).hexdigest()[:10]}.npz"


def fits_a_recording(options: argparse.Namespace) -> bool:
    """Whether what is decoded meets the same pools again, whatever the method: in float32, not in half precision."""
    return _route_settings(options)["dtype"] == "float32"


def _route_settings(options: argparse.Namespace) -> dict[str, Any]:
    from specfit.engine.engine import expected_route_settings

    return expected_route_settings(options.target, drafter=options.drafter, **_model(options))


def choose_routes(options: argparse.Namespace) -> RouteChoice:
    """The route source that is asked for; unless one is, the pair's head where it has one, else the atlas."""
    if options.routes is not None:
        choice = options.routes
    else:
        choice = RouteChoice(source="head" if _has_head(options) and options.atlas is None else "atlas")
    if options.head is not None and choice.source not in ("head", "prior"):
        raise ValueError(f"--head is read by --routes head and prior; routes come from {choice.source} here")
    if options.atlas is not None and not (choice.needs_atlas or options.truth):
        raise ValueError(f"--atlas keeps an atlas, and {choice.source} needs none; leave it out, or add --truth")
    if options.head is None:
        return replace(choice, seed=options.seed)
    from specfit.engine.route_head import RouteHead  # here: it loads torch

    return replace(choice, seed=options.seed, head=RouteHead.load(options.head))


def _has_head(options: argparse.Namespace) -> bool:
    own = options.target == "embedded" and options.drafter is None and options.dtype != "float16"
    return options.head is not None or own


def find_cost(
    options: argparse.Namespace, engine: Engine, folder: Path, choice: RouteChoice | None = None
) -> Calibration:
    """The given coefficients, those an earlier session left in the folder, or new ones."""
    kept = folder / "calibration.json"
    if options.cost is not None or kept.exists():
        fitted = Calibration.load(options.cost or kept)
        if not options.force_cost:
            fitted.check(engine.settings)
        return fitted
    fitted = fit_cost(options, engine, folder, choice)
    fitted.save(kept)
    print(fitted, end="\n\n")
    return fitted


def fit_cost(
    options: argparse.Namespace, engine: Engine, folder: Path, choice: RouteChoice | None = None
) -> Calibration:
    """Coefficients of this engine, fitted now.

    Probe trees are chosen, and their unions counted, with the pair's head where `choice` takes no atlas and there is
    one; else with the target's own routes, asked for outside every probe.
    """
    if options.target != "embedded" and options.calibration_questions is None:
        raise ValueError("this target needs --cost FILE, or --calibration-questions FILE to fit coefficients with")
    if options.calibration_questions is None:
        workload = calibration_workload()
    else:
        limits = Limits(max_new_tokens=CALIBRATION_TOKENS)
        workload = spec_bench(options.calibration_questions, limit=3, limits=limits, name="calibration")
    from specfit.engine.route_sources import HeadRoutes, TargetRoutes  # here: they load torch

    routes: RouteSource
    if choice is not None and not choice.needs_atlas and _has_head(options):
        routes = HeadRoutes(engine, choice.head)
    else:
        routes = TargetRoutes(engine)
    with bar("calibrate", CYCLES if options.protocol == "consecutive" else 144) as step:
        return calibrate(
            engine,
            [prompt.ids for prompt in prompts_of(engine, workload, raw=options.raw)],
            routes,
            protocol=options.protocol,
            max_nodes=options.max_nodes,
            max_new_tokens=CALIBRATION_TOKENS,
            names=[str(question.id) for question in workload.questions],
            seed=options.seed,
            progress=step,
        )


def publish(text: str, markdown: str, folder: Path) -> None:
    """Print a report and leave it in the folder too."""
    (folder / "report.md").write_text(markdown, encoding="utf-8")
    print(f"\n{text}\n{folder}")


def _model(options: argparse.Namespace) -> dict[str, Any]:
    from specfit.engine.drafter import DraftConfig

    draft = DraftConfig(top_k=options.top_k, depth=options.depth, max_pool=options.max_pool)
    return {"draft": draft, "device": options.device, "dtype": options.dtype}
