"""Amounts of memory: as people write them, as this machine has them, as they are printed."""

from __future__ import annotations

import re
from pathlib import Path

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
CGROUPS = (
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"),
)


def parse_bytes(text: str | int) -> int:
    """20GB, 1.5 TiB, 8000000000 -> bytes. ValueError for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(text))
    unit = match and match[2].upper()
    if not match or unit not in UNITS or float(match[1]) <= 0:
        raise ValueError(f"{text!r} is no amount of memory; write it as 20GB or 18.5GiB")
    return int(float(match[1]) * UNITS[unit])


def free_host_memory() -> int | None:
    """Bytes of memory that this process may still take: the system's, or a container's limit if that is lower."""
    found = []
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    except (OSError, ValueError, IndexError):
        pass
    for folder, limit, used in CGROUPS:
        try:
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            files = int(stat["inactive_file"]) + int(stat["active_file"])  # read from disk: given up when asked for
            found.append(max(0, int((folder / limit).read_text()) - int((folder / used).read_text()) + files))
        except (OSError, ValueError, KeyError):  # no such file, or no limit ("max")
            continue
    return min(found, default=None)


def shown(size: int) -> str:
    """1.50 GiB, or 12.0 MiB below one."""
    return f"{size / 2**30:.2f} GiB" if size >= 1 << 30 else f"{size / 2**20:.1f} MiB"
