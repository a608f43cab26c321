"""How far to trust a calibration: what its coefficients left unexplained, probe by probe."""

from __future__ import annotations

from typing import Any

from workbench.charts import Chart, Panel, Series
from workbench.theme import METHOD_COLOURS


def residuals(calibration: Any) -> Chart:
    """Of a `Calibration`: measured minus predicted time of every probe, ms, in the order in which they were measured.

    Points that scatter about zero are noise; a slope is a machine that warmed up or got busy; a few far points are
    interruptions. Empty for a calibration that was kept without its residuals.
    """
    found = calibration.residuals_ms
    rows = tuple({"probe": probe, "residual_ms": ms} for probe, ms in enumerate(found, start=1))
    points = Series("probe", tuple(range(1, len(found) + 1)), found, METHOD_COLOURS["specfit"], "points")
    panel = Panel("probe, in order of time", "measured - predicted, ms", (points,), from_zero=False, level=0.0)
    notes = (f"R^2 = {calibration.r2:.2f}, residuals {calibration.rms_ms:.2f} ms rms.",)
    if not found:
        notes = ("This calibration was kept without its residuals, so there is nothing to draw.",)
    return Chart("calibration_residuals", "Residuals of the calibration", (panel,), rows, notes)
