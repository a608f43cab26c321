"""Loads a target: plan, skeleton, dense weights, experts. Nothing of it stays behind when it fails half-way."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
from tqdm.auto import tqdm
from transformers import AutoTokenizer, PreTrainedModel

from specfit.engine.checkpoint_files import Checkpoint, CheckpointError, read_json
from specfit.engine.checkpoint_names import count_unneeded, name_table
from specfit.engine.drafter_needs import drafter_needs
from specfit.engine.host_experts import HostExperts, load_host_experts, map_host_experts
from specfit.engine.mapped_row import HostRow
from specfit.engine.memory_sizes import free_host_memory, parse_bytes, shown
from specfit.engine.model_needs import model_needs
from specfit.engine.plan import Slots, check_experts, make_plan
from specfit.engine.skeleton import build_skeleton, fill_skeleton, library_config, named_moe_modules
from specfit.engine.target_facts import text_part

SHOW_AFTER_S = 2.0  # a load that is over sooner shows no bar
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LoadedTarget:
    model: PreTrainedModel  # dense weights on the device, experts still on the meta device
    host: Sequence[Sequence[HostRow]]  # of every MoE layer, one flat row an expert
    slots: int
    left_out: dict[str, int]  # stored tensors that inference does not use: {"mtp.*": 9}
    beside: Any  # what was read beside it, see `load_target`


def gives_back(load: Callable[P, T]) -> Callable[P, T]:
    """A loading function that keeps nothing when it fails, and says in one sentence when memory ran out.

    A traceback holds its frames and they their variables: IPython, which keeps the last error, would keep the slabs.
    """

    @wraps(load)
    def loading(*args: P.args, **given: P.kwargs) -> T:
        try:
            return load(*args, **given)
        except BaseException as error:
            _let_go(error)
            if kind := _ran_out(error):
                raise CheckpointError(
                    f"{kind} memory ran out while loading ({' '.join(str(error).split())[:200]}); take fewer slots or "
                    "a smaller dtype"
                ) from None
            raise

    return loading


def load_target(
    checkpoint: Checkpoint,
    *,
    name: str,
    dtype: torch.dtype,
    device: torch.device,
    attention: str | None,
    slots: Slots,
    device_memory: str | int | None = None,
    drafter: str | Path | None = None,
    pin: bool | None = None,
    experts: str = "memory",
    beside: Callable[[PreTrainedModel], Any] = lambda model: None,
) -> LoadedTarget:
    """Plan, refuse what does not fit, and load. Raises ValueError (CheckpointError), one sentence.

    drafter: counted into the plan where its files are at hand; not loaded here. experts: "memory", or "mapped" to
    leave them in their files. beside: called once the dense weights are there, before experts are read, which takes
    minutes: a drafter that does not fit is refused by then.
    """
    on_gpu = device.type == "cuda"
    mapped = check_experts(experts, device)
    if mapped and pin:
        raise ValueError('pin=True and experts="mapped" exclude each other: mapped experts stay in their files')
    pin = on_gpu if pin is None else pin
    model = build_skeleton(checkpoint, dtype=dtype, attention=attention)
    modules = named_moe_modules(model)
    plan = make_plan(
        name,
        model_needs(model),
        slots=slots,
        on_gpu=on_gpu or device_memory is not None,
        mapped=mapped,
        drafter=drafter_needs(drafter, dtype.itemsize) if drafter is not None else None,
        device_limit=_device_limit(device, device_memory),
        host_limit=free_host_memory(),
    )
    plan.check()
    names = name_table(checkpoint, model)
    fill_skeleton(model, checkpoint, names, dtype=dtype, device=device)
    read_beside = beside(model)
    doing = "experts checked in their files" if mapped else "experts to host memory"
    with tqdm(total=len(modules), desc=doing, unit="layer", delay=SHOW_AFTER_S, disable=None) as bar:

        def step(done: int) -> None:
            bar.update(done - bar.n)

        if mapped:
            rows: Sequence[Sequence[HostRow]] = map_host_experts(
                checkpoint, model, modules, names, dtype=dtype, progress=step
            )
        else:
            host = load_host_experts(checkpoint, model, modules, names, dtype=dtype, pin=pin, progress=step)
            rows = host.rows
            if pin and host.pinned_bytes < host.bytes:
                _warn_pageable(host)
    return LoadedTarget(model, rows, plan.slots, count_unneeded(names.unneeded), read_beside)


def _warn_pageable(host: HostExperts) -> None:
    warnings.warn(
        f"{shown(host.bytes - host.pinned_bytes)} of the {shown(host.bytes)} of experts could not be pinned in "
        "HOST memory: their copies are slower and do not overlap with compute; raise the limit on locked memory "
        "(ulimit -l, or the container's memlock)",
        stacklevel=5,  # at the caller of load_engine
    )


def load_tokenizer(folder: Path, vocab_size: int) -> Any:
    """A checkpoint's tokenizer. CheckpointError if there is none, or one with tokens that the model does not have.

    Tokens that were added past the vocabulary are only warned of: some models keep them for what their text part does
    not see, and a prompt that holds one is refused.
    """
    library_config(folder)  # a broken config.json is no fault of the tokenizer, which reads it as well
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # the library raises whatever a missing or broken file leads it to
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise CheckpointError(
            f"transformers cannot read the tokenizer in {folder} ({reason}); fetch its files again"
        ) from error
    added = set(tokenizer.get_added_vocab().values())
    largest = max((token for token in tokenizer.get_vocab().values() if token not in added), default=-1)
    beyond = [token for token in added if token >= vocab_size]
    if beyond and largest < vocab_size:
        warnings.warn(
            f"{len(beyond)} added tokens of the tokenizer lie past the model's vocab_size {vocab_size}, the first is "
            f"{tokenizer.convert_ids_to_tokens(min(beyond))!r}; a prompt that holds one is refused",
            stacklevel=4,  # at the caller of load_engine
        )
    if largest >= vocab_size:
        raise CheckpointError(
            f"the tokenizer in {folder} goes up to token {largest}, the model's vocab_size is {vocab_size}; they "
            "belong to different checkpoints"
        )
    return tokenizer


def end_tokens(folder: Path, config: Mapping[str, Any], vocab_size: int) -> tuple[int, ...]:
    """End-of-sequence ids: a generation_config.json overrides config.json; each may hold one id or a list.

    An id outside the vocabulary is left out: it can never be said (-1 is some trainers' "none"). Raises CheckpointError
    for what is no id, such as one in quotes, which would never end a text.
    """
    path = folder / "generation_config.json"
    found = read_json(path, missing="").get("eos_token_id") if path.exists() else None
    found = config.get("eos_token_id", text_part(config).get("eos_token_id")) if found is None else found
    ids = found if isinstance(found, list) else [] if found is None else [found]
    if any(isinstance(token, bool) or not isinstance(token, int) for token in ids):
        raise CheckpointError(f"eos_token_id is {found!r} in {folder}; expected a token id or a list of them")
    return tuple(token for token in ids if 0 <= token < vocab_size)


def _device_limit(device: torch.device, device_memory: str | int | None) -> int | None:
    limits = [] if device_memory is None else [parse_bytes(device_memory)]
    if device.type == "cuda":
        limits.append(torch.cuda.mem_get_info(device)[0])
    return min(limits, default=None)


def _ran_out(error: BaseException) -> str | None:
    """Whose memory an allocator of torch or Python says is at its end."""
    if isinstance(error, torch.OutOfMemoryError):
        return "GPU"
    host = isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "allocate memory" in str(error))
    return "HOST" if host else None


def _let_go(error: BaseException) -> None:
    """Free what the frames of a failed load hold."""
    seen: BaseException | None = error
    while seen is not None:
        traceback.clear_frames(seen.__traceback__)
        seen = seen.__cause__ or seen.__context__
    give_memory_back()


def give_memory_back() -> None:
    """Freed memory goes back to the system, the pinned host memory that torch keeps for later too."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        if hasattr(torch.accelerator, "empty_host_cache"):
            torch.accelerator.empty_host_cache()
