"""The offloaded target: prefill, verify a tree, commit its path. It is the unmodified library model.

A tree forward is the model with an explicit 4-D mask (every row sees the committed prefix, itself and its ancestors),
explicit positions (prefix length + depth) and a KV cache that afterwards keeps the accepted rows.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from specfit.engine.kv_cache import KVCache
from specfit.engine.layer_kinds import SLIDING, layer_kinds
from specfit.engine.offload import Offload
from specfit.records import Verdict
from specfit.routes import Routes
from specfit.tree import ROOT, DraftPool


class OffloadedTarget:
    """One model, hooked; serves one request at a time (`prefill` starts the next)."""

    def __init__(
        self, model: PreTrainedModel, offload: Offload, *, aux_layer_ids: Sequence[int], device: torch.device
    ) -> None:
        """aux_layer_ids: layers whose input the drafter reads; empty without a drafter."""
        self.model, self.offload, self.device = model, offload, device
        self.config = model.config
        parameters = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"  # renamed in transformers 5.24
        self._taps = [_Tap(model, layer) for layer in aux_layer_ids]
        self._kv = KVCache(self.config.num_hidden_layers)
        self.request = object()  # tells one request from the next: another after every prefill
        self.held: list[int] = []  # tokens in the KV cache, as far as they are committed
        self.reused = 0  # of the last prompt, tokens that were in the KV cache already
        self._tokens: list[int] = []  # of the last forward's rows
        self._start = 0  # committed length before the last forward
        self._rows = 0  # rows of the last forward
        self._kept_row = 0  # of them, the last that was committed
        self.last_logits: Tensor  # of the last forward: (rows, V_t), a prefill's last row alone
        self._low = torch.finfo(model.dtype).min
        self._kinds = layer_kinds(model.config)

    @property
    def committed(self) -> int:
        """Tokens in the KV cache."""
        return len(self._kv)

    @torch.inference_mode()
    def prefill(self, prompt: Sequence[int], *, kept: int = 0, room: int = 0) -> Verdict:
        """Run a prompt, from scratch or after its first `kept` tokens; `next_tokens` is the first output token alone.

        kept: tokens that the KV cache holds from the request before, see `common_prefix`. room: positions that may
        follow the prompt, for which memory is taken at once.
        """
        return Verdict((int(self.prompt_logits(prompt, kept=kept, room=room).argmax()),), self.offload.counts())

    @torch.inference_mode()
    def prompt_logits(self, prompt: Sequence[int], *, kept: int = 0, room: int = 0) -> Tensor:
        """Logits after a prompt, (V_t,), with the library's own mask and positions; arguments as of `prefill`."""
        assert kept <= self.common_prefix(prompt) and kept < max(1, len(prompt))
        self.request = object()
        self.held, self.reused = self.held[:kept], kept
        if kept:
            self._kv.compact(kept, ())
        else:
            self._kv = KVCache(self.config.num_hidden_layers)
        self._kv.reserve(len(prompt) + room if room else 0)
        self._tokens = list(prompt[kept:])
        return self._forward(self._tensor([self._tokens]), None, None, logits_to_keep=1)[0]

    def common_prefix(self, prompt: Sequence[int]) -> int:
        """Tokens that `prompt` and the KV cache have in common from the start."""
        pairs = zip(prompt, self.held)  # the shorter one ends it
        return next((i for i, (new, old) in enumerate(pairs) if new != old), min(len(prompt), len(self.held)))

    @torch.inference_mode()
    def verify(self, root: int, pool: DraftPool, nodes: Sequence[int]) -> Verdict:
        """One tree forward over the root and `nodes` (ascending ids of a legal subtree)."""
        logits = self.tree_logits(root, pool, nodes)
        return Verdict(tuple(logits.argmax(dim=-1).tolist()), self.offload.counts())

    @torch.inference_mode()
    def tree_logits(self, root: int, pool: DraftPool, nodes: Sequence[int]) -> Tensor:
        """Logits of the root and of `nodes`, (1 + len(nodes), V_t)."""
        length = len(self._kv)
        self._tokens = [root, *(pool.tokens[node] for node in nodes)]
        tokens = self._tensor([self._tokens])
        positions = self._tensor([[length, *(length + pool.depths[node] for node in nodes)]])
        mask = self._tree_mask(length, pool, nodes) if nodes else None
        return self._forward(tokens, positions, mask, logits_to_keep=0)

    @torch.inference_mode()
    def commit(self, rows: Sequence[int]) -> Tensor | None:
        """Keep these rows of the last forward (all of a prefill's); returns their features, (1, rows, n_aux * H_t)."""
        self._kept_row = rows[-1] if rows else self._rows - 1
        if rows:
            self._kv.compact(self._start, rows)
        self.held[self._start :] = [self._tokens[row] for row in rows] if rows else self._tokens
        if not self._taps:
            return None
        features = torch.cat([tap.states for tap in self._taps], dim=-1)
        if not rows or len(rows) == self._rows:
            return features
        return features[:, self._tensor(list(rows))]

    def rewind(self) -> None:
        """Forget the last forward's rows, kept or not: the KV cache is as it was before it."""
        self._kv.compact(self._start, ())
        del self.held[self._start :]

    def true_routes(self) -> Routes:
        """Routes of the last forward's rows."""
        return self.offload.routes(self._rows)

    def last_routes(self) -> int:
        """Bitmap of the experts that the last committed token used; to be asked before the next forward."""
        return self.offload.row_routes(self._kept_row, self._rows)

    def resident_before(self) -> int:
        """Bitmap of the experts in slots when the last forward began."""
        return self.offload.resident_before()

    def synchronize(self) -> None:
        """Wait until the device has done all that was asked of it."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def close(self) -> None:
        """Forget the request and take the hooks off the model."""
        self._kv, self.held = KVCache(self.config.num_hidden_layers), []
        for tap in self._taps:
            tap.remove()

    def _forward(
        self,
        tokens: Tensor,
        positions: Tensor | None,
        mask: Tensor | dict[str, Tensor] | None,
        *,
        logits_to_keep: int,
    ) -> Tensor:
        self._start, self._rows = len(self._kv), tokens.shape[1]
        self.offload.begin()
        output = self.model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=logits_to_keep,
            **{self._cache_name: self._kv},
        )
        self.last_logits = output.logits[0]
        return self.last_logits

    def _tree_mask(self, length: int, pool: DraftPool, nodes: Sequence[int]) -> Tensor | dict[str, Tensor]:
        """Additive (1, 1, rows, length + rows): 0 where a row may look, the dtype's lowest number elsewhere.

        A model with layers of several kinds gets a mask for each, by name.
        """
        row_of = {ROOT: 0, **{node: 1 + i for i, node in enumerate(nodes)}}
        among = [[self._low] * (1 + len(nodes)) for _ in row_of]
        among[0][0] = 0.0
        for node in nodes:
            row, parent = row_of[node], row_of[pool.parents[node]]
            among[row] = among[parent][:]
            among[row][row] = 0.0
        mask = torch.zeros(1, 1, len(among), length + len(among), dtype=self.model.dtype)
        mask[0, 0, :, length:] = torch.tensor(among)
        full = mask.to(self.device, non_blocking=True)
        if self._kinds.window is None:
            return full
        depths = torch.tensor([0, *(pool.depths[node] for node in nodes)])
        keys = torch.cat((torch.arange(length), length + depths))  # positions
        behind = length + depths[:, None] - keys
        near = mask.masked_fill(behind >= self._kinds.window, self._low).to(self.device, non_blocking=True)
        if not self._kinds.names:
            return near
        return {kind: near if kind == SLIDING else full for kind in self._kinds.names}

    def _tensor(self, values: list) -> Tensor:
        return torch.tensor(values).to(self.device, non_blocking=True)


class _Tap:
    """Keeps the residual stream that enters one decoder layer in the last forward: feature id i is layer i's input."""

    def __init__(self, model: PreTrainedModel, layer: int) -> None:
        self.states: Tensor
        self._handle = model.base_model.layers[layer].register_forward_pre_hook(self._note, with_kwargs=True)

    def _note(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        self.states = args[0] if args else kwargs["hidden_states"]

    def remove(self) -> None:
        self._handle.remove()
