"""Which token the target says next at a row of logits: the greatest, or a draw from its processed distribution.

The library's own processors change the logits, in its order and in float32, so `temperature`, `top_k` and `top_p` mean
exactly what they mean there; end-of-sequence tokens are banned by the row's own place in the output.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor
from transformers.generation.logits_process import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from specfit.sampling import Sampling

NO_TOKEN = "the target's logits leave no token to choose: they are NaN, or every token is banned"


class TokenChoice:
    """Chooses tokens for one request."""

    def __init__(
        self,
        sampling: Sampling | None = None,
        *,
        prompt_tokens: int,
        min_new_tokens: int = 0,
        eos: Collection[int] = (),
    ) -> None:
        """sampling: None for the greedy text. min_new_tokens: no token of `eos` before so many others."""
        self._sampling = sampling
        self._free_from = prompt_tokens + min_new_tokens  # first position where the text may end
        self._eos = sorted(eos)
        self._warpers = LogitsProcessorList()
        if sampling is not None:
            self._warpers.append(TemperatureLogitsWarper(float(sampling.temperature)))
            if sampling.top_k is not None:
                self._warpers.append(TopKLogitsWarper(int(sampling.top_k)))
            if sampling.top_p is not None and sampling.top_p < 1:
                self._warpers.append(TopPLogitsWarper(float(sampling.top_p)))

    def __call__(self, logits: Tensor, positions: Sequence[int]) -> tuple[int, ...]:
        """A token for every row of (rows, V_t) logits; positions: where in the text, prompt included, each would stand.

        Raises ValueError where a row allows no token at all: its logits are NaN, or every one of them is banned.
        """
        scores = self.scores(logits, positions)
        if self._sampling is None:
            best, tokens = scores.max(dim=-1)
            if not bool((best > -torch.inf).all()):  # a NaN is greater than nothing
                raise ValueError(NO_TOKEN)
            return tuple(tokens.tolist())
        shares = scores.softmax(dim=-1).double().cumsum(dim=-1)
        numbers = torch.tensor([[self._sampling.number(position)] for position in positions], dtype=torch.float64)
        marks = numbers.to(shares.device) * shares[:, -1:]
        chosen = torch.searchsorted(shares, marks, right=True)[:, 0].tolist()  # the first whose share passes the mark
        if max(chosen) >= logits.shape[-1]:  # a NaN passes no mark
            raise ValueError(NO_TOKEN)
        return tuple(chosen)

    def scores(self, logits: Tensor, positions: Sequence[int]) -> Tensor:
        """The processed logits in float32, (rows, V_t); banned tokens are -inf."""
        scores = logits.float()
        early = [row for row, position in enumerate(positions) if position < self._free_from]
        if early and self._eos:
            scores = scores.clone()
            scores[torch.tensor(early)[:, None], torch.tensor(self._eos)] = -torch.inf
        return self._warpers(None, scores)  # they read no tokens, so none are given
