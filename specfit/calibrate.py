"""Fitting the cost coefficients to one engine on one machine (Appendix B).

Two protocols measure cycle times without the selector's own.

* *paper*: nine states (three prompts at cycle boundaries 0, 4 and 8); in each, for every size k = 0..K, a
  probability-prefix and a minimum-union probe tree, measured twice in the same state without clearing the cache. The
  second time everything hits, so on a machine where copies dominate these probes are too fast.
* *consecutive*: about 200 cycles of ordinary, lossless decoding whose tree size, kind and drafting depth are drawn at
  random, so they meet real hits and misses; four coefficients instead of nine.

A calibration remembers the engine's settings and refuses to serve another slot count, link, target or draft.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from specfit.cycle import Decoding, Drafter, RouteSource, accepted_path
from specfit.fit import Fit, Probe, fit_consecutive, fit_paper
from specfit.machine import describe_machine, now
from specfit.methods import EAGLE3, Method
from specfit.objective import CostModel, CycleState, Selection, evaluate
from specfit.safe_files import parse_json, replace_file
from specfit.select.min_union import min_union_tree, prefix_tree
from specfit.tree import DraftPool

if TYPE_CHECKING:
    from specfit.engine.engine import Engine

BOUNDARIES = (0, 4, 8)  # cycles after which the paper's protocol probes a prompt
PROMPTS = 3  # of the paper's protocol
REPEATS = 2
CYCLES, DROPPED = 200, 8  # of the consecutive protocol; the first meet an empty cache
# A cycle time depends on these settings; coefficients made with others are refused.
BINDING = ("target", "drafter", "draft", "dtype", "device", "slots_per_layer", "cleared", "link", "kernel", "experts")


@dataclass(frozen=True, slots=True)
class Calibration:
    """Coefficients with all that is needed to judge them and to know where they hold."""

    cost: CostModel
    protocol: str  # "paper" or "consecutive"
    r2: float
    rms_ms: float
    worst_ms: float
    condition: float
    probes: int
    warnings: tuple[str, ...]
    settings: Mapping[str, Any]  # of the engine
    machine: Mapping[str, Any]
    date: str
    prompts: tuple[str, ...]  # what was decoded, e.g. question ids
    residuals_ms: tuple[float, ...] = ()

    @classmethod
    def of(cls, fit: Fit, *, protocol: str, settings: Mapping[str, Any], prompts: Iterable[str]) -> Calibration:
        """A fit made just now on this machine."""
        return cls(
            cost=fit.cost,
            protocol=protocol,
            r2=fit.r2,
            rms_ms=fit.rms_ms,
            worst_ms=fit.worst_ms,
            condition=fit.condition,
            probes=fit.count,
            warnings=fit.warnings,
            settings=dict(settings),
            machine=describe_machine(),
            date=now(),
            prompts=tuple(prompts),
            residuals_ms=fit.residuals_ms,
        )

    def check(self, settings: Mapping[str, Any]) -> None:
        """ValueError, naming what differs, unless the coefficients were fitted with this engine's settings."""
        differing = [key for key in BINDING if self.settings.get(key) != settings.get(key)]
        if differing:
            found = "; ".join(
                f"{key} {_brief(self.settings.get(key))} then, {_brief(settings.get(key))} now" for key in differing
            )
            raise ValueError(
                f"the coefficients were fitted with another configuration ({found}); calibrate again, or say that you "
                "want them anyway (--force-cost)"
            )

    def save(self, path: str | Path) -> None:
        """Write it as JSON; `CostModel.load` reads the same file."""
        replace_file(Path(path), json.dumps(asdict(self), indent=1, allow_nan=False).encode() + b"\n")

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Read what `save` wrote; ValueError for anything else."""
        try:
            data = parse_json(Path(path).read_text())
            cost = CostModel.from_dict(data.pop("cost"))
            for name in ("warnings", "prompts", "residuals_ms"):
                data[name] = tuple(data[name])
            return cls(cost=cost, **data)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is no calibration ({error}); make one with `specfit calibrate`") from error

    def __str__(self) -> str:
        b = " ".join(f"{b:.3f}" for b in self.cost.intercepts_ms)
        lines = [
            f"{self.protocol} protocol, {self.probes} probes, {self.date}",
            f"b_0..b_{self.cost.max_nodes} = {b} ms; beta = {self.cost.expert_ms:.4f} ms per expert; "
            f"gamma = {self.cost.level_ms:.3f} ms per drafted level",
            f"R^2 = {self.r2:.3f}; residuals {self.rms_ms:.2f} ms rms, {self.worst_ms:+.2f} ms worst; "
            f"condition number {self.condition:.0f}",
            *(f"warning: {warning}" for warning in self.warnings),
        ]
        return "\n".join(lines)


def probe_count(protocol: str) -> int:
    """About how many cycles a protocol measures for one cache, at the paper's K = 7."""
    return CYCLES if protocol == "consecutive" else PROMPTS * len(BOUNDARIES) * 8 * 2


def calibrate(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    routes: RouteSource,
    *,
    protocol: str = "consecutive",
    max_nodes: int = 7,
    names: Iterable[str] = (),
    max_new_tokens: int = 200,
    seed: int = 0,
    progress: Callable[[int], None] = lambda probes: None,
) -> Calibration:
    """Measure and fit. prompts: token ids; routes: an atlas over them that reaches `max_new_tokens`; names: what the
    prompts are called.

    Raises ValueError for an unknown protocol, or prompts too short for it.
    """
    if protocol not in ("paper", "consecutive"):
        raise ValueError(f"protocol {protocol!r} is unknown; choose paper or consecutive")
    engine.reset()
    sizes = {"max_nodes": max_nodes, "max_new_tokens": max_new_tokens}
    if protocol == "paper":
        fit = fit_paper(_counted(paper_probes(engine, prompts, routes, **sizes), progress), max_nodes)
    else:
        probes = consecutive_probes(engine, prompts, routes, **sizes, seed=seed)
        fit = fit_consecutive(_counted(probes, progress), max_nodes)
    return Calibration.of(fit, protocol=protocol, settings=engine.settings, prompts=names)


def paper_probes(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    routes: RouteSource,
    *,
    max_nodes: int = 7,
    max_new_tokens: int = 200,
) -> Iterator[Probe]:
    """One probe per state, size and tree kind, the mean of two measurements: 9 * (K + 1) * 2 of them."""
    for prompt in prompts:
        decoding = engine.decode(prompt, method=EAGLE3, max_new_tokens=engine.room(prompt, max_new_tokens))
        decoding.prefill()
        for boundary in range(BOUNDARIES[-1] + 1):
            if boundary in BOUNDARIES:
                for size in range(max_nodes + 1):
                    for choose in (prefix_tree, min_union_tree):
                        yield _probe(engine, decoding.context, routes, size=size, choose=choose)
            if next(iter(decoding), None) is None:
                raise ValueError(
                    f"a calibration prompt ended after {boundary} cycles; the paper's protocol needs {BOUNDARIES[-1]}"
                )


def _probe(
    engine: Engine,
    context: Sequence[int],
    routes: RouteSource,
    *,
    size: int,
    choose: Callable[[CycleState, int], tuple[int, ...]],
) -> Probe:
    target, drafter = engine.target, engine.drafter
    assert drafter is not None
    state = drafter.snapshot()
    spent = 0.0
    for _ in range(REPEATS):
        start = perf_counter()
        pool = drafter.full_pool()
        spent += perf_counter() - start
        estimate = routes(context, pool)
        nodes = choose(CycleState(pool, estimate), min(size, len(pool)))
        start = perf_counter()
        verdict = target.verify(context[-1], pool, nodes)
        path, token = accepted_path(pool, nodes, verdict.next_tokens)
        row = {node: 1 + i for i, node in enumerate(nodes)}
        features = target.commit((0, *(row[node] for node in path)))
        drafter.extend((*(pool.tokens[node] for node in path), token), features)
        spent += perf_counter() - start
        target.rewind()
        drafter.restore(state)
    union = evaluate(CycleState(pool, estimate), nodes, _free(len(nodes))).union
    return Probe(nodes=len(nodes), levels=pool.levels, union=union, ms=1e3 * spent / REPEATS)


def consecutive_probes(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    routes: RouteSource,
    *,
    max_nodes: int = 7,
    max_new_tokens: int = 200,
    cycles: int = CYCLES,
    seed: int = 0,
) -> Iterator[Probe]:
    """Probes from ordinary decoding with random tree sizes, kinds and depths; the first few cycles are dropped."""
    rng = random.Random(seed)
    method = Method("calibrate", policy=_RandomTree(rng, max_nodes), max_nodes=max_nodes)
    seen = 0
    while seen < cycles + DROPPED:
        before = seen
        for prompt in prompts:
            assert engine.drafter is not None
            engine.drafter.begin()
            decoding = Decoding(
                prompt,
                target=engine.target,
                drafter=_RandomDepth(engine.drafter, rng),
                method=method,
                cost=_free(max_nodes),
                routes=routes,
                max_new_tokens=engine.room(prompt, max_new_tokens),
                eos=engine.eos,
            )
            for cycle in decoding:
                seen += 1
                if seen > DROPPED:
                    times, chosen = cycle.times, cycle.selection
                    ms = times.draft_ms + times.verify_ms + times.commit_ms
                    yield Probe(nodes=len(chosen.nodes), levels=cycle.pool.levels, union=chosen.union, ms=ms)
                if seen == cycles + DROPPED:
                    return
        if seen == before:
            raise ValueError("the calibration prompts give no decode cycle; use prompts with longer answers")


@dataclass(frozen=True, slots=True)
class _RandomTree:
    """A policy: a random size and kind of probe tree."""

    rng: random.Random
    max_nodes: int

    def __call__(self, state: CycleState, cost: CostModel) -> Selection:
        size = min(self.rng.randint(0, self.max_nodes), len(state.pool))
        choose = self.rng.choice((prefix_tree, min_union_tree))
        return evaluate(state, choose(state, size), cost)


class _RandomDepth:
    """A drafter that stops at a random depth."""

    def __init__(self, drafter: Any, rng: random.Random) -> None:
        self._drafter: Drafter = drafter
        self._depth, self._rng = drafter.config.depth, rng
        self.extend, self.catch_up = drafter.extend, drafter.catch_up

    def levels(self, *, max_depth: int) -> Iterator[DraftPool]:
        return self._drafter.levels(max_depth=min(max_depth, self._rng.randint(1, self._depth)))


def _counted(probes: Iterable[Probe], progress: Callable[[int], None]) -> Iterator[Probe]:
    for count, probe in enumerate(probes, start=1):
        progress(count)
        yield probe


def _free(max_nodes: int) -> CostModel:
    return CostModel((0.0,) * (max_nodes + 1), 0.0)


def _brief(value: Any) -> str:
    return json.dumps(value, sort_keys=True) if isinstance(value, Mapping) else str(value)
