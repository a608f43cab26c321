"""Closing a widget with all that hangs on it: ipywidgets leaves layouts and styles open, so the page keeps them."""

from __future__ import annotations

from typing import Any

import ipywidgets


def close_dress(widget: Any) -> None:
    """Close the layout and the style of a widget that is closed itself."""
    for name in ("layout", "style"):
        dress: Any = getattr(widget, name, None)
        if isinstance(dress, ipywidgets.Widget):
            dress.close()


def close_box(box: Any) -> None:
    """Close the children of a box, theirs too, and their layouts and styles; the box itself stays."""
    for child in box.children:
        child.close()  # before what it holds: a page that still draws it would look for that in vain
        if hasattr(child, "children"):
            close_box(child)
        close_dress(child)
