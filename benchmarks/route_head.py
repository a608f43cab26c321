"""How much of the atlas's gain does the embedded pair's route head keep, and how good are its routes?

    python benchmarks/route_head.py [--count N] [--measured N]

(a) the share of the true top 4 that each source has right, by layer, on held-out prompts; (b) the expert union that a
source predicts for EAGLE-3's tree over the true one; (c) decode throughput on a modelled clock, replayed exactly over
recorded worlds, where selecting is free; (d) the same, measured here with an emulated link, the head's own time inside
the timer. All methods of a workload and cache use one set of cost coefficients, so rows differ by their routes alone.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

import specfit
from specfit.ablations import fit_cost
from specfit.bootstrap import paired_speedup
from specfit.demo import LINK_MS, SLOTS
from specfit.engine.engine import Engine
from specfit.methods import AR, EAGLE3, SPECFIT
from specfit.metrics import measure
from specfit.modelled import ModelledClock
from specfit.objective import CycleState
from specfit.records import RunRecord
from specfit.routes import bitmap_experts
from specfit.runs import MethodRun, RouteChoice, run_interleaved
from specfit.select.min_union import prefix_tree
from specfit.tree import DraftPool

KINDS = ("problems", "news")
# The paper's counters, scaled to 6 layers: with the cache, and cleared before every forward.
CLOCKS = {False: ModelledClock(105, 10, 1.82, 5.8), True: ModelledClock(65, 10, 0.5, 5.8)}
SOURCES = {
    "atlas": RouteChoice(),
    "head": RouteChoice(source="head"),
    "noisy:0.6": RouteChoice(accuracy=0.6),
    "last-token": RouteChoice(source="last-token"),
    "prior": RouteChoice(source="prior"),
}


class Recorded:
    """What a source said of every pool of a world, level by level: a route source without a model."""

    def __init__(self) -> None:
        self.said: dict[tuple[int, int], specfit.Routes] = {}

    def keep(self, context: Sequence[int], routes: specfit.Routes) -> None:
        self.said[hash(tuple(context)), len(routes)] = routes
        self.said[hash(tuple(context)), 0] = routes.prefix(0)

    def __call__(self, context: Sequence[int], pool: specfit.DraftPool) -> specfit.Routes:
        return self.said[hash(tuple(context)), len(pool)]


class Listening:
    """Decodes prompts a token at a time and asks every source after each drafted level, as a decode would."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.sources = {
            "head": specfit.HeadRoutes(engine),
            "last-token": specfit.LastTokenRoutes(engine),
            "prior": specfit.PriorRoutes(engine),
        }
        self.recorded = {name: Recorded() for name in self.sources}
        self.right: dict[tuple[str, str], list[list[int]]] = defaultdict(list)  # (source, kind) -> right ids by layer
        self.unions: dict[str, list[tuple[int, int]]] = defaultdict(list)  # source -> (predicted, true)

    def prompt(self, prompt: Sequence[int], limit: int) -> None:
        target, drafter, offload = self.engine.target, self.engine.drafter, self.engine.offload
        drafter.begin()
        context = [*prompt, target.prefill(prompt).next_tokens[0]]
        drafter.extend(context[1:], target.commit(()))
        while len(context) - len(prompt) < limit and context[-1] not in self.engine.eos:
            pools, said = [], defaultdict(list)
            for pool in drafter.levels(max_depth=drafter.config.depth):
                pools.append(pool)
                for name, source in self.sources.items():
                    said[name].append(source(context, pool))
                    self.recorded[name].keep(context, said[name][-1])
            verdict = target.verify(context[-1], pool, range(len(pool)))
            indices = offload.indices(1 + len(pool))
            true = specfit.Routes.from_indices(indices[0], indices[1:], experts=self.engine.experts)
            for name, levels in said.items():
                self._count(name, pools, levels, true)
            context.append(verdict.next_tokens[0])
            drafter.extend(context[-1:], target.commit((0,)))

    def _count(self, name: str, pools: list[DraftPool], levels: list[specfit.Routes], true: specfit.Routes) -> None:
        final, pool = levels[-1], pools[-1]
        self._add(name, "root", final.root, true.root)
        for node in range(len(pool)):
            new = next(routes for routes in levels if node < len(routes))  # when it had just been drafted
            self._add(name, "leaf", new.nodes[node], true.nodes[node])
            if node in pool.parents:
                self._add(name, "inner", final.nodes[node], true.nodes[node])
        chosen = prefix_tree(CycleState(pool, true), 7)
        self.unions[name].append((specfit.expert_union(final, chosen), specfit.expert_union(true, chosen)))

    def _add(self, name: str, kind: str, said: int, true: int) -> None:
        layers, experts = self.engine.layers, self.engine.experts
        right = bitmap_experts(said & true, layers=layers, experts=experts)
        self.right[name, kind].append([len(layer) for layer in right])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=12, help="prompts of each workload for (a) to (c), at most 30")
    parser.add_argument("--measured", type=int, default=3, help="prompts of each workload for (d); 0 leaves it out")
    options = parser.parse_args()
    torch.set_num_threads(1)
    worlds = {kind: specfit.embedded_world(kind).first(options.count) for kind in KINDS}
    with specfit.load_engine("embedded") as engine:
        heard = {kind: Listening(engine) for kind in KINDS}
        for kind, world in worlds.items():
            for prompt in world.prompts:
                heard[kind].prompt(prompt.prompt, prompt.limit)
    for kind in KINDS:
        accuracy(kind, heard[kind])
    for kind in KINDS:
        modelled(kind, worlds[kind], heard[kind])
    if options.measured:
        measured(options.measured)


def accuracy(kind: str, heard: Listening) -> None:
    """(a) and (b)."""
    top_k = heard.sources["head"].head.shape.top_k
    for (name, row), right in sorted(heard.right.items()):
        layers = np.mean(right, axis=0) / top_k
        print(f"(a) {kind:<8} {name:<10} {row:<5} {layers.mean():.3f} by layer {' '.join(f'{x:.2f}' for x in layers)}")
    for name, unions in heard.unions.items():
        said, true = np.array(unions, dtype=float).T
        fit = np.corrcoef(said, true)[0, 1] if said.std() else 0.0
        print(
            f"(b) {kind:<8} {name:<10} union of EAGLE-3's tree: {said.mean():.1f} predicted, {true.mean():.1f} true "
            f"(ratio {said.sum() / true.sum():.2f}), off by {abs(said - true).mean():.1f}, correlation {fit:.2f}"
        )


def modelled(kind: str, world: specfit.World, heard: Listening) -> None:
    """(c)"""
    tuning = specfit.embedded_world("calibration")
    for cleared, clock in CLOCKS.items():
        cost = fit_cost(tuning, SLOTS, clock, cleared=cleared).cost
        runs = {
            method.name: specfit.replay(world, method, cost, SLOTS, clock, cleared=cleared) for method in (AR, EAGLE3)
        }
        for name, choice in SOURCES.items():
            more = {"routes": heard.recorded[name]} if name in heard.recorded else {"accuracy": choice.accuracy}
            runs[name] = specfit.replay(world, SPECFIT, cost, SLOTS, clock, cleared=cleared, **more)
        table(f"(c) {kind}, {cache(cleared)}, MODELLED clock", runs)


def measured(count: int) -> None:
    """(d)"""
    calibration = specfit.embedded_world("calibration").first(6)
    atlases = {kind: specfit.Atlas.of_world(specfit.embedded_world(kind).first(count)) for kind in KINDS}
    for cleared in (False, True):
        with specfit.load_engine("embedded", slots_per_layer=SLOTS, cleared=cleared, link=LINK_MS) as engine:
            prompts = [prompt.prompt for prompt in calibration.prompts]
            fitted = specfit.calibrate(engine, prompts, specfit.Atlas.of_world(calibration))
            for kind in KINDS:
                workload = specfit.embedded_workload(kind, count=count)
                with TemporaryDirectory() as folder:
                    parts = [MethodRun(Path(folder) / method.name, method) for method in (AR, EAGLE3)]
                    parts += [MethodRun(Path(folder) / slug(name), SPECFIT, SOURCES[name]) for name in SOURCES]
                    runs = run_interleaved(engine, workload, parts, cost=fitted.cost, atlas=atlases[kind])
                named = dict(zip([AR.name, EAGLE3.name, *SOURCES], runs, strict=True))
                table(f"(d) {kind}, {cache(cleared)}, MEASURED, emulated link of {LINK_MS} ms an expert", named)


def table(title: str, runs: dict[str, RunRecord]) -> None:
    """Throughput of every run, and how much of the atlas's gain over EAGLE-3 its routes keep."""
    texts = {name: [request.output_tokens for request in run.requests] for name, run in runs.items()}
    assert all(text == texts["ar"] for text in texts.values()), "a route source changed the text"
    speed = {name: measure(run).decode_tps or 0.0 for name, run in runs.items()}
    print(f"\n{title}: {len(runs['ar'].requests)} prompts, every method's text the same")
    for name, run in runs.items():
        found = measure(run)
        line = (
            f"  {name:<10} {speed[name]:6.2f} tok/s  committed {found.committed:.2f}  nodes {found.draft_nodes:.2f}  "
            f"demand {found.demand:4.1f}  misses {found.misses:4.1f}  "
            f"draft {found.draft_ms:4.1f} + select {found.select_ms:.2f} ms"
        )
        if name in SOURCES:
            line += f"  over EAGLE-3 {paired_speedup(run, runs['eagle3'])}"
            gain = speed["atlas"] / speed["eagle3"] - 1
            if gain > 0.01:  # else there is nothing to keep
                line += f"  of the atlas's gain {(speed[name] / speed['eagle3'] - 1) / gain:.0%}"
        print(line)


def cache(cleared: bool) -> str:
    return f"{SLOTS} slots cleared before every forward" if cleared else f"{SLOTS} of 64 slots"


def slug(name: str) -> str:
    return name.replace(":", "-")


if __name__ == "__main__":
    main()
