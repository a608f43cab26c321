"""What stands in a notebook beside a widget, for pages where no widget runs: a picture, and a stable line of text."""

from __future__ import annotations

import os
import re
from typing import Any

PAPER_PX = 560  # what an exported notebook has room for on A4 paper; a wider picture would be cut there
COLAB = "Colab shows the widget after: from google.colab import output; output.enable_custom_widget_manager()"


def widget_bundle(bundle: Any, *, text: str, svg: str = "", html: str = "") -> Any:
    """A widget's own MIME bundle with `text` as text/plain and, where given, a static picture or table.

    Notebook pages choose the widget where it lives and fall back to the richest of the others.
    """
    data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
    if data is None:
        return bundle
    if "COLAB_RELEASE_TAG" in os.environ:
        text = f"{text}\n{COLAB}"
    data = {**data, "text/plain": text}
    if svg:
        data["image/svg+xml"] = fitting(svg)
    if html:
        data["text/html"] = html
    return data, metadata


def fitting(svg: str) -> str:
    """`svg` shown no wider than a printed notebook's column; its drawing does not change."""
    size = re.search(r'<svg [^>]*?width="([0-9.]+)(pt|)" height="([0-9.]+)(?:pt|)"', svg)
    if size is None:
        return svg
    wide, high = (float(size[group]) * (4 / 3 if size[2] else 1) for group in (1, 3))
    if wide <= PAPER_PX:
        return svg
    shown = re.sub(
        'width="[^"]*" height="[^"]*"$', f'width="{PAPER_PX}" height="{high * PAPER_PX / wide:.0f}"', size[0]
    )
    return svg[: size.start()] + shown + svg[size.end() :]
