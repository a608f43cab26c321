"""Checkpoint folders: which tensor lies in which file, and reading them one at a time.

A folder is used as it is and never written to; a hub id is fetched (or found in the cache) through huggingface_hub.
Opening reads only the files' headers, so a torn download is reported before anything is loaded.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

DTYPE_BYTES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}
DTYPE_BYTES |= {"I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1}
LAYER = re.compile(r"^(?:model\.)?(?:language_model\.)?(?:model\.)?layers\.(\d+)\.")


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message says what was found, what was expected and what to do."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where one tensor lies."""

    file: Path
    shape: tuple[int, ...]
    dtype: str  # as safetensors spells it: "BF16", "F8_E4M3", "I64", ...


class Checkpoint:
    """A folder's config and an index of its safetensors. Reads are lazy; `close()` or `with` lets the files go."""

    def __init__(self, folder: Path, config: dict, tensors: Mapping[str, TensorEntry]):
        self.folder = folder
        self.config = config  # config.json as plain JSON
        self.tensors = MappingProxyType(dict(tensors))  # name -> TensorEntry
        self._open_files: dict[Path, Any] = {}

    @cached_property
    def names_by_layer(self) -> dict[int, list[str]]:
        """Tensor names under each decoder layer; an extra prediction module (mtp.layers.0...) is not one."""
        grouped: dict[int, list[str]] = {}
        for name in self.tensors:
            if match := LAYER.match(name):
                grouped.setdefault(int(match[1]), []).append(name)
        return grouped

    def read_tensor(self, name: str) -> Tensor:
        """One tensor on the CPU, in the dtype it is stored in."""
        return self._read(name, lambda file: file.get_tensor(name))

    def read_part(self, name: str, index: int) -> Tensor:
        """Entry `index` of a tensor's first dimension, without reading the others."""
        return self._read(name, lambda file: file.get_slice(name)[index])

    def close(self) -> None:
        self._open_files.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _read(self, name: str, read: Callable[[Any], Tensor]) -> Tensor:
        if name not in self.tensors:
            raise CheckpointError(f"{self.folder} holds no tensor named {name}; it holds {some(self.tensors)}")
        path = self.tensors[name].file
        try:
            if path not in self._open_files:
                self._open_files[path] = safe_open(path, framework="pt", device="cpu")
            return read(self._open_files[path])
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{name} cannot be read from {path}: {error}; fetch that file again") from error


def open_checkpoint(path_or_id: str | Path, *, local_files_only: bool = False) -> Checkpoint:
    """Index the safetensors of a folder or hub id: one model.safetensors, or shards named by their index.

    Raises CheckpointError for a missing, torn or misnamed file. No weights are read.
    """
    folder = checkpoint_folder(path_or_id, local_files_only=local_files_only)
    config = read_config(folder)
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.exists():
        return Checkpoint(folder, config, read_header(single))
    if index.exists():
        return Checkpoint(folder, config, _read_shards(folder, index))
    loose = sorted(folder.glob("*.safetensors"))
    if len(loose) == 1:
        return Checkpoint(folder, config, read_header(loose[0]))
    found = some(path.name for path in loose) if loose else "no safetensors at all"
    raise CheckpointError(
        f"{folder} has neither model.safetensors nor model.safetensors.index.json (it has {found}); "
        "fetch the missing file, or convert the weights to safetensors"
    )


def checkpoint_folder(path_or_id: str | Path, *, local_files_only: bool = False) -> Path:
    """The folder itself, or the local snapshot of a hub id such as "org/model"."""
    path = Path(path_or_id).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        raise CheckpointError(f"{path} is a file; give the folder that holds config.json and the weights")
    name = str(path_or_id)
    if isinstance(path_or_id, Path) or path.is_absolute() or name.startswith((".", "~")) or name.count("/") != 1:
        raise CheckpointError(f"{name} is not a folder here, and a hub id looks like org/model; check the path")
    from huggingface_hub import snapshot_download  # only now: a folder needs no network library

    try:
        kinds = ["*.json", "*.safetensors"]
        folder = Path(snapshot_download(name, allow_patterns=kinds, local_files_only=local_files_only))
        if not any(folder.glob("*.safetensors*")):
            kinds = ["*.json", "*.bin"]
            folder = Path(snapshot_download(name, allow_patterns=kinds, local_files_only=local_files_only))
    except (OSError, ValueError) as error:  # what the hub raises when offline, unknown, gated or cut off
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(
            f"{name} is not a folder here and could not be fetched from the hub ({reason}); "
            "go online once, or give a folder that holds the files"
        ) from error
    return folder


def read_config(folder: Path) -> dict:
    """config.json as plain JSON."""
    return read_json(folder / "config.json", missing="every checkpoint folder holds one beside its weights")


def read_json(path: Path, *, missing: str) -> dict:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path.parent} has no {path.name}; {missing}") from error
    except ValueError as error:
        raise CheckpointError(f"{path} is not valid JSON ({error}); fetch it again") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a JSON {type(content).__name__}, expected an object; fetch it again")
    return content


def read_header(path: Path) -> dict[str, TensorEntry]:
    """Names, shapes and dtypes in one safetensors file, with its length checked against what the header promises."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        if start == b"version ":
            raise CheckpointError(f"{path} is a Git LFS pointer, not the weights; fetch it with git lfs pull")
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > size - 8:
            raise CheckpointError(f"{path} is cut off inside its header ({size} bytes); fetch it again")
        try:
            header = json.loads(file.read(length))
            header.pop("__metadata__", None)
            entries = {name: TensorEntry(path, tuple(value["shape"]), value["dtype"]) for name, value in header.items()}
            ends = {name: value["data_offsets"] for name, value in header.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path} is not a safetensors file (unreadable header); fetch it again") from error
    promised = 8 + length + max((end for _, end in ends.values()), default=0)
    if size < promised:
        raise CheckpointError(f"{path} is cut off: {size} bytes of {promised}; fetch it again")
    for name, entry in entries.items():
        begin, end = ends[name]
        if entry.dtype in DTYPE_BYTES and end - begin != math.prod(entry.shape) * DTYPE_BYTES[entry.dtype]:
            raise CheckpointError(
                f"{name} in {path} has {end - begin} bytes, which is not its shape {entry.shape} in {entry.dtype}; "
                "the file is damaged, fetch it again"
            )
    return entries


def _read_shards(folder: Path, index: Path) -> dict[str, TensorEntry]:
    weight_map = read_json(index, missing="it lists the shards").get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise CheckpointError(f"{index} has no weight_map (tensor name -> file); fetch it again")
    tensors = {}
    for shard in sorted(set(weight_map.values())):
        names = [name for name, file in weight_map.items() if file == shard]
        if Path(shard).name != shard:
            raise CheckpointError(f"{index} places {names[0]} outside the folder, in {shard}; fetch it again")
        if not (folder / shard).exists():
            raise CheckpointError(
                f"{index.name} needs {shard} for {len(names)} tensors ({some(names)}), and {folder} does not have it; "
                "fetch the missing shard"
            )
        entries = read_header(folder / shard)
        for name in names:
            if name not in entries:
                raise CheckpointError(
                    f"{index.name} places {name} in {shard}, which does not hold it; fetch both again"
                )
            tensors[name] = entries[name]
    return tensors


def read_all(path_or_id: str | Path, *, local_files_only: bool = False) -> tuple[Path, dict, dict[str, Tensor]]:
    """Folder, config and every tensor of a small checkpoint: safetensors, else .bin (tensors only, no code)."""
    folder = checkpoint_folder(path_or_id, local_files_only=local_files_only)
    bins = [] if any(folder.glob("*.safetensors*")) else sorted(folder.glob("pytorch_model*.bin"))
    if not bins:
        with open_checkpoint(folder) as checkpoint:
            tensors = {name: checkpoint.read_tensor(name) for name in checkpoint.tensors}
            return folder, checkpoint.config, tensors
    index = folder / "pytorch_model.bin.index.json"
    if index.exists():
        needed = set(read_json(index, missing="it lists the shards").get("weight_map", {}).values())
        missing = sorted(needed - {path.name for path in bins})
        if missing:
            raise CheckpointError(f"{index.name} needs {some(missing)}, and {folder} does not have it; fetch it")
    tensors = {}
    for path in bins:
        try:
            part = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises whatever the broken file leads it to
            raise CheckpointError(
                f"{path} cannot be read as plain weights ({type(error).__name__}); fetch it again, "
                "or convert it to safetensors"
            ) from error
        part = part.get("state_dict", part) if isinstance(part, dict) else part
        if not isinstance(part, dict) or not all(isinstance(value, Tensor) for value in part.values()):
            raise CheckpointError(f"{path} is not a plain table of tensors; convert it to safetensors")
        tensors |= part
    return folder, read_config(folder), tensors


def refuse_quantized(config: Mapping, *, what: str) -> None:
    """Refuse packed weights from config.json alone: their bytes mean nothing without their scales."""
    inner = config.get("text_config")
    inner = inner if isinstance(inner, Mapping) else {}
    for key in ("quantization_config", "compression_config"):
        found = config.get(key) or inner.get(key)
        if found:
            method = found.get("quant_method", "unnamed method") if isinstance(found, Mapping) else found
            raise CheckpointError(
                f"{what} is quantized ({key}: {method}); specfit reads bfloat16, float16 or float32 weights, "
                "so take the unquantized checkpoint"
            )


def some(names: Iterable, most: int = 3) -> str:
    """The first few names, and how many more there are."""
    names = list(names)
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(map(str, names[:most])) or "nothing") + rest
