"""What importing the packages must not bring along, in a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("specfit.select", ("torch", "networkx", "pulp", "scipy", "transformers")),
        ("specfit.theory", ("torch", "transformers")),
        ("specfit.fit", ("torch", "transformers")),
        ("specfit.ablations", ("torch", "transformers", "scipy", "networkx", "pulp")),
    ],
)
def test_importing_stays_light(module: str, unwanted: tuple[str, ...]) -> None:
    script = f"import sys, {module}; print([m for m in {unwanted!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
