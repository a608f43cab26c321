"""How much host and device memory a configuration needs, from config.json alone, and whether it fits.

The model is built without memory (torch's meta device), so every count is of the very tensors that loading would make,
whatever the family: dense weights and shared experts on the device, routed experts in host memory and a number of slots
for them on the device, keys and values for a context. A stated reserve is kept for activations and allocators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path

import torch

from specfit import embedded
from specfit.engine.checkpoint_files import open_config
from specfit.engine.devices import choose_device
from specfit.engine.drafter_needs import DrafterNeeds, drafter_needs
from specfit.engine.memory_sizes import free_host_memory, parse_bytes, shown
from specfit.engine.model_needs import Needs, model_needs
from specfit.engine.skeleton import build_skeleton, choose_dtype

RESERVE = 2 << 30  # kept free, at most: a tenth of the GPU's memory, an eighth of what the host needs
CONTEXT = 4096  # tokens of prompt and answer
Slots = int | float | None  # a number, a share of a layer's experts, or as many as fit


@dataclass(frozen=True, slots=True)
class Plan:
    """A configuration, what it needs, and what there is. `check` refuses it, `str` prints it."""

    name: str
    needs: Needs
    slots: int  # in every MoE layer
    on_gpu: bool
    context: int  # tokens
    mapped: bool  # experts stay in their files: on a CPU, they need no memory
    drafter: DrafterNeeds | None
    device_limit: int | None  # memory of the GPU; None if unknown
    host_limit: int | None

    @property
    def device_reserve(self) -> int:
        """For activations of a prompt, the tree's mask, CUDA's own context and fragments."""
        if not self.on_gpu:
            return 0
        return RESERVE if self.device_limit is None else min(RESERVE, self.device_limit // 10)

    @property
    def host_reserve(self) -> int:
        """For tensors that are being read, and buffers."""
        return min(RESERVE, self._host_kept // 8)

    @property
    def _host_kept(self) -> int:
        experts = self.needs.pinned_bytes() if self.on_gpu else self.needs.expert_bytes
        return (0 if self.mapped else experts) + (0 if self.on_gpu else self.device_bytes)

    @property
    def device_bytes(self) -> int:
        """What computes: dense weights, slots, keys and values, the drafter, and the reserve."""
        return self.fixed_bytes + self.needs.slot_bytes(self.slots)

    @property
    def fixed_bytes(self) -> int:
        """Of the device's, what is there with any number of slots."""
        kv = self.needs.kv_bytes * self.context
        return self.needs.dense_bytes + kv + self.drafter_bytes + self.device_reserve

    @property
    def drafter_bytes(self) -> int:
        """Its weights, and its own keys and values."""
        return 0 if self.drafter is None else self.drafter.weight_bytes + self.drafter.kv_bytes * self.context

    @property
    def host_bytes(self) -> int:
        """Experts with the reserve; on a CPU all the rest as well."""
        return self._host_kept + self.host_reserve

    def check(self) -> None:
        """ValueError, naming GPU or HOST memory, for what does not fit."""
        smaller = "a smaller dtype, or a machine with more"
        if self.host_limit is not None and self.host_bytes > self.host_limit:
            if self.mapped:
                experts, advice = self.needs.slot_bytes(self.slots), f"take fewer slots, {smaller}"
            else:
                experts = self.needs.expert_bytes
                left = "" if self.on_gpu else 'leave the experts in their files (experts="mapped"), or '
                advice = f"{left}take {smaller}"
            raise ValueError(
                f"{self.name} needs {shown(self.host_bytes)} of HOST memory, of them {shown(experts)} "
                f"for its experts, and there are {shown(self.host_limit)}; {advice}"
            )
        if self.on_gpu and self.device_limit is not None and self.device_bytes > self.device_limit:
            most = self.most_slots()
            advice = f"{most} slots would fit" if most else f"not one slot would fit, so take {smaller}"
            raise ValueError(
                f"{self.name} with {self.slots} slots a layer needs {shown(self.device_bytes)} of GPU memory, and "
                f"there are {shown(self.device_limit)}; {advice}"
            )

    def most_slots(self) -> int:
        """The largest number of slots that fits what computes, 0 if none does; all where its memory is unknown."""
        experts = max(self.needs.experts)
        limit = self.device_limit if self.on_gpu else self.host_limit
        if limit is None:
            return experts
        plans = ((slots, replace(self, slots=slots)) for slots in range(1, experts + 1))
        needs = ((slots, plan.device_bytes if self.on_gpu else plan.host_bytes) for slots, plan in plans)
        return max((slots for slots, need in needs if need <= limit), default=0)

    def __str__(self) -> str:
        needs = self.needs
        layers, experts = len(needs.experts), max(needs.experts)
        width = f"{experts} experts" if min(needs.experts) == experts else f"up to {experts} experts"
        lines = [
            f"{self.name}: {needs.family}, {needs.dtype}, {layers} MoE layers of {width}, "
            f"{max(needs.row_bytes):,} bytes each",
            f"{'GPU' if self.on_gpu else 'HOST'} memory, to compute with",
            f"  {shown(needs.dense_bytes):>11}  dense weights, shared experts among them",
            f"  {shown(needs.slot_bytes(self.slots)):>11}  {self.slots} expert slots in every layer",
            f"  {shown(needs.kv_bytes * self.context):>11}  keys and values of {self.context} tokens",
        ]
        if self.drafter_bytes:
            lines.append(f"  {shown(self.drafter_bytes):>11}  drafter, its keys and values among it")
        if self.on_gpu:
            lines += [
                f"  {shown(self.device_reserve):>11}  reserve: activations, masks, CUDA itself",
                f"  {shown(self.device_bytes):>11}  in all{_of(self.device_limit)}",
                "HOST memory",
            ]
        if self.mapped:
            lines.append(f"  {shown(0):>11}  experts ({shown(needs.expert_bytes)}) stay in their files")
        elif self.on_gpu:
            pinned = shown(needs.pinned_bytes())
            lines.append(f"  {pinned:>11}  experts ({shown(needs.expert_bytes)}) in pinned chunks")
        else:
            lines.append(f"  {shown(needs.expert_bytes):>11}  experts, the host's own copy")
        lines += [
            f"  {shown(self.host_reserve):>11}  reserve: libraries, what is being read",
            f"  {shown(self.host_bytes):>11}  in all{_of(self.host_limit)}",
        ]
        return "\n".join(lines)


def make_plan(
    name: str,
    needs: Needs,
    *,
    slots: Slots = None,
    on_gpu: bool,
    context: int = CONTEXT,
    mapped: bool = False,
    drafter: DrafterNeeds | None = None,
    device_limit: int | None = None,
    host_limit: int | None = None,
) -> Plan:
    """A plan from counts. slots: None for as many as fit. ValueError for slots that no layer has.

    The plan is not checked: print it, then `check()`.
    """
    chosen = choose_slots(slots, needs.experts)
    plan = Plan(name, needs, chosen, on_gpu, context, mapped, drafter, device_limit, host_limit)
    if slots is None:
        return replace(plan, slots=plan.most_slots() or 1)
    return plan


def plan_target(
    target: str | Path,
    *,
    slots: Slots = None,
    device: str | None = "cuda",
    dtype: str | None = None,
    context: int | None = None,
    drafter: str | Path | None = None,
    experts: str = "memory",
    device_memory: str | int | None = None,
    host_memory: str | int | None = None,
) -> Plan:
    """The plan of a target by folder or hub id; of the target nothing but config.json is read.

    device: None for CUDA if there is one. experts: as for `load_engine`. device_memory, host_memory: "20GB"; by
    default what this machine has left, or unknown where it has no GPU.
    """
    place = choose_device(device, here=False)
    with open_config(embedded.target_folder() if target == "embedded" else target) as checkpoint:
        model = build_skeleton(checkpoint, dtype=choose_dtype(dtype, checkpoint.config, place), attention=None)
    there = torch.cuda.mem_get_info()[0] if place.type == "cuda" and torch.cuda.is_available() else None
    return make_plan(
        str(target),
        model_needs(model),
        slots=slots,
        on_gpu=place.type == "cuda" or device_memory is not None,
        context=context or CONTEXT,
        mapped=check_experts(experts, place),
        drafter=drafter_needs(drafter, model.dtype.itemsize) if drafter is not None else None,
        device_limit=parse_bytes(device_memory) if device_memory is not None else there,
        host_limit=parse_bytes(host_memory) if host_memory is not None else free_host_memory(),
    )


def choose_slots(slots: Slots, experts: Sequence[int]) -> int:
    """A number of slots a layer; a share (above 0, at most 1.0) is of the widest layer's experts, rounded down."""
    most = max(experts)
    if slots is None:
        return most
    if isinstance(slots, float) and 0 < slots <= 1:
        return max(1, int(slots * most))
    if isinstance(slots, bool) or not isinstance(slots, Integral) or not 1 <= slots <= most:
        raise ValueError(
            f"slots per layer must be between 1 and the target's {most} experts, or a share such as 0.5; got {slots!r}"
        )
    return int(slots)


def check_experts(experts: str, device: torch.device) -> bool:
    """Whether they stay in their files. ValueError for another word than memory or mapped, or mapped for a GPU."""
    if experts not in ("memory", "mapped"):
        raise ValueError(f"experts {experts!r} is unknown; choose memory or mapped")
    if experts == "mapped" and device.type != "cpu":
        raise ValueError(
            'experts="mapped" serves a CPU only: copies to a GPU come from pinned memory; take the CPU, or leave it out'
        )
    return experts == "mapped"


def _of(limit: int | None) -> str:
    return "" if limit is None else f", of {shown(limit)}"
