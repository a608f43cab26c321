"""How plotly charts of the workbench look, on a light and a dark page alike: no ground of their own, middle greys."""

from __future__ import annotations

from typing import Any

GREY = "#777d85"  # of lines: contrast 4.2 to white and 4.5 to the lab's dark page
TEXT = "#71777f"  # of words: 4.5 to white, and 4.2 to the dark page; no one colour has 4.5 to both


def axes(x: str, y: str, **more: Any) -> dict[str, Any]:
    """A layout with these axis titles."""
    line = {"gridcolor": "rgba(138,144,153,0.28)", "zeroline": False, "linecolor": GREY, "ticks": "outside"}
    return {
        "template": "none",
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": TEXT},
        "margin": {"l": 60, "r": 20, "t": 30, "b": 50},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom"},
        "xaxis": {"title": _axis_title(x), **line},
        "yaxis": {"title": _axis_title(y), "automargin": True, **line},
        **more,
    }


def _axis_title(text: str) -> dict[str, Any]:
    return {"text": text, "font": {"size": 13}, "standoff": 8}
