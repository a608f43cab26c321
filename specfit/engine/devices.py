"""Which device computes, by name, refused in one sentence where torch or this machine has none of that name."""

from __future__ import annotations

import torch


def choose_device(asked: str | torch.device | None, *, emulated: bool = False, here: bool = True) -> torch.device:
    """The asked device; by default CUDA where there is one and no link is emulated, which stands in for a real one.

    here: it must be a device of this machine. Raises ValueError for one that is not, and for a name of none.
    """
    if asked is None:
        return torch.device("cuda" if torch.cuda.is_available() and not emulated else "cpu")
    try:
        device = torch.device(asked)
    except RuntimeError:
        raise ValueError(f"there is no device {str(asked)!r}; give cpu, cuda or one of several, as cuda:1") from None
    if here and device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            raise ValueError(
                f"device {device} was asked for, and torch sees {count or 'no'} CUDA devices here; give cpu"
            )
    elif here and device.type != "cpu":
        try:
            torch.zeros(1, device=device).item()
        except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
            why = str(error).strip().splitlines()[:1]
            raise ValueError(f"device {device} does not compute here ({''.join(why)}); give cpu or cuda") from None
    return device
