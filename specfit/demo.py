"""The main job in one command: AR, EAGLE-3 and SpecFit on both embedded workloads, without and with the expert cache.

Everything is measured here and now: the atlas is recorded, the cost is calibrated on other prompts than those that are
run, and every method decodes the same questions, taking turns question by question, so that a machine whose speed
drifts drifts for all of them. The host link is emulated (see `specfit.engine.link`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tqdm import tqdm

from specfit import embedded
from specfit.calibrate import CYCLES, Calibration, calibrate
from specfit.methods import AR, EAGLE3, SPECFIT
from specfit.recording import ensure_atlas
from specfit.records import RunRecord
from specfit.runs import MethodRun, Progress, prompts_of, run_interleaved
from specfit.workloads import Limits, Question, Workload, embedded_workload

SLOTS = 24  # of 64 experts a layer, "with the cache"
LINK_MS = 0.8  # per expert, emulated: copies then take the share of a cycle that they take in the paper
METHODS = (AR, EAGLE3, SPECFIT)
CALIBRATION_TOKENS = 200  # of an answer, at most


def run_demo(
    folder: Path, *, count: int = 3, slots: int = SLOTS, link_ms: float = LINK_MS, say: Callable[[str], None] = print
) -> list[RunRecord]:
    """Run all twelve cells into `folder`; a folder that already holds some of them is finished."""
    from specfit.engine.engine import Engine, load_engine  # here: `specfit --help` needs no torch

    def resident() -> Engine:
        return load_engine("embedded", device="cpu", self_test=False)  # as the emulated link has it

    config = json.loads((embedded.target_folder() / "config.json").read_text(encoding="utf-8"))
    if slots > config["num_experts"]:
        raise ValueError(f"the embedded model has {config['num_experts']} experts a layer; got {slots} slots")
    folder.mkdir(parents=True, exist_ok=True)
    workloads = [embedded_workload(kind, count=count) for kind in ("problems", "news")]
    tuning = calibration_workload(count=3)
    say(f"recording the route atlas of {2 * count + len(tuning.questions)} prompts, outside every timer")
    atlases = {}
    for workload in (*workloads, tuning):
        with bar(f"atlas {workload.name}", len(workload.questions)) as step:
            atlases[workload.name] = ensure_atlas(
                folder / f"atlas-{workload.name}.npz", resident, workload, progress=step
            )

    runs: list[RunRecord] = []
    for cleared in (True, False):
        cache = "cleared" if cleared else f"{slots}-slots"
        with load_engine("embedded", slots_per_layer=slots, cleared=cleared, link=link_ms) as engine:
            path = folder / f"calibration-{cache}.json"
            if path.exists():
                fitted = Calibration.load(path)
                fitted.check(engine.settings)
            else:
                with bar(f"calibrate {cache}", CYCLES) as step:
                    fitted = calibrate(
                        engine,
                        [prompt.ids for prompt in prompts_of(engine, tuning)],
                        atlases[tuning.name],
                        names=[str(question.id) for question in tuning.questions],
                        max_new_tokens=CALIBRATION_TOKENS,
                        progress=step,
                    )
                fitted.save(path)
            say(f"\n{cache}: {fitted}")
            for workload in workloads:
                parts = [MethodRun(folder / f"{workload.name}-{cache}-{method.name}", method) for method in METHODS]
                with bar(f"{workload.name} {cache}", len(METHODS) * count) as step:
                    runs += run_interleaved(
                        engine,
                        workload,
                        parts,
                        cost=fitted.cost,
                        atlas=atlases[workload.name],
                        progress=run_step(step),
                    )
    return runs


def calibration_workload(count: int = 3) -> Workload:
    """`count` problems and as many news reports of the split kept for tuning, alternating."""
    kinds = [embedded_workload(kind, split="tune", count=count) for kind in ("problems", "news")]
    questions: list[Question] = []
    for pair in zip(*(workload.questions for workload in kinds), strict=True):
        questions += [replace(question, id=f"{question.category}-{question.id}") for question in pair]
    return Workload("calibration", tuple(questions), Limits(max_new_tokens=CALIBRATION_TOKENS))


@contextmanager
def bar(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr; yields a function that is told how much is done."""
    with tqdm(total=total, desc=title, leave=False, dynamic_ncols=True) as shown:

        def step(done: int) -> None:
            shown.update(done - shown.n)

        yield step


def run_step(step: Callable[[int], None]) -> Callable[[Progress], None]:
    """A bar's step as a run's progress."""
    return lambda at: step(at.finished)
