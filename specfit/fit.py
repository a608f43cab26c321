"""Coefficients of the cycle time from measured probes: nonnegative least squares, no clock and no torch.

A probe is one measured cycle: how many draft nodes were verified, how many levels were drafted, how large the expert
union was, how long it took without the selector. Two forms are fitted.

* `fit_paper` (Appendix B): y = b_k + beta F with a free intercept for every size k = 0..K. Needs probes of every size
  in which the union varies, as a probability-prefix and a minimum-union tree give.
* `fit_consecutive`: y = b0 + (s + b1 k if k > 0) + gamma levels + beta F, five numbers, for cycles as they come in a
  running stream, with real hits and misses; free intercepts would follow the noise of so few probes. The step s is what
  a tree costs over the pending token alone, whatever its size; without it b1 would have to hold it, and large trees
  would look dear.

Both return a `Fit`: the cost model, how well it describes the probes, and sentences on what to distrust.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specfit.objective import CostModel

ILL_CONDITIONED = 1e3  # of the design with columns scaled to length 1
FEW_PROBES = 4  # of one size, for a free intercept
STEP = "s"  # of a tree over the pending token alone


@dataclass(frozen=True, slots=True)
class Probe:
    """One measured cycle. Raises ValueError for a negative count, or a time that is negative, NaN or infinite."""

    nodes: int  # k, verified draft nodes
    levels: int  # drafted levels
    union: int  # F, experts of the union summed over layers
    ms: float  # y, cycle time without selector time

    def __post_init__(self) -> None:
        for name in ("nodes", "levels", "union"):
            if getattr(self, name) < 0:
                raise ValueError(f"a probe has {name} = {getattr(self, name)}; expected 0 or more")
        if not (self.ms >= 0 and math.isfinite(self.ms)):
            raise ValueError(f"a probe of {self.nodes} nodes took {self.ms} ms; expected a finite time, 0 or more")


@dataclass(frozen=True, slots=True)
class Fit:
    """Fitted coefficients and what the probes say about them."""

    cost: CostModel
    r2: float  # share of the probes' variance explained; 0 if their times do not vary
    rms_ms: float  # root mean square residual
    worst_ms: float  # residual of largest size, measured minus predicted
    condition: float  # condition number of the design matrix, columns scaled to length 1
    count: int  # probes
    residuals_ms: tuple[float, ...]  # (count,) measured minus predicted, in the order of the probes
    warnings: tuple[str, ...]  # sentences


def fit_paper(probes: Iterable[Probe], max_nodes: int = 7) -> Fit:
    """b_0..b_K and beta by nonnegative least squares (Appendix B).

    Raises ValueError for a probe larger than K, a size without a probe, or unions that do not vary within a size.
    """
    probes = _checked(probes, max_nodes)
    sizes = Counter(probe.nodes for probe in probes)
    missing = [size for size in range(max_nodes + 1) if not sizes[size]]
    if missing:
        raise ValueError(
            f"no probe has {_listed(missing)} nodes, so b_{missing[0]} cannot be fitted; measure probe trees of every "
            f"size 0..{max_nodes}, or lower max_nodes"
        )
    design = np.zeros((len(probes), max_nodes + 2))
    for row, probe in enumerate(probes):
        design[row, probe.nodes] = 1
        design[row, -1] = probe.union
    if np.linalg.matrix_rank(_scaled(design)) < max_nodes + 2:
        raise ValueError(
            "the expert union is the same in all probes of a size, for every size, so beta cannot be told from the "
            "intercepts; measure trees of equal size and different unions (prefix_tree and min_union_tree)"
        )
    *intercepts, beta = _solve(design, probes)
    warnings = [
        f"size {size} has only {sizes[size]} probe{'s' if sizes[size] > 1 else ''}; its intercept b_{size} follows "
        f"their noise, so measure at least {FEW_PROBES}"
        for size in range(max_nodes + 1)
        if sizes[size] < FEW_PROBES
    ]
    names = [*(f"b_{size}" for size in range(max_nodes + 1)), "beta"]
    return _report(CostModel(tuple(intercepts), beta), design, probes, names, [*intercepts, beta], warnings)


def fit_consecutive(probes: Iterable[Probe], max_nodes: int = 7) -> Fit:
    """b0, s, b1, gamma and beta by nonnegative least squares over consecutive cycles; intercepts reach b_0..b_K.

    A term that does not vary among the probes (one size, one depth) is left at zero, with a warning; so is the step,
    without one, where there is no lone pending token or no second size to tell it from b1.
    Raises ValueError for a probe larger than K, fewer than five probes, or unions that follow from size and depth.
    """
    probes = _checked(probes, max_nodes)
    if len(probes) < 5:
        raise ValueError(f"{len(probes)} probes cannot fit five coefficients; measure some 200 consecutive cycles")
    columns = np.array([[1, p.nodes, p.levels, p.union, p.nodes > 0] for p in probes], dtype=float)
    sizes = {probe.nodes for probe in probes}
    varies = [True, *(np.ptp(columns[:, 1:3], axis=0) > 0).tolist(), True, 0 in sizes and len(sizes) > 2]
    warnings = [
        f"every probe has {what} = {int(columns[0, column])}, so {name} is left at 0 and its cost is inside b0"
        for column, what, name in ((1, "nodes", "b1"), (2, "levels", "gamma"))
        if not varies[column]
    ]
    design = columns[:, varies]
    if np.linalg.matrix_rank(_scaled(design)) < design.shape[1]:
        raise ValueError(
            "size, depth and expert union of the probes follow from each other, so their costs cannot be told apart; "
            "vary them independently (random sizes and depths, prefix_tree and min_union_tree)"
        )
    values = np.zeros(5)
    values[varies] = _solve(design, probes)
    b0, b1, gamma, beta, step = values.tolist()
    names = [name for name, there in zip(("b0", "b1", "gamma", "beta", STEP), varies, strict=True) if there]
    intercepts = (b0, *(b0 + step + b1 * size for size in range(1, max_nodes + 1)))
    cost = CostModel(intercepts, expert_ms=beta, level_ms=gamma)
    return _report(cost, design, probes, names, values[varies].tolist(), warnings)


def _checked(probes: Iterable[Probe], max_nodes: int) -> list[Probe]:
    found = list(probes)
    if not found:
        raise ValueError("there are no probes to fit")
    for probe in found:
        if probe.nodes > max_nodes:
            raise ValueError(f"a probe has {probe.nodes} nodes; the fit is for 0..{max_nodes}")
    return found


def _solve(design: NDArray[np.float64], probes: Sequence[Probe]) -> list[float]:
    from scipy.optimize import nnls  # here: scipy takes longer to load than all of specfit

    values, _ = nnls(design, np.array([probe.ms for probe in probes]))
    return [float(value) for value in values]


def _scaled(design: NDArray[np.float64]) -> NDArray[np.float64]:
    lengths = np.linalg.norm(design, axis=0)
    return design / np.where(lengths > 0, lengths, 1)


def _report(
    cost: CostModel,
    design: NDArray[np.float64],
    probes: Sequence[Probe],
    names: Sequence[str],
    values: Sequence[float],
    warnings: Sequence[str],
) -> Fit:
    measured = np.array([probe.ms for probe in probes])
    residuals = measured - design @ np.array(values)
    rms = float(np.sqrt(np.mean(residuals**2)))
    spread = float(np.sum((measured - measured.mean()) ** 2))
    condition = float(np.linalg.cond(_scaled(design)))
    said = list(warnings)
    zero = [name for name, value in zip(names, values, strict=True) if value == 0]
    if "beta" in zero:
        said.append("beta was fitted to zero: more experts did not cost more time here, so the choice ignores routes")
    others = [name for name in zero if name not in ("beta", STEP)]  # a tree may well cost no more than its nodes
    if others:
        said.append(f"{', '.join(others)} {'was' if len(others) == 1 else 'were'} fitted to zero, the bound")
    if condition > ILL_CONDITIONED:
        said.append(f"the probes tell the coefficients apart poorly (condition number {condition:.0f})")
    if len(probes) < 3 * len(names):
        said.append(f"{len(probes)} probes are few for {len(names)} coefficients")
    if rms > 0.2 * float(measured.mean()):
        said.append(f"the residuals are {rms / float(measured.mean()):.0%} of the mean time: the form does not fit")
    return Fit(
        cost=cost,
        r2=1 - float(np.sum(residuals**2)) / spread if spread else 0.0,
        rms_ms=rms,
        worst_ms=float(residuals[np.argmax(np.abs(residuals))]),
        condition=condition,
        count=len(probes),
        residuals_ms=tuple(residuals.tolist()),
        warnings=tuple(said),
    )


def _listed(sizes: Sequence[int]) -> str:
    return " or ".join(map(str, sizes))
