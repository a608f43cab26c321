"""What stands in a notebook beside a widget, for pages where no widget runs: a picture, and a stable line of text."""

from __future__ import annotations

import os
from typing import Any

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
        data["image/svg+xml"] = svg
    if html:
        data["text/html"] = html
    return data, metadata
