"""Only one live run at a time: a new one stops the one before and frees its engine; so does the interpreter's end."""

from __future__ import annotations

import atexit
import threading
import weakref
from typing import Any

GRACE_S = 10  # after which the widgets of a replaced run are closed

_current: weakref.ref[Any] | None = None


def retire_current(*, keep: Any = None) -> None:
    """Stop the newest LiveRun and free its engine (unless it is `keep`); its widgets close a little later.

    A page that was just opened or reloaded loads every widget of the kernel, and complains of one that goes meanwhile.
    """
    global _current
    live, _current = None if _current is None else _current(), None
    if live is None or live.closed:
        return
    live.free(keep=keep)
    live.controls.start_button.disabled = True
    live.controls.say("A newer live run has taken over.")
    later = threading.Timer(GRACE_S, live.close)
    later.daemon = True
    later.start()


def become_current(live: Any) -> None:
    """`live` is the newest now."""
    global _current
    _current = weakref.ref(live)


def _free_at_exit() -> None:
    """A worker in the middle of a forward while the interpreter is taken down would end it with a traceback."""
    live = None if _current is None else _current()
    if live is not None:
        live.free(patience_s=5)


atexit.register(_free_at_exit)
