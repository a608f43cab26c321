"""Draw docs/cycle.svg, the picture in the README: one recorded cycle as the cycle view exports it.

python docs/cycle.py
"""

from pathlib import Path

import specfit
import workbench

HERE = Path(__file__).parent
CYCLE = 38  # of the recorded run: drafting stopped early, some nodes accepted, some rejected, some left out


def draw() -> str:
    """The SVG, on white so that it can be read on a dark page."""
    player = workbench.CyclePlayer(specfit.load_run(HERE.parent / "notebooks" / "runs" / "problems-16-specfit"))
    player.go(CYCLE)
    opening, rest = player.view.svg().split(">", 1)
    return f'{opening}><rect width="100%" height="100%" fill="white"/>{rest}\n'


if __name__ == "__main__":
    (HERE / "cycle.svg").write_text(draw(), encoding="utf-8")
