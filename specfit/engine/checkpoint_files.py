"""Checkpoint folders: which tensor lies in which file, and reading them one at a time.

A folder is used as it is and never written to; a hub id is fetched (or found in the cache) through huggingface_hub.
Opening reads only the files' headers, so a torn download is reported before anything is loaded.
"""

import math
import mmap
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import torch
from torch import Tensor

from specfit.safe_files import parse_json

DTYPES = {  # as safetensors spells them
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
BESIDE_WEIGHTS = ["*.json", "*.jinja", "*.txt", "*.model"]  # configs, the tokenizer, the chat template
OTHER_COPIES = ["*/*", "consolidated*"]  # the same weights in another form


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message says what was found, what was expected and what to do."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where one tensor lies."""

    file: Path
    start: int  # byte of the file
    shape: tuple[int, ...]
    dtype: str  # as safetensors spells it: "BF16", "F8_E4M3", "I64", ...


class Checkpoint:
    """A folder's config and an index of its safetensors. Reads are lazy; `close()` or `with` lets the files go."""

    def __init__(self, folder: Path, config: dict, tensors: Mapping[str, TensorEntry]):
        self.folder = folder
        self.config = config  # config.json as plain JSON
        self.tensors = MappingProxyType(dict(tensors))  # name -> TensorEntry
        self._open_files: dict[Path, Any] = {}
        self._maps: dict[Path, Tensor] = {}

    def read_tensor(self, name: str) -> Tensor:
        """One tensor on the CPU, in the dtype it is stored in and in memory of its own."""
        entry = self._entry(name)
        return self._read(name, entry.start, entry.shape)

    def read_part(self, name: str, index: int) -> Tensor:
        """Entry `index` of a tensor's first dimension, without reading the others."""
        entry = self._entry(name)
        if not 0 <= index < entry.shape[0]:
            raise ValueError(f"{name} has entries 0 to {entry.shape[0] - 1}; got {index}")
        size = math.prod(entry.shape[1:]) * DTYPES[entry.dtype].itemsize
        return self._read(name, entry.start + index * size, entry.shape[1:])

    def read_run(self, name: str, start: int, count: int) -> Tensor:
        """`count` numbers of a tensor from number `start` on, in one dimension."""
        entry = self._entry(name)
        return self._read(name, entry.start + start * DTYPES[entry.dtype].itemsize, (count,))

    def map_run(self, name: str, start: int, count: int) -> Tensor:
        """The bytes of the same numbers, mapped: read when they are used, and never to be written to.

        The map outlives `close()` and goes with its last tensor.
        """
        entry = self._entry(name)
        if entry.file not in self._maps:
            with entry.file.open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch has no tensors that cannot be written to, and says so
                self._maps[entry.file] = torch.frombuffer(mapped, dtype=torch.uint8)
        size = DTYPES[entry.dtype].itemsize
        return self._maps[entry.file][entry.start + start * size :][: count * size]

    def close(self) -> None:
        for file in self._open_files.values():
            file.close()
        self._open_files.clear()
        self._maps.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _entry(self, name: str) -> TensorEntry:
        if name not in self.tensors:
            raise CheckpointError(f"{self.folder} holds no tensor named {name}; it holds {some(self.tensors)}")
        entry = self.tensors[name]
        if entry.dtype not in DTYPES:
            raise CheckpointError(
                f"{name} is stored as {entry.dtype}, which specfit does not read; convert the weights"
            )
        return entry

    def _read(self, name: str, start: int, shape: tuple[int, ...]) -> Tensor:
        """Plain reads, not a memory map: its pages would count as this process's memory, a second copy of the file."""
        entry = self.tensors[name]
        dtype = DTYPES[entry.dtype]
        raw = torch.empty(math.prod(shape) * dtype.itemsize, dtype=torch.uint8)
        try:
            if entry.file not in self._open_files:
                self._open_files[entry.file] = entry.file.open("rb", buffering=0)
            file = self._open_files[entry.file]
            file.seek(start)
            room = memoryview(raw.numpy().data)
            while len(room):
                count = file.readinto(room)
                if not count:
                    raise CheckpointError(f"{entry.file} ends inside {name}; fetch that file again")
                room = room[count:]
        except OSError as error:
            raise CheckpointError(f"{name} cannot be read from {entry.file}: {error}; fetch that file again") from error
        return raw.view(dtype).reshape(shape)


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


def open_config(path_or_id: str | Path, *, local_files_only: bool = False) -> Checkpoint:
    """config.json alone, as a checkpoint without tensors; of a hub id nothing else is fetched."""
    folder = _folder(path_or_id, [["config.json"]], local_files_only=local_files_only)
    return Checkpoint(folder, read_config(folder), {})


def checkpoint_folder(path_or_id: str | Path, *, local_files_only: bool = False) -> Path:
    """The folder itself, or the local snapshot of a hub id such as "org/model"."""
    weights = (["*.safetensors"], ["*.bin"])  # the second only where the first leaves no weights
    return _folder(path_or_id, [[*BESIDE_WEIGHTS, *kind] for kind in weights], local_files_only=local_files_only)


def _folder(path_or_id: str | Path, patterns: Sequence[list[str]], *, local_files_only: bool) -> Path:
    path = Path(path_or_id).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        raise CheckpointError(f"{path} is a file; give the folder that holds config.json and the weights")
    name = str(path_or_id)
    if isinstance(path_or_id, Path) or path.is_absolute() or name.startswith((".", "~")) or name.count("/") != 1:
        raise CheckpointError(f"{name} is not a folder here, and a hub id looks like org/model; check the path")
    from huggingface_hub import snapshot_download  # only now: a folder needs no network library
    from huggingface_hub.errors import GatedRepoError

    try:
        for wanted in patterns:
            folder = Path(
                snapshot_download(
                    name, allow_patterns=wanted, ignore_patterns=OTHER_COPIES, local_files_only=local_files_only
                )
            )
            if any(folder.glob("*.safetensors*")):
                break
    except GatedRepoError as error:
        raise CheckpointError(
            f"{name} is gated: accept its terms on the hub and log in (hf auth login), or give a folder that holds it"
        ) from error
    except (OSError, ValueError) as error:  # what the hub raises when offline, unknown or cut off
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
        content = parse_json(path.read_text(encoding="utf-8"))
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
            header = parse_json(file.read(length))
            header.pop("__metadata__", None)
            ends = {name: value["data_offsets"] for name, value in header.items()}
            entries = {
                name: TensorEntry(path, 8 + length + int(ends[name][0]), tuple(value["shape"]), value["dtype"])
                for name, value in header.items()
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path} is not a safetensors file (unreadable header); fetch it again") from error
    promised = 8 + length + max((end for _, end in ends.values()), default=0)
    if size < promised:
        raise CheckpointError(f"{path} is cut off: {size} bytes of {promised}; fetch it again")
    for name, entry in entries.items():
        begin, end = ends[name]
        if entry.dtype in DTYPES and end - begin != math.prod(entry.shape) * DTYPES[entry.dtype].itemsize:
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
