"""How large the largest tensor of a computation is, as torch itself makes it."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class LargestTensor(TorchDispatchMode):
    """In a `with`: `elements` is how much the largest result of any operation holds.

    A view that repeats memory (`expand`) counts as the memory behind it.
    """

    elements = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor):
                held = tensor.untyped_storage().nbytes() // tensor.element_size()
                self.elements = max(self.elements, min(held, tensor.numel()))
        return result
