"""The workbench: look at recorded and running decode cycles, in notebooks and on paper. Needs no torch."""

from workbench import figures
from workbench.cycle_view import CycleView
from workbench.export import export, export_all
from workbench.live import LiveRun
from workbench.player import CyclePlayer

__all__ = ["CyclePlayer", "CycleView", "LiveRun", "export", "export_all", "figures"]
