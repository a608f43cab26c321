"""What the options of a command ask for: the workload, the engine, its atlas, its cost coefficients."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specfit.calibrate import CYCLES, Calibration, calibrate
from specfit.demo import CALIBRATION_TOKENS, bar, calibration_workload
from specfit.runs import ensure_atlas, prompts_of
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
        return ensure_atlas(path, resident, workload, raw=options.raw, progress=step)


def find_cost(options: argparse.Namespace, engine: Engine, folder: Path) -> Calibration:
    """The given coefficients, those an earlier session left in the folder, or new ones."""
    kept = folder / "calibration.json"
    if options.cost is not None or kept.exists():
        fitted = Calibration.load(options.cost or kept)
        if not options.force_cost:
            fitted.check(engine.settings)
        return fitted
    fitted = fit_cost(options, engine, folder)
    fitted.save(kept)
    print(fitted, end="\n\n")
    return fitted


def fit_cost(options: argparse.Namespace, engine: Engine, folder: Path) -> Calibration:
    """Coefficients of this engine, fitted now; the calibration prompts' atlas stays in `folder`."""
    if options.target != "embedded" and options.calibration_questions is None:
        raise ValueError("this target needs --cost FILE, or --calibration-questions FILE to fit coefficients with")
    if options.calibration_questions is None:
        workload = calibration_workload()
    else:
        limits = Limits(max_new_tokens=CALIBRATION_TOKENS)
        workload = spec_bench(options.calibration_questions, limit=3, limits=limits, name="calibration")
    atlas = make_atlas(options, workload, folder / "atlas-calibration.npz")
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


def publish(text: str, markdown: str, folder: Path) -> None:
    """Print a report and leave it in the folder too."""
    (folder / "report.md").write_text(markdown, encoding="utf-8")
    print(f"\n{text}\n{folder}")


def _model(options: argparse.Namespace) -> dict[str, Any]:
    from specfit.engine.drafter import DraftConfig

    draft = DraftConfig(top_k=options.top_k, depth=options.depth, max_pool=options.max_pool)
    return {"draft": draft, "device": options.device, "dtype": options.dtype}
