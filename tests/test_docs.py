"""Pictures in the docs are what the code draws today."""

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def test_the_readmes_picture_is_up_to_date() -> None:
    drawn = runpy.run_path(str(DOCS / "cycle.py"))["draw"]()
    assert drawn == (DOCS / "cycle.svg").read_text(encoding="utf-8"), "draw it again: python docs/cycle.py"
