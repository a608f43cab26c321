"""Muon for stacks of matrices: momentum whose update is made nearly orthogonal, so every direction moves alike.

With a few hundred steps to spend it learns this model about twice as fast as AdamW. Experts are many equal small
matrices, so the Newton-Schulz iteration runs on one stack of them. Embeddings, norms and routers stay with AdamW.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

STEPS = 5
CHUNK = 64  # matrices at a time: what the iteration touches stays in the processor's cache
QUINTIC = (3.4445, -4.7750, 2.0315)  # drives singular values into about [0.7, 1.2]


class Muon:
    """Nesterov momentum, orthogonalised updates and decoupled weight decay over parameters of two or three axes."""

    def __init__(self, parameters: Sequence[Tensor], *, lr: float, momentum: float = 0.95, decay: float = 0.01):
        self.lr, self.momentum, self.decay = lr, momentum, decay
        self.stacks = _same_shapes(parameters)
        self.buffers = [[torch.zeros_like(p) for p, _ in stack] for stack in self.stacks]

    @torch.no_grad()
    def step(self, factor: float) -> None:
        """Apply one update at `factor` times the learning rate and clear the gradients."""
        for stack, buffers in zip(self.stacks, self.buffers, strict=True):
            views = []
            for (parameter, halves), buffer in zip(stack, buffers, strict=True):
                assert parameter.grad is not None  # every matrix takes part in every step
                buffer.lerp_(parameter.grad, 1 - self.momentum)
                views.append(_as_stack(torch.lerp(parameter.grad, buffer, self.momentum), halves))
            updates = orthogonal(torch.cat(views)).split([len(view) for view in views])
            for (parameter, halves), update in zip(stack, updates, strict=True):
                scale = max(1.0, _rows(parameter, halves) / parameter.shape[-1]) ** 0.5
                update = _from_stack(update, parameter, halves)
                parameter.mul_(1 - self.lr * factor * self.decay).sub_(update, alpha=self.lr * factor * scale)
                parameter.grad = None


def orthogonal(stack: Tensor) -> Tensor:
    """Newton-Schulz: (count, rows, columns) with rows <= columns -> nearest orthogonal rows, roughly."""
    return torch.cat([_orthogonal(chunk) for chunk in stack.split(CHUNK)])


def _orthogonal(stack: Tensor) -> Tensor:
    a, b, c = QUINTIC
    x = stack / (stack.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(STEPS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


def _same_shapes(parameters: Sequence[Tensor]) -> list[list[tuple[Tensor, int]]]:
    """Group parameters by the shape their matrices have as stacks; a fused gate_up tensor counts as two halves."""
    stacks: dict[tuple[int, int], list[tuple[Tensor, int]]] = {}
    for parameter in parameters:
        halves = 2 if parameter.ndim == 3 and parameter.shape[1] < parameter.shape[2] else 1
        sides = _rows(parameter, halves), parameter.shape[-1]
        stacks.setdefault((min(sides), max(sides)), []).append((parameter, halves))
    return list(stacks.values())


def _rows(parameter: Tensor, halves: int) -> int:
    return parameter.shape[-2] // halves


def _as_stack(update: Tensor, halves: int) -> Tensor:
    """(rows, columns) or (experts, halves * rows, columns) -> (count, short side, long side)."""
    stack = update.reshape(-1, update.shape[-2] // halves, update.shape[-1])
    return stack.mT if stack.shape[-2] > stack.shape[-1] else stack


def _from_stack(stack: Tensor, parameter: Tensor, halves: int) -> Tensor:
    transposed = _rows(parameter, halves) > parameter.shape[-1]
    return (stack.mT if transposed else stack).reshape(parameter.shape)
