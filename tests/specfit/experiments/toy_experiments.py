"""Experiment files over the tiny checkpoints, and a watcher that keeps what it hears."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import specfit
from specfit.calibrate import Calibration
from specfit.experiments.asked import Experiment
from specfit.experiments.file import read_experiment
from specfit.fit import Probe, fit_consecutive
from specfit.records import RunRecord

BASE = """
name = "toy"
target = "{target}"
drafter = "{drafter}"
slots = [4]
{more}
[calibration]
cost = "{cost}"
[[workload]]
name = "ones"
file = "{questions}"
category = "one"
max_new_tokens = 8
raw = true
{workloads}
"""


def toy_file(
    tiny: Any,
    folder: Path,
    *,
    more: str = "",
    workloads: str = "",
    replaced: tuple[str, str] | None = None,
    fitted: str = "",
) -> Path:
    """A small experiment's file: question 1 and the two turns of question 2.

    fitted: options of a calibration of its own, in place of the made-up one.
    """
    text = BASE.format(
        target=tiny.target, drafter=tiny.drafter, questions=tiny.questions, cost=toy_cost(tiny), more=more,
        workloads=workloads,
    )  # fmt: skip
    if fitted:
        text = text.replace(f'cost = "{toy_cost(tiny)}"', f'file = "{tiny.questions}"\n{fitted}')
    if replaced is not None:
        assert replaced[0] in text
        text = text.replace(*replaced)
    path = folder / "toy.toml"
    path.write_text(text)
    return path


def toy_experiment(tiny: Any, folder: Path, **changes: Any) -> Experiment:
    return read_experiment(toy_file(tiny, folder, **changes))


def toy_cost(tiny: Any) -> Path:
    """Coefficients for the toy's cache of 4 slots, made up: the same in every test, so choices are the same too."""
    path = tiny.target.parent / "toy-cost.json"
    if not path.exists():
        with specfit.load_engine(tiny.target, drafter=tiny.drafter, slots_per_layer=4, self_test=False) as engine:
            probes = [
                Probe(nodes, union % 4, union, 5 + 0.1 * nodes + 0.3 * union)
                for nodes in range(8)
                for union in range(8 + nodes, 32, 5)
            ]
            fit = fit_consecutive(probes)
            Calibration.of(fit, protocol="consecutive", settings=engine.settings, prompts=["made up"]).save(path)
    return path


class Heard:
    """A watcher that keeps it all."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.begun: list[str] = []
        self.left: list[float | None] = []
        self.done: dict[str, int] = {}

    def say(self, text: str) -> None:
        self.said.append(text)

    def begin(self, title: str, total: int) -> Any:
        self.begun.append(title)

        def told(done: int) -> None:
            assert 0 <= done <= total
            self.done[title] = done

        return told

    def end(self, left_s: float | None) -> None:
        self.left.append(left_s)


def deterministic(run: RunRecord) -> list[Any]:
    """All that a run is but its times."""
    return [
        (
            request.request_id,
            request.output_tokens,
            (request.prefill.hits, request.prefill.misses),
            [
                (cycle.selection.nodes, cycle.committed_tokens, cycle.counts.hits, cycle.counts.misses, cycle.resident)
                for cycle in request.cycles
            ],
        )
        for request in run.requests
    ]
