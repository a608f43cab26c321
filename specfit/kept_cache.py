"""What the expert caches held after a request, kept beside its run, so that a resumed stream goes on where it was.

The paper's request stream carries its expert cache over from question to question. A run that is stopped and resumed
would begin with an empty one and count other hits; so before a request is stored, what the caches hold goes into
expert_cache.json under the request's id. The entry of the last finished request stays as well: whichever of the two
the kill let through is the last finished one, also when the same request is killed again and again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from specfit.run_reading import in_words
from specfit.safe_files import parse_json, replace_file

FILE = "expert_cache.json"
Contents = Sequence[Sequence[tuple[int, int]]]  # for every layer (expert, slot), least recently used first


def keep_cache(folder: Path, request_id: str, contents: Contents, *, finished: str | None) -> None:
    """Note what the caches hold after a request that is about to be stored; RunError where the disk takes no more.

    finished: the last request that is stored, None before the first.
    """
    entries = _entries(folder)
    last = {finished: entries[finished]} if finished in entries else {}
    layers = [[list(pair) for pair in layer] for layer in contents]
    data = json.dumps({**last, request_id: layers}, separators=(",", ":")).encode()
    with in_words(folder, f"keeping the expert cache after request {request_id!r}"):
        replace_file(folder / FILE, data)


def kept_cache(folder: Path, request_id: str) -> Contents | None:
    """What the caches held after this request; None where that was not kept."""
    layers = _entries(folder).get(request_id)
    return None if layers is None else tuple(tuple((expert, slot) for expert, slot in layer) for layer in layers)


def _entries(folder: Path) -> dict[str, list[list[list[int]]]]:
    """The entries by request; none where the file is missing or not as written, for it only saves a cold start."""
    try:
        entries = parse_json((folder / FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    return entries if isinstance(entries, dict) and all(map(_is_contents, entries.values())) else {}


def _is_contents(layers: object) -> bool:
    return isinstance(layers, list) and all(
        isinstance(layer, list)
        and all(isinstance(pair, list) and len(pair) == 2 and all(type(x) is int for x in pair) for pair in layer)
        for layer in layers
    )
