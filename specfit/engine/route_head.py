"""The trained route predictor: linear maps from the drafter's states to expert logits of every MoE layer.

The paper leaves it to future work (Section 4.6 simulates one). A node's routes are the top-k of one product, from
[token embedding, parent's drafter state]; a node that was expanded has a drafter state of its own, which is added. The
root always has one, and the target's fused features of the token before it stand in for its parent's state.

A head is one safetensors file: a weight and a bias for each kind of row, how often every expert is used at all (the
`prior`), and a JSON card in the metadata that says for which pair, from which prompts and how accurate it is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from specfit.engine.skeleton import named_moe_modules
from specfit.safe_files import parse_json, replace_file

if TYPE_CHECKING:
    from specfit.engine.engine import Engine

PIECES = {"root": 3, "inner": 3, "leaf": 2}  # kind of row -> vectors of H side by side; inner: an expanded node
FORMAT = "specfit route head 1"
NORM_EPS = 1e-6
FINGERPRINTED = 1 << 22  # parameters with more elements are left out of a pair's fingerprint


@dataclass(frozen=True, slots=True)
class RouteShape:
    """What a pair fixes of its heads."""

    hidden: int  # H, width of the drafter's states
    layers: int  # MoE layers
    experts: int  # of the widest layer
    top_k: int  # experts a token uses in a layer

    @property
    def outputs(self) -> int:
        return self.layers * self.experts


@dataclass(frozen=True, slots=True, eq=False)
class RouteHead:
    """A head as its file holds it. `specfit.engine.route_sources.HeadRoutes` applies it to an engine's drafter."""

    shape: RouteShape
    weights: Mapping[str, Tensor]  # kind -> (pieces * H, layers * experts)
    biases: Mapping[str, Tensor]  # kind -> (layers * experts,)
    prior: Tensor  # (layers, experts) share of the training rows that use the expert
    card: Mapping[str, Any]  # JSON values: pair, fingerprint, prompts, accuracy, ...

    @property
    def digest(self) -> str:
        """Names the head among others, in a run's settings."""
        return _digest(self._tensors().items())

    def check(self, engine: Engine) -> None:
        """ValueError unless the head was trained for this engine's target and drafter."""
        engine.check_open()
        if engine.drafter is None:
            raise ValueError("a route head reads a drafter's states; load the engine with a drafter")
        made_for = f"{_printable(self.card.get('target'))} with {_printable(self.card.get('drafter'))}"
        own = (self.shape.hidden, self.shape.layers, self.shape.experts)
        asked = (engine.drafter.head.config.hidden_size, engine.layers, engine.experts)
        if own != asked:
            raise ValueError(
                f"the route head is for another pair ({made_for}: states of {own[0]}, {own[1]} layers, {own[2]} "
                f"experts; here they are {asked[0]}, {asked[1]} and {asked[2]}); train one with `specfit train-routes`"
            )
        if self.card.get("fingerprint") != pair_fingerprint(engine):
            raise ValueError(
                f"the route head was trained on other weights ({made_for}) of the same shapes as this pair; "
                "train one with `specfit train-routes`"
            )

    def save(self, path: str | Path) -> None:
        """Write one safetensors file."""
        card = json.dumps({"format": FORMAT, "shape": asdict(self.shape), **self.card}, allow_nan=False)
        replace_file(Path(path), save(self._tensors(), metadata={"card": card}))

    @classmethod
    def load(cls, path: str | Path) -> RouteHead:
        """Read what `save` wrote; ValueError in one sentence for anything else, or for weights that are not finite."""
        try:
            with safe_open(path, framework="pt") as file:
                card = parse_json((file.metadata() or {})["card"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it is no dict
            if card.pop("format") != FORMAT:
                raise ValueError("its card names another format")
            shape = RouteShape(**card.pop("shape"))
            _check_tensors(tensors, shape)
        except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
            why = f"it lacks {error}" if isinstance(error, KeyError) else error
            raise ValueError(f"{path} is no route head ({why}); make one with `specfit train-routes`") from error
        return cls(
            shape,
            {kind: tensors[f"{kind}.weight"] for kind in PIECES},
            {kind: tensors[f"{kind}.bias"] for kind in PIECES},
            tensors["prior"],
            card,
        )

    def _tensors(self) -> dict[str, Tensor]:
        named = {"prior": self.prior}
        for kind in PIECES:
            named |= {f"{kind}.weight": self.weights[kind], f"{kind}.bias": self.biases[kind]}
        return {name: tensor.contiguous() for name, tensor in named.items()}


def scaled(vectors: Tensor) -> Tensor:
    """Vectors with a mean square of 1 and in float32, as a head's maps take them side by side; (..., H)."""
    x = vectors.float()
    mean_square = torch.linalg.vecdot(x, x).unsqueeze(-1) / x.shape[-1]
    return x * torch.rsqrt(mean_square + NORM_EPS)


def pair_fingerprint(engine: Engine) -> str:
    """Tells pairs with the same shapes apart by their weights: norms, routers, projections.

    They are rounded to bfloat16, so that it is the same in that and in float32 (float16 loses small weights). Experts
    are left out: only some of them are on the device.
    """
    model: nn.Module = engine.target.model
    experts = tuple(f"{name}." for name, _ in named_moe_modules(engine.target.model))
    assert engine.drafter is not None
    found = [(name, p) for name, p in model.named_parameters() if not name.startswith(experts)]
    found += [(f"drafter.{name}", p) for name, p in engine.drafter.head.named_parameters()]
    return _digest((name, p.detach().to(torch.bfloat16)) for name, p in found if p.numel() <= FINGERPRINTED)


def _printable(value: object) -> str:
    """Text of a file that others may have written, short and without control characters."""
    text = "".join(c if c.isprintable() else "?" for c in str(value))
    return text if len(text) <= 80 else f"{text[:77]}..."


def _check_tensors(tensors: Mapping[str, Tensor], shape: RouteShape) -> None:
    sizes: dict[str, tuple[int, ...]] = {"prior": (shape.layers, shape.experts)}
    for kind, pieces in PIECES.items():
        sizes[f"{kind}.weight"] = (pieces * shape.hidden, shape.outputs)
        sizes[f"{kind}.bias"] = (shape.outputs,)
    for name, size in sizes.items():
        tensor = tensors[name]
        if tuple(tensor.shape) != size:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}; its card says {size}")
        if not tensor.is_floating_point() or not torch.isfinite(tensor).all():
            raise ValueError(f"{name} holds values that are no finite numbers")
    if not 1 <= shape.top_k <= shape.experts:
        raise ValueError(f"its card says top {shape.top_k} of {shape.experts} experts")
    unknown = sorted(set(tensors) - set(sizes))
    if unknown:
        raise ValueError(f"it holds a tensor {_printable(unknown[0])} that no route head has")


def _digest(tensors: Iterable[tuple[str, Tensor]]) -> str:
    found = hashlib.sha256()
    for name, tensor in sorted(tensors, key=lambda pair: pair[0]):
        flat = tensor.contiguous().flatten().cpu()
        found.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        found.update(flat.view(torch.uint8).numpy().data)
    return found.hexdigest()[:16]
