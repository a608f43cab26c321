"""The strip of a run: its cycles on a timeline and its output text, coloured by cycle, with the controls to move.

It shows positions of an order (all cycles, or a filtered choice of them) and asks Python to move; the player answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import anywidget
import numpy as np
import traitlets

from specfit.records import RequestRecord
from workbench.cycle_view import script
from workbench.mime import widget_bundle
from workbench.run_facts import ORDERS
from workbench.theme import widget_css
from workbench.token_text import flowing

PREFILL, ACCEPTED, OWN = 0, 1, 2  # whose a token is: the prompt's forward, an accepted draft, the target's own
NOT_SHOWN = -1  # of a token whose cycle is not in the order


class RunStrip(anywidget.AnyWidget):
    """Timeline, text and controls of one run; `asked` says what the person wants, the player moves `at`."""

    _esm = script("dom.js", "run_strip.js")
    _css = widget_css("run_strip")

    name = traitlets.Unicode("").tag(sync=True)
    """The run in a few words, e.g. its method."""
    at = traitlets.Int(0).tag(sync=True)
    """Position in the order."""
    times = traitlets.Bytes(b"").tag(sync=True)
    """(positions, 4) float32 milliseconds of draft, select, verify, commit, in the order shown."""
    rates = traitlets.Bytes(b"").tag(sync=True)
    """(positions,) float32 expected tokens per second (R/T); NaN where unknown."""
    breaks: traitlets.List[int] = traitlets.List([]).tag(sync=True)
    """Positions at which another question begins."""
    labels: traitlets.List[str] = traitlets.List([]).tag(sync=True)
    """[of the position, of the question] in words, for the readout."""
    questions: traitlets.List[str] = traitlets.List([]).tag(sync=True)
    """Names of the questions; the first choice, -1, is all of them."""
    question = traitlets.Int(-1).tag(sync=True)
    """Which question is walked through; -1 for all."""
    orders = traitlets.Dict(ORDERS).tag(sync=True)
    """Filters by key, in words."""
    order = traitlets.Unicode("all").tag(sync=True)
    """The filter in use."""
    prompt = traitlets.Unicode("").tag(sync=True)
    """The question's prompt as far as its token texts are known."""
    text: traitlets.List[str] = traitlets.List([]).tag(sync=True)
    """Output tokens of the question at `at`."""
    owners = traitlets.Bytes(b"").tag(sync=True)
    """int32 a token: the position of the cycle that committed it, -1 where that is not in the order."""
    kinds = traitlets.Bytes(b"").tag(sync=True)
    """uint8 a token: 0 prefill's, 1 an accepted draft, 2 the target's own."""
    notice = traitlets.Unicode("").tag(sync=True)
    """A sentence above all, for what a person must know."""
    note = traitlets.Unicode("").tag(sync=True)
    """A sentence below the controls: how the filter in use decides."""
    asked = traitlets.Dict().tag(sync=True)
    """From the browser: any of {"at", "question", "order"}."""
    seq = traitlets.Int(0).tag(sync=True)
    """Counts drawings; bumped last."""

    def __repr__(self) -> str:
        return f"RunStrip({self.name}, {len(self.rates) // 4} cycles)"

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        return widget_bundle(super()._repr_mimebundle_(**kwargs), text=repr(self))


def output_spans(
    request: RequestRecord, tokens: Mapping[int, str], position_of: Mapping[int, int]
) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Texts, owners (int32) and kinds (uint8) of a request's output tokens, for the strip.

    position_of: position in the order of the request's cycles, by cycle index.
    """
    owners = np.full(len(request.output_tokens), NOT_SHOWN, np.int32)
    kinds = np.zeros(len(request.output_tokens), np.uint8)
    at = len(request.output_tokens) - sum(cycle.committed for cycle in request.cycles)
    for cycle in request.cycles:
        end = at + cycle.committed
        owners[at:end] = position_of.get(cycle.index, NOT_SHOWN)
        kinds[at:end] = ACCEPTED
        if cycle.committed > len(cycle.accepted):
            kinds[end - 1] = OWN
        at = end
    return token_run(request.output_tokens, tokens), owners, kinds


def token_run(token_ids: Sequence[int], tokens: Mapping[int, str]) -> list[str]:
    """Token texts for a running paragraph; ids without a text show as their number."""
    return [flowing(tokens[token]) if token in tokens else f" #{token}" for token in token_ids]
