"""Several projections of one input as one matrix product, without renaming or duplicating a parameter.

At one or two rows a product costs little more than starting it, so q, k and v together take the time of one.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class Packed:
    """The weights (and biases) of several projections of one input, stacked in one tensor."""

    weight: Tensor  # (sum of outputs, inputs)
    bias: Tensor | None  # (sum of outputs,)
    linears: tuple[nn.Linear, ...]
    addresses: tuple[tuple[int, int], ...]  # where each linear's rows of `weight` and `bias` begin

    @classmethod
    def of(cls, *linears: nn.Linear) -> "Packed":
        """Stack the projections and turn their parameters into views of the stack."""
        sizes = [linear.out_features for linear in linears]
        weight = torch.cat([linear.weight.detach() for linear in linears])
        for linear, rows in zip(linears, weight.split(sizes), strict=True):
            linear.weight.data = rows
        bias = None
        if linears[0].bias is not None:
            bias = torch.cat([linear.bias.detach() for linear in linears])
            for linear, rows in zip(linears, bias.split(sizes), strict=True):
                linear.bias.data = rows
        return cls(weight, bias, linears, tuple(map(_addresses, linears)))

    @property
    def current(self) -> bool:
        """False once a parameter was moved, cast or replaced."""
        return tuple(map(_addresses, self.linears)) == self.addresses


def _addresses(linear: nn.Linear) -> tuple[int, int]:
    return linear.weight.data_ptr(), 0 if linear.bias is None else linear.bias.data_ptr()


def project(packed: Packed | None, x: Tensor, *linears: nn.Linear) -> Tensor:
    """The projections of x side by side in the last dimension: one product if packed, else one each (training)."""
    if packed is not None and not torch.is_grad_enabled() and packed.current:
        return F.linear(x, packed.weight, packed.bias)
    return torch.cat([linear(x) for linear in linears], dim=-1)
