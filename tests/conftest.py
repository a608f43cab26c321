"""What every test run shares: quiet, offline, one core per worker, and reasons for what is skipped.

The environment is set before any test can import torch or tokenizers; notebook kernels and other child processes
inherit it. torch itself is never imported here: most tests do without it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

BROWSER_TESTS = Path(__file__).parent / "browser"

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["HF_HUB_OFFLINE"] = "1"  # no test may reach a model hub


@pytest.hookimpl(tryfirst=True)  # before -m looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything under tests/browser as `browser`, and skip `gpu` tests where there is no CUDA device."""
    for item in items:
        if item.path.is_relative_to(BROWSER_TESTS):
            item.add_marker(pytest.mark.browser)
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu and not _cuda():
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device, and torch sees none"))


def _cuda() -> bool:
    import torch

    return torch.cuda.is_available()
