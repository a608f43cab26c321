"""Training a route head: an atlas pass over training prompts that also keeps the drafter's states, then a fit.

At every position of every prompt's greedy text the full pool is drafted and its true routes are recorded; each root,
node and expanded node is one example. Every kind of row gets its own logistic regression on which experts are used,
a few hundred Adam steps. Some prompts are held out to measure on. Seeded, with fixed step counts: no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from specfit.engine.greedy_walk import Step, walk_greedily
from specfit.engine.route_head import PIECES, RouteHead, RouteShape, pair_fingerprint, scaled
from specfit.tree import ROOT

if TYPE_CHECKING:
    from specfit.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class RouteRecipe:
    """All that decides a head besides its examples."""

    steps: int = 300  # of each kind of row
    batch: int = 1024  # rows
    learning_rate: float = 0.05  # falls linearly to 0
    held_out: float = 0.125  # share of the prompts to measure on, at least one
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} of the training is {getattr(self, name)}; expected at least 1")


class Examples:
    """Rows with their states and true routes, one prompt after the other."""

    def __init__(self, engine: Engine) -> None:
        assert engine.drafter is not None
        self._drafter = engine.drafter
        self._states: list[Tensor] = []  # (some, H) blocks
        self._count = 0  # rows in them
        # Per kind: token, parent's place among the states, own place, prompt; and the expert ids of each row.
        self._rows: dict[str, list[tuple[int, int, int, int]]] = {kind: [] for kind in PIECES}
        self._routes: dict[str, list[NDArray[np.integer]]] = {kind: [] for kind in PIECES}
        self._prompt = -1

    def next_prompt(self) -> None:
        """What comes from now on is of the next prompt."""
        self._prompt += 1

    def add(self, root: int, step: Step) -> None:
        """The pool that the drafter has just grown, with its routes."""
        growth = self._drafter.growth
        assert growth is not None and growth.pool is step.pool
        place, here = {}, self._count + 1  # the place before holds the feature, the root's "parent"
        for nodes, states in growth.expanded:
            place |= {node: here + row for row, node in enumerate(nodes)}
            here += len(nodes)
            self._states.append(states)
        self._states.insert(len(self._states) - len(growth.expanded), growth.pending.feature[0])
        for node, (token, parent) in enumerate(zip(step.pool.tokens, step.pool.parents, strict=True)):
            kinds = ("leaf", "inner") if node in place else ("leaf",)  # it was a leaf before it was expanded
            for kind in kinds:
                self._keep(kind, token, place[parent], place.get(node, 0), step.indices[1 + node])
        self._keep("root", root, self._count, place[ROOT], step.indices[0])
        self._count = here

    def _keep(self, kind: str, token: int, parent: int, own: int, routes: NDArray[np.integer]) -> None:
        self._rows[kind].append((token, parent, own, self._prompt))
        self._routes[kind].append(routes)

    def table(self, kind: str) -> Table:
        """The rows of one kind, ready to draw from; ValueError where there are none."""
        if not self._rows[kind]:
            raise ValueError(f"the training prompts give no example of a {kind}; use longer answers or a deeper draft")
        rows = torch.tensor(self._rows[kind])
        return Table(kind, self._drafter.head.embed, torch.cat(self._states), rows, np.stack(self._routes[kind]))


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of one kind."""

    kind: str
    embed: Callable[[Tensor], Tensor]
    states: Tensor  # (places, H)
    rows: Tensor  # (n, 4) token, parent's place, own place, prompt
    routes: NDArray[np.integer]  # (n, layers, top_k)

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, chosen: Tensor) -> Table:
        """Some rows, (n,) booleans."""
        return Table(self.kind, self.embed, self.states, self.rows[chosen], self.routes[chosen.numpy()])

    def inputs(self, picked: Tensor) -> Tensor:
        """(rows, pieces * H) of the picked rows."""
        rows = self.rows[picked].to(self.states.device)
        states = [self.states[rows[:, 1 + piece]] for piece in range(PIECES[self.kind] - 1)]
        return scaled(torch.stack([self.embed(rows[:, 0]), *states], dim=1)).flatten(1)

    def labels(self, picked: Tensor, *, experts: int) -> Tensor:
        """(rows, layers, experts), 1 where the row uses the expert."""
        ids = torch.from_numpy(self.routes[picked.numpy()].astype(np.int64)).to(self.states.device)
        return torch.zeros(*ids.shape[:2], experts, device=ids.device).scatter_(2, ids, 1.0)


def collect(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    progress: Callable[[int], None] = lambda done: None,
) -> Examples:
    """The examples of some prompts, from an atlas pass over their greedy texts."""
    examples = Examples(engine)
    for done, prompt in enumerate(prompts, start=1):
        examples.next_prompt()
        room = engine.room(prompt, max_new_tokens)
        walk_greedily(engine, prompt, max_new_tokens=room, watch=examples.add)
        progress(done)
    return examples


def train_head(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int = 200,
    recipe: RouteRecipe | None = None,
    about: Mapping[str, Any] | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> RouteHead:
    """A route head for the engine's pair. about: JSON values for its card, such as where the prompts come from.

    Every `held_out` share's prompt, evenly spread, is kept to measure on. Raises ValueError for fewer than two prompts,
    an engine without a drafter, or texts too short for an example of every kind.
    """
    recipe = recipe or RouteRecipe()
    if engine.drafter is None:
        raise ValueError("a route head reads a drafter's states; load the engine with a drafter")
    if len(prompts) < 2:
        raise ValueError(
            f"training a route head needs at least 2 prompts, one of them to measure on; got {len(prompts)}"
        )
    examples = collect(engine, prompts, max_new_tokens=max_new_tokens, progress=progress)
    held_out = _spread(len(prompts), max(1, round(recipe.held_out * len(prompts))))
    weights, biases, accuracy, rows = {}, {}, {}, {}
    used = torch.zeros(engine.layers, engine.experts)
    for kind in PIECES:
        table = examples.table(kind)
        tested = torch.isin(table.rows[:, 3], torch.tensor(held_out))
        training, testing = table.select(~tested), table.select(tested)
        if not len(training) or not len(testing):
            raise ValueError(f"the prompts that are left to train or to measure on give no {kind}; give more prompts")
        weight, bias = _fit(training, engine.experts, recipe)
        weights[kind], biases[kind] = weight.to(torch.bfloat16), bias.to(torch.bfloat16)
        accuracy[kind] = [round(share, 4) for share in layer_accuracy(weights[kind], biases[kind], testing)]
        rows[kind] = len(training)
        if kind != "inner":  # an expanded node is among the leaves already
            used += torch.from_numpy(_counts(training.routes, engine.experts))
    shape = RouteShape(
        engine.drafter.head.config.hidden_size, engine.layers, engine.experts, int(training.routes.shape[2])
    )
    card = {
        "target": engine.settings["target"],
        "drafter": engine.settings["drafter"],
        "fingerprint": pair_fingerprint(engine),
        "draft": engine.settings["draft"],
        "prompts": len(prompts) - len(held_out),
        "held_out_prompts": len(held_out),
        "rows": rows,
        "recipe": asdict(recipe),
        "accuracy": accuracy,  # kind -> a share of the true top-k for every layer, on the held-out prompts
        **(about or {}),
    }
    return RouteHead(shape, weights, biases, used / (rows["root"] + rows["leaf"]), card)


def layer_accuracy(weight: Tensor, bias: Tensor, table: Table) -> list[float]:
    """Share of the true experts that the predicted top-k has, for every layer."""
    layers, top_k = table.routes.shape[1:]
    experts = len(bias) // layers
    right = torch.zeros(layers, device=table.states.device)
    for start in range(0, len(table), 4096):
        picked = torch.arange(start, min(start + 4096, len(table)))
        logits = torch.addmm(bias.float(), table.inputs(picked), weight.float()).view(-1, layers, experts)
        found = logits.topk(top_k, dim=-1).indices
        right += table.labels(picked, experts=experts).gather(2, found).sum(dim=(0, 2))
    return (right / (len(table) * top_k)).tolist()


def _fit(table: Table, experts: int, recipe: RouteRecipe) -> tuple[Tensor, Tensor]:
    """Weight and bias of one kind, starting from how often each expert is used."""
    device, layers = table.states.device, table.routes.shape[1]
    draw = torch.Generator().manual_seed(recipe.seed)
    with torch.inference_mode(False), torch.enable_grad():
        share = torch.from_numpy(_counts(table.routes, experts)).flatten() / len(table)
        bias = torch.logit(share.clamp(1e-4, 1 - 1e-4)).to(device).requires_grad_()
        width = PIECES[table.kind] * table.states.shape[1]
        weight = torch.zeros(width, layers * experts, device=device, requires_grad=True)
        optimizer = torch.optim.Adam([weight, bias], lr=recipe.learning_rate, betas=(0.9, 0.95))
        for step in range(recipe.steps):
            picked = torch.randint(len(table), (min(recipe.batch, len(table)),), generator=draw)
            logits = torch.addmm(bias, table.inputs(picked), weight)
            labels = table.labels(picked, experts=experts).flatten(1)
            loss = F.binary_cross_entropy_with_logits(logits, labels, reduction="sum") / len(picked)
            for group in optimizer.param_groups:
                group["lr"] = recipe.learning_rate * (1 - step / recipe.steps)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return weight.detach(), bias.detach()


def _counts(routes: NDArray[np.integer], experts: int) -> NDArray[np.float32]:
    """How often every expert is used, (layers, experts)."""
    counts = [np.bincount(routes[:, layer].ravel(), minlength=experts) for layer in range(routes.shape[1])]
    return np.stack(counts).astype(np.float32)


def _spread(count: int, some: int) -> list[int]:
    """`some` of 0..count-1, evenly spread, so that prompts of every workload are among them."""
    return sorted({int((number + 0.5) * count / some) for number in range(some)})
