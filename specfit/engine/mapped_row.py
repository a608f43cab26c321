"""An expert that stays in its checkpoint's file, memory-mapped: for models larger than a CPU's memory.

The parts of an expert (gate, up, down) lie apart in the file, so it is a row in pieces; they are copied into a slot one
after the other, and converted on the way where the file has another dtype. What was copied stays in the system's page
cache as long as nothing else needs that memory. The file must stay as it is while the engine lives.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class MappedRow:
    """One expert's weights in their file; stands where a flat row of host memory does."""

    def __init__(self, pieces: Sequence[tuple[Tensor, torch.dtype]], *, dtype: torch.dtype) -> None:
        """pieces: mapped bytes in the order of a row, and the dtype that they are stored in. dtype: of the slots."""
        self.dtype = dtype
        self._pieces = [(data, stored, len(data) // stored.itemsize) for data, stored in pieces]

    def numel(self) -> int:
        """Numbers in the row."""
        return sum(count for _, _, count in self._pieces)

    def copy_into(self, slot: Tensor) -> None:
        """Fill a flat slot."""
        start = 0
        for data, stored, count in self._pieces:
            # A file may begin its tensors anywhere; numbers are read from where their size divides the address.
            aligned = data if data.storage_offset() % stored.itemsize == 0 else data.clone()
            slot[start : start + count].copy_(aligned.view(stored))
            start += count


HostRow = Tensor | MappedRow


def copy_row(source: HostRow, slot: Tensor) -> None:
    """One expert's weights into a flat slot, at once."""
    if isinstance(source, MappedRow):
        source.copy_into(slot)
    else:
        slot.copy_(source)
