"""What the options of a command ask for: the workload, the engine, its atlas, its cost coefficients."""

from __future__ import annotations

import argparse
import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specfit.commands.places import no_empty_folders
from specfit.demo import bar
from specfit.recording import ensure_atlas
from specfit.runs import RouteChoice
from specfit.safe_files import safe_name
from specfit.workloads import PAPER_WORKLOADS, Limits, Workload, embedded_workload, paper_ids, spec_bench

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
        if options.category is not None or options.ids is not None:
            raise ValueError("--category and --ids choose from a question file; the embedded workloads take --count")
        more = {} if options.max_new_tokens is None else {"max_new_tokens": options.max_new_tokens}
        return embedded_workload(options.workload, count=options.count or 8, **more)
    if not Path(options.workload).exists():
        raise ValueError(
            f"there is neither a question file nor an embedded workload {options.workload!r}; the embedded ones are "
            "problems and news"
        )
    ids: Any = None
    if options.ids in PAPER_WORKLOADS:
        ids, paper = paper_ids(options.ids)
        limits = limits or paper
    elif options.ids is not None:
        ids = [one.strip() for one in options.ids.split(",")]
        if "" in ids or len(set(ids)) < len(ids):
            raise ValueError(
                f"--ids {options.ids!r} has an empty id or one twice; give question ids once each, comma separated, or "
                f"one of {', '.join(PAPER_WORKLOADS)}"
            )
    return spec_bench(options.workload, category=options.category, ids=ids, limit=options.count, limits=limits)


def need_drafter(options: argparse.Namespace, what: str) -> None:
    """ValueError where only the embedded target would bring a drafter along, and none is given."""
    if options.target != "embedded" and options.drafter is None:
        raise ValueError(f"{what} drafts, and only the embedded target brings a drafter along; give --drafter")


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
        experts=options.experts,
        **_model(options),
    )


def make_atlas(options: argparse.Namespace, workload: Workload, path: Path) -> Any:
    """The atlas kept at `path` where it serves, else a new one that the same pair records with all experts resident."""
    from specfit.engine.engine import load_engine

    def resident() -> Engine:
        return load_engine(
            options.target,
            drafter=options.drafter,
            device_memory=options.device_memory,
            experts=options.experts,
            self_test=False,
            **_model(options),
        )

    with no_empty_folders(path.parent), bar(f"atlas {workload.name}", len(workload.questions)) as step:
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
        choice = RouteChoice(source="head" if has_head(options) and options.atlas is None else "atlas")
    if options.head is not None and choice.source not in ("head", "prior"):
        raise ValueError(f"--head is read by --routes head and prior; routes come from {choice.source} here")
    if options.atlas is not None and not (choice.needs_atlas or options.truth):
        raise ValueError(f"--atlas keeps an atlas, and {choice.source} needs none; leave it out, or add --truth")
    if options.head is None:
        return replace(choice, seed=options.seed)
    from specfit.engine.route_head import RouteHead  # here: it loads torch

    return replace(choice, seed=options.seed, head=RouteHead.load(options.head))


def has_head(options: argparse.Namespace) -> bool:
    own = options.target == "embedded" and options.drafter is None and options.dtype != "float16"
    return options.head is not None or own


def _model(options: argparse.Namespace) -> dict[str, Any]:
    from specfit.engine.drafter import DraftConfig

    draft = DraftConfig(top_k=options.top_k, depth=options.depth, max_pool=options.max_pool)
    device = options.device
    if device is None and options.link_ms is not None:
        device = "cpu"  # an emulated link stands in for a real one, also on a machine that has a GPU
    return {"draft": draft, "device": device, "dtype": options.dtype}
