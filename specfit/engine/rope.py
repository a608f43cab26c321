"""Rotary positions: the library's frequencies, and a table of angles that a draft step only looks up.

Takes rope parameters in transformers-5 form (`rope_type`, `rope_theta`, and what that type needs) and turns pairs
(j, j + head_dim / 2), the half-split order of Llama and Qwen. Scaled frequencies come from transformers itself.
"""

from types import SimpleNamespace

import torch
from torch import Tensor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

Rope = tuple[Tensor, Tensor]  # cos and signed sin at some positions, each (batch, 1, rows, head_dim)
ROPE_TYPES = ("default", "linear", "llama3", "yarn")  # frequencies that do not change with the length of the text


def rotate(x: Tensor, rope: Rope) -> Tensor:
    """Turn each pair of the last dimension by its position's angle; `rope` comes from `RopeTable.rows`."""
    cos, signed_sin = rope
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), signed_sin)


def rope_frequencies(rope_parameters: dict, *, head_dim: int, max_position_embeddings: int) -> tuple[Tensor, float]:
    """Angle per position of each pair, (head_dim / 2,) in float32, and the factor on cos and sin (YaRN's, else 1).

    llama3 and yarn without `original_max_position_embeddings` take `max_position_embeddings`, as the library does.
    """
    with torch.device("cpu"):  # also while a head is being built without memory, under torch.device("meta")
        if rope_parameters["rope_type"] == "default":
            exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
            return 1.0 / rope_parameters["rope_theta"] ** exponents, 1.0
        as_model_config = SimpleNamespace(  # the few names transformers' functions read
            rope_parameters={"original_max_position_embeddings": max_position_embeddings, **rope_parameters},
            head_dim=head_dim,
            hidden_size=head_dim,  # read only to guess a missing head_dim
            num_attention_heads=1,
            max_position_embeddings=max_position_embeddings,
            standardize_rope_params=lambda: None,
        )
        return ROPE_INIT_FUNCTIONS[rope_parameters["rope_type"]](as_model_config, device=torch.device("cpu"))


class RopeTable:
    """cos and sin of every position, kept as a table that grows with the text.

    A draft step has one or two rows, so a look-up beats computing angles. The first half of each sin row carries
    the minus sign of the rotation, which makes the rotation itself one roll and two products.
    """

    def __init__(self, frequencies: Tensor, scale: float):
        self.frequencies = frequencies  # (head_dim / 2,)
        self.scale = scale
        self.length = 256  # positions the table covers
        self.promised = False
        self.cos = self.signed_sin = torch.empty(0)  # (length, head_dim) once looked at, in that device and dtype

    def promise(self, length: int) -> None:
        """Say that positions stay below `length`, so that no look-up waits for the device to learn its largest."""
        self.promised = True
        self._cover(length)

    def rows(self, positions: Tensor, dtype: torch.dtype) -> Rope:
        """cos and signed sin at `positions` (batch, rows), each (batch, 1, rows, head_dim)."""
        if not self.promised:
            self._cover(int(positions.max()) + 1)
        if not len(self.cos) or self.cos.device != positions.device or self.cos.dtype != dtype:
            self._fill(positions.device, dtype)
        at = positions.unsqueeze(1)
        return self.cos[at], self.signed_sin[at]

    def _cover(self, length: int) -> None:
        if length > self.length:
            self.length, self.cos = max(2 * self.length, length), torch.empty(0)

    def _fill(self, device: torch.device, dtype: torch.dtype) -> None:
        with torch.inference_mode(False):  # a table first filled while decoding must still serve training
            angles = torch.arange(self.length, dtype=torch.float32)[:, None] * self.frequencies
            cos, sin = angles.cos() * self.scale, angles.sin() * self.scale  # (length, head_dim / 2)
            self.cos = torch.cat((cos, cos), dim=-1).to(device, dtype)
            self.signed_sin = torch.cat((-sin, sin), dim=-1).to(device, dtype)
