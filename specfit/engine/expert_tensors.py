"""Where one layer's routed experts lie in a checkpoint: an own tensor for each expert, or one 3-D tensor for all.

Both kinds occur, even in one file. Either way `read_expert` yields the layout of transformers' fused experts: gate rows
above up rows (2I, H), and down (H, I). Widths: H hidden, I an expert's inner size, E experts.
"""

import re
from dataclasses import dataclass

import torch
from torch import Tensor

from specfit.engine.checkpoint_files import Checkpoint, CheckpointError, some

OWN = re.compile(r"(?:^|\.)experts\.(\d+)\.(\w+)\.weight$")
PARTS = {"gate_proj": "gate", "w1": "gate", "up_proj": "up", "w3": "up", "down_proj": "down", "w2": "down"}
FUSED = re.compile(r"(?:experts\.(gate_up_proj|down_proj)|moe\.(input_linear|output_linear))(?:\.weight)?$")
FUSED_PARTS = {"gate_up_proj": "gate_up", "input_linear": "gate_up", "down_proj": "down", "output_linear": "down"}
ABOUT_EXPERTS = re.compile(r"(?:^|\.)experts\.|moe\.(?:input|output)_linear")
PLAIN = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class ExpertTensors:
    """One layer's experts. `names` holds for each expert its (gate, up, down), or for all (gate_up, down) if fused."""

    layer: int
    fused: bool
    names: tuple[tuple[str, ...], ...]  # (E, 3) names, or (1, 2) if fused
    experts: int  # E
    hidden_size: int  # H
    intermediate_size: int  # I

    def read_expert(self, checkpoint: Checkpoint, expert: int) -> tuple[Tensor, Tensor]:
        """gate_up (2I, H) and down (H, I) of one expert, on the CPU in the stored dtype; nothing else is read."""
        if not 0 <= expert < self.experts:
            raise ValueError(f"layer {self.layer} has experts 0 to {self.experts - 1}; got {expert}")
        if self.fused:
            return checkpoint.read_part(self.names[0][0], expert), checkpoint.read_part(self.names[0][1], expert)
        gate, up, down = (checkpoint.read_tensor(name) for name in self.names[expert])
        return torch.cat((gate, up)), down


def expert_tensors(checkpoint: Checkpoint, layer: int, *, experts: int | None = None) -> ExpertTensors:
    """Find and check the routed experts of `layer`. Raises CheckpointError naming the tensor that does not fit.

    experts: how many config.json promises, if the caller knows.
    """
    found = _find(checkpoint, layer)
    if experts is not None and found.experts != experts:
        raise CheckpointError(
            f"layer {layer} holds {found.experts} experts, config.json says {experts}; a shard is missing, or config "
            "and weights belong to different checkpoints"
        )
    return found


def ignored_tensors(checkpoint: Checkpoint, num_layers: int) -> dict[str, int]:
    """How many tensors lie outside the target proper: mtp.* and layers beyond the last. Prefix -> count."""
    counts = {f"layers.{i}.*": len(names) for i, names in checkpoint.names_by_layer.items() if i >= num_layers}
    mtp = sum(1 for name in checkpoint.tensors if re.search(r"(^|\.)mtp(\.|_)", name))
    return counts | ({"mtp.*": mtp} if mtp else {})


def _find(checkpoint: Checkpoint, layer: int) -> ExpertTensors:
    own: dict[int, dict[str, str]] = {}  # expert -> part -> name
    fused: dict[str, str] = {}  # part -> name
    for name in checkpoint.names_by_layer.get(layer, ()):
        if not ABOUT_EXPERTS.search(name):
            continue
        if match := OWN.search(name):
            part = PARTS.get(match[2])
            if part is None:
                raise CheckpointError(f"{name} is not a gate, up or down projection; specfit cannot place it")
            own.setdefault(int(match[1]), {})[part] = name
        elif match := FUSED.search(name):
            fused[FUSED_PARTS[match[1] or match[2]]] = name
        else:
            raise CheckpointError(f"{name} is part of layer {layer}'s experts, and specfit cannot use it{_why(name)}")
    for name in (*(name for parts in own.values() for name in parts.values()), *fused.values()):
        if checkpoint.tensors[name].dtype not in PLAIN:
            raise CheckpointError(
                f"{name} is stored as {checkpoint.tensors[name].dtype}; take the unquantized checkpoint"
            )
    if own and fused:
        raise CheckpointError(f"layer {layer} holds its experts twice, apart and fused ({next(iter(fused.values()))})")
    if fused:
        return _fused(checkpoint, layer, fused)
    if own:
        return _own(checkpoint, layer, own)
    raise CheckpointError(f"{checkpoint.folder} has no experts for layer {layer}; it is dense, or a shard is missing")


def _own(checkpoint: Checkpoint, layer: int, own: dict[int, dict[str, str]]) -> ExpertTensors:
    missing = [expert for expert in range(max(own) + 1) if set(own.get(expert, ())) != {"gate", "up", "down"}]
    if missing:
        lacking = sorted({"gate", "up", "down"} - set(own.get(missing[0], ())))
        raise CheckpointError(
            f"layer {layer}, expert {missing[0]} lacks its {some(lacking)} projection; fetch it again"
        )
    shapes = [
        tuple(checkpoint.tensors[own[expert][part]].shape for part in ("gate", "up", "down"))
        for expert in range(len(own))
    ]
    for expert, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise CheckpointError(
                f"layer {layer}, expert {expert} has gate, up, down of {shape}, expert 0 of {shapes[0]}; "
                "specfit's slots hold experts of one size"
            )
    gate, up, down = shapes[0]
    if len(gate) != 2 or up != gate or down != gate[::-1]:
        raise CheckpointError(
            f"layer {layer}: gate {gate}, up {up}, down {down} are not (I, H), (I, H), (H, I); "
            "these weights are packed or transposed"
        )
    names = tuple(tuple(own[expert][part] for part in ("gate", "up", "down")) for expert in range(len(own)))
    return ExpertTensors(layer, False, names, experts=len(own), hidden_size=gate[1], intermediate_size=gate[0])


def _fused(checkpoint: Checkpoint, layer: int, fused: dict[str, str]) -> ExpertTensors:
    """Both shapes together tell the orientation even where 2I = H."""
    for part in ("gate_up", "down"):
        if part not in fused:
            raise CheckpointError(f"layer {layer} has fused experts without {part}; fetch the checkpoint again")
    gate_up, down = checkpoint.tensors[fused["gate_up"]].shape, checkpoint.tensors[fused["down"]].shape
    if len(gate_up) == len(down) == 3 and gate_up[0] == down[0]:
        experts, hidden, inner = down
        if gate_up == (experts, 2 * inner, hidden):
            names = ((fused["gate_up"], fused["down"]),)
            return ExpertTensors(layer, True, names, experts, hidden_size=hidden, intermediate_size=inner)
        if gate_up == (experts, inner, 2 * hidden):
            raise CheckpointError(
                f"{fused['gate_up']} is stored as (E, H, 2I) = {gate_up}, transposed as gpt-oss and Llama 4 do; "
                "specfit reads (E, 2I, H) only"
            )
    raise CheckpointError(
        f"layer {layer}: {fused['gate_up']} {gate_up} and {fused['down']} {down} are not (E, 2I, H) and (E, H, I)"
    )


def _why(name: str) -> str:
    if "bias" in name:
        return "; experts with biases are not supported"
    if re.search(r"scale|zero|qweight|blocks|packed", name):
        return "; it is part of a quantized checkpoint, so take the unquantized one"
    return ""
