"""What a subtree is worth: reward, predicted cycle time, their ratio, and the order of ties (Equations 3-6).

The selection problem is defined on integers, because a ratio of floats depends on rounding and a tolerance would make
the winner depend on the visiting order: probabilities on a grid of 2^-48, milliseconds on one of 10^-12, ratios
compared by cross-multiplication. Rounding is monotone, so a child's probability stays at most its parent's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from numbers import Real
from pathlib import Path
from typing import Any

from specfit.routes import Routes, check_routes, expert_union
from specfit.safe_files import parse_json
from specfit.tree import DraftPool

PROB_GRID = 1 << 48  # grid steps of probability 1
MS_GRID = 10**12  # grid steps of one millisecond


@dataclass(frozen=True, slots=True)
class CostModel:
    """Cycle time T(S) = b_|S| + beta * F(S) (Equation 4), in milliseconds, and optionally a price per drafted level.

    Coefficients belong to one engine on one machine: they are fitted (`specfit.calibrate`), never defaults.
    Raises ValueError for an empty list, or a negative, infinite or NaN coefficient; the message names it.
    """

    intercepts_ms: tuple[float, ...]  # (K + 1,) b_0..b_K; they need not rise with k (Appendix B)
    expert_ms: float  # beta, per expert of the union
    level_ms: float = 0.0  # gamma, per drafted level; 0 in the paper, where b_k absorbs drafting

    def __post_init__(self) -> None:
        object.__setattr__(self, "intercepts_ms", tuple(self.intercepts_ms))
        if not self.intercepts_ms:
            raise ValueError("a cost model needs at least the intercept b_0")
        named = [(f"b_{k}", b) for k, b in enumerate(self.intercepts_ms)]
        for name, value in [*named, ("beta (expert_ms)", self.expert_ms), ("gamma (level_ms)", self.level_ms)]:
            if not (isinstance(value, Real) and value >= 0 and math.isfinite(value)):
                raise ValueError(f"{name} is {value!r}; coefficients are finite, nonnegative milliseconds")

    @classmethod
    def affine(cls, b0: float, b1: float, *, expert_ms: float, level_ms: float = 0.0, max_nodes: int = 7) -> CostModel:
        """b_k = b0 + b1 * k for k = 0..max_nodes."""
        return cls(tuple(b0 + b1 * k for k in range(max_nodes + 1)), expert_ms, level_ms)

    @property
    def max_nodes(self) -> int:
        """The largest K that the intercepts reach."""
        return len(self.intercepts_ms) - 1

    def save(self, path: str | Path) -> None:
        """Write the coefficients as JSON."""
        Path(path).write_text(json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> CostModel:
        """Read what `save` wrote, or a calibration file, which holds the same under "cost"; ValueError for another."""
        try:
            return cls.from_dict(parse_json(Path(path).read_text()))
        except ValueError as error:
            raise ValueError(f"{path} holds no cost coefficients: {error}") from None

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> CostModel:
        """From a dict of the three fields, or one that holds it under "cost"; ValueError for anything else."""
        data = data.get("cost", data) if isinstance(data, dict) else data
        if not isinstance(data, dict):
            raise ValueError(f"cost coefficients are intercepts_ms, expert_ms and level_ms; got {data!r}")
        unknown = set(data) - {"intercepts_ms", "expert_ms", "level_ms"}
        if unknown or not {"intercepts_ms", "expert_ms"} <= set(data):
            raise ValueError(f"cost coefficients are intercepts_ms, expert_ms and level_ms; got {sorted(data)}")
        if not isinstance(data["intercepts_ms"], (list, tuple)):
            raise ValueError(f"intercepts_ms lists b_0..b_K; got {data['intercepts_ms']!r}")
        return cls(tuple(data["intercepts_ms"]), data["expert_ms"], data.get("level_ms", 0.0))


@dataclass(frozen=True, slots=True)
class CycleState:
    """All that a policy may read in one cycle: the pool drafted so far and the estimated routes of its nodes."""

    pool: DraftPool
    routes: Routes

    def __post_init__(self) -> None:
        check_routes(self.routes, self.pool)


@dataclass(frozen=True, slots=True)
class Selection:
    """A policy's choice, with the values that justify it."""

    nodes: tuple[int, ...]  # sorted pool node ids; empty is the root alone
    reward: float  # R(S), expected committed tokens
    predicted_ms: float  # T(S)
    union: int  # F(S), experts summed over layers
    proved: bool = True  # False: a search gave up at its node limit; the choice is legal, maybe not the best

    @property
    def ratio(self) -> float:
        """Expected tokens per millisecond, R(S) / T(S); infinite when a cost of zero was given."""
        return self.reward / self.predicted_ms if self.predicted_ms else math.inf


def reward(pool: DraftPool, nodes: Iterable[int]) -> float:
    """Expected committed tokens R(S) = 1 + sum of p_v (Equation 3); a Fraction if the probabilities are."""
    return 1 + sum(pool.path_probs[node] for node in sorted(nodes))


def predicted_ms(state: CycleState, nodes: Sequence[int], cost: CostModel) -> float:
    """Cycle time T(S) = b_|S| + beta F(S) [+ gamma levels] (Equation 4); a Fraction if the coefficients are."""
    check_size(cost, len(nodes))
    union = expert_union(state.routes, nodes)
    return cost.intercepts_ms[len(nodes)] + cost.expert_ms * union + cost.level_ms * state.pool.levels


def evaluate(state: CycleState, nodes: Iterable[int], cost: CostModel, *, proved: bool = True) -> Selection:
    """The Selection of given nodes: how a policy that knows which nodes it wants states its choice."""
    chosen = tuple(sorted(nodes))
    union = expert_union(state.routes, chosen)
    return Selection(chosen, reward(state.pool, chosen), predicted_ms(state, chosen, cost), union, proved)


def check_size(cost: CostModel, nodes: int) -> None:
    """ValueError when the cost model has no intercept for a tree of that many nodes."""
    if nodes > cost.max_nodes:
        raise ValueError(
            f"the cost model has intercepts b_0..b_{cost.max_nodes}; a tree of {nodes} draft nodes needs b_{nodes}, "
            "so calibrate with at least that many nodes or lower max_nodes"
        )


# -- the integer form ------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def cost_on_grid(cost: CostModel) -> tuple[tuple[int, ...], int, int]:
    """(b_0..b_K, beta, gamma) in grid steps of 10^-12 ms."""
    intercepts = tuple(round(b * MS_GRID) for b in cost.intercepts_ms)
    return intercepts, round(cost.expert_ms * MS_GRID), round(cost.level_ms * MS_GRID)


def probs_on_grid(pool: DraftPool) -> list[int]:
    """Path probabilities in grid steps of 2^-48, rounded; order-preserving, so closure survives."""
    return [round(prob * PROB_GRID) for prob in pool.path_probs]


def tie_key(reward_steps: int, union: int, nodes: tuple[int, ...]) -> tuple[int, int, int, tuple[int, ...]]:
    """Order among equal ratios, smallest first: larger reward, smaller union, fewer nodes, smaller node ids."""
    return (-reward_steps, union, len(nodes), nodes)
