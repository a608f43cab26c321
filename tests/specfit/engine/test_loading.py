"""Loading as the operating system sees it, from the hub's cache, and when it goes wrong half-way."""

from __future__ import annotations

import gc
import http.server
import json
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3MoeConfig

from specfit.engine.checkpoint_files import CheckpointError, open_checkpoint
from specfit.engine.checkpoint_names import name_table
from specfit.engine.engine import load_engine
from specfit.engine.host_experts import load_host_experts
from specfit.engine.skeleton import build_skeleton, named_moe_modules
from tests.models import tiny_drafter, tiny_target
from tests.word_tokenizer import save_tokenizer

torch.set_num_threads(1)
MIB = 1 << 20


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A checkpoint of a few hundred MiB in bfloat16 in shards, and the bytes of its experts."""
    folder = tmp_path_factory.mktemp("large")
    layers, experts, hidden, inner = 4, 16, 512, 1024
    Qwen3MoeConfig(
        vocab_size=64,
        hidden_size=hidden,
        intermediate_size=64,
        moe_intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        num_experts=experts,
        num_experts_per_tok=2,
        dtype="bfloat16",
        architectures=["Qwen3MoeForCausalLM"],
    ).save_pretrained(folder)
    weight_map = {}
    small = {"model.embed_tokens.weight": (64, hidden), "model.norm.weight": (hidden,), "lm_head.weight": (64, hidden)}
    for layer in range(layers):
        at = f"model.layers.{layer}."
        shapes = dict(small) if layer == 0 else {}
        shapes |= {f"{at}{norm}.weight": (hidden,) for norm in ("input_layernorm", "post_attention_layernorm")}
        shapes |= {f"{at}self_attn.{norm}.weight": (16,) for norm in ("q_norm", "k_norm")}
        shapes |= {f"{at}self_attn.q_proj.weight": (64, hidden), f"{at}self_attn.o_proj.weight": (hidden, 64)}
        shapes |= {f"{at}self_attn.{part}_proj.weight": (32, hidden) for part in "kv"}
        shapes |= {f"{at}mlp.gate.weight": (experts, hidden)}
        for expert in range(experts):
            shapes |= {f"{at}mlp.experts.{expert}.{part}_proj.weight": (inner, hidden) for part in ("gate", "up")}
            shapes |= {f"{at}mlp.experts.{expert}.down_proj.weight": (hidden, inner)}
        file = f"model-{layer + 1:05}-of-{layers:05}.safetensors"
        save_file(
            {name: torch.full(shape, 0.01, dtype=torch.bfloat16) for name, shape in shapes.items()}, folder / file
        )
        weight_map |= dict.fromkeys(shapes, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    save_tokenizer(folder)
    return folder, layers * experts * 3 * hidden * inner * 2


def child(script: str, *arguments: object) -> str:
    """What a process of its own prints."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


SCRIPT = """
import json, re, resource, sys
from pathlib import Path
import specfit.engine.host_experts
from specfit.engine.engine import load_engine

def status(key):
    return int(re.search(key + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024

folder, expert_bytes = sys.argv[1], int(sys.argv[2])
load_engine("embedded", device="cpu", self_test=False).close()  # whatever is imported late
before = status("VmRSS")
how = {"device": "cpu", "dtype": "bfloat16", "slots_per_layer": 1, "self_test": False}
engine = load_engine(folder, **how)
held = sum(row.nbytes for layer in engine.offload.layers for row in layer._rows)
found = {"peak": status("VmHWM") - before, "held": held}
engine.close()
del engine

# The same in their files: what a process has taken for itself, and not pages of a file that the system may drop.
before = status("RssAnon")
with load_engine(folder, **how, experts="mapped") as engine:
    found["mapped"] = status("RssAnon") - before
    for layer in engine.offload.layers:
        for row in layer._rows:
            row.copy_into(layer._slot_rows[0])
    found["mapped, all read"] = status("RssAnon") - before
del engine, layer, row

# Several slabs, so that some are there when the next is refused; each above the size from which malloc always maps
# memory of its own (smaller ones may come from a heap that does not shrink).
specfit.engine.host_experts.PINNED_CHUNK = 40 << 20
before = status("VmSize")
resource.setrlimit(resource.RLIMIT_AS, (before + expert_bytes * 3 // 4, resource.RLIM_INFINITY))
try:
    load_engine(folder, device="cpu", dtype="bfloat16", self_test=False)
except ValueError as error:
    kept = error  # as a notebook keeps its last error
    found["error"] = type(error).__name__ + " " + str(error)
found["left"] = status("VmSize") - before
with load_engine("embedded", device="cpu", self_test=False) as engine:
    found["experts"] = engine.experts
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def accounts(large: tuple[Path, int]) -> dict:
    """What a process of its own noted: a load that fits, then one in too little address space."""
    if not Path("/proc/self/status").exists():
        pytest.skip("the kernel's accounting is Linux's")
    command = [sys.executable, "-c", SCRIPT, *map(str, large)]
    one_arena = {**os.environ, "MALLOC_ARENA_MAX": "1"}  # every thread's own is 64 MiB of address space, used or not
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=one_arena)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_experts_are_in_memory_once(large: tuple[Path, int], accounts: dict) -> None:
    _, expert_bytes = large
    assert accounts["held"] == expert_bytes > 190 * MIB
    assert expert_bytes < accounts["peak"] < 1.35 * expert_bytes  # and slots, and one tensor: no second copy


def test_mapped_experts_take_a_fraction_of_their_size(large: tuple[Path, int], accounts: dict) -> None:
    _, expert_bytes = large
    assert accounts["mapped"] < expert_bytes // 4  # slots are a sixteenth
    assert accounts["mapped, all read"] < expert_bytes // 4


def test_memory_that_runs_out_half_way_is_a_sentence_and_given_back(large: tuple[Path, int], accounts: dict) -> None:
    _, expert_bytes = large
    assert accounts["error"].startswith("CheckpointError 192.0 MiB of HOST memory for the experts cannot be had, ")
    assert accounts["left"] < expert_bytes // 4  # the slabs were three quarters
    assert accounts["experts"] == 64


def tiny(folder: Path) -> Path:
    tiny_target(folder, num_hidden_layers=2, num_experts=4)
    save_tokenizer(folder)
    return folder


def test_memory_that_cannot_be_pinned_stays_pageable_with_a_warning(tmp_path: Path) -> None:
    """Without CUDA nothing can be pinned: the fallback itself."""
    tiny(tmp_path)
    with pytest.warns(UserWarning, match="0.0 MiB of the 0.0 MiB of experts could not be pinned in HOST memory"):
        engine = load_engine(tmp_path, device="cpu", pin=True)
    with engine:
        assert engine.target.prompt_logits([1, 2, 3]).isfinite().all()


def test_chunks_run_across_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny(tmp_path)
    row = 3 * 16 * 32 * 4
    monkeypatch.setattr("specfit.engine.host_experts.PINNED_CHUNK", 3 * row + 1)
    with open_checkpoint(tmp_path) as checkpoint:
        model = build_skeleton(checkpoint, dtype=torch.float32, attention=None)
        names = name_table(checkpoint, model)
        host = load_host_experts(checkpoint, model, named_moe_modules(model), names, dtype=torch.float32, pin=False)
    assert [len(layer) for layer in host.rows] == [4, 4] and (host.bytes, host.pinned_bytes) == (8 * row, 0)
    chunks = [tensor.untyped_storage().data_ptr() for layer in host.rows for tensor in layer]
    assert [chunks.index(chunk) for chunk in chunks] == [0, 0, 0, 3, 3, 3, 6, 6]


@pytest.mark.parametrize(
    ("given", "slots"),
    [({}, 4), ({"slots_per_layer": 3}, 3), ({"slots_per_layer": 0.5}, 2), ({"slots_per_layer": 1.0}, 4)],
)
def test_slots_as_a_number_or_a_share(tmp_path: Path, given: dict, slots: int) -> None:
    with load_engine(tiny(tmp_path), device="cpu", self_test=False, **given) as engine:
        assert engine.settings["slots_per_layer"] == slots
        assert engine.offload.layers[0].cache.slots == slots


def test_a_closed_engine_holds_no_weights(tmp_path: Path) -> None:
    """At once, without waiting for Python's collector of cycles."""
    engine = load_engine(tiny(tmp_path), device="cpu", slots_per_layer=2)
    layer = engine.offload.layers[0]
    held = [weakref.ref(tensor) for tensor in (layer._rows[0], layer._slot_rows[0], engine.target.model.lm_head.weight)]
    del layer
    gc.collect()
    gc.disable()
    try:
        engine.close()
        assert [tensor() for tensor in held] == [None] * 3
    finally:
        gc.enable()


def test_what_the_file_holds_besides_is_counted(tmp_path: Path) -> None:
    path = tiny(tmp_path) / "model.safetensors"
    save_file(load_file(path) | {"mtp.fc.weight": torch.zeros(2), "mtp.norm.weight": torch.zeros(2)}, path)
    with load_engine(tmp_path, device="cpu", self_test=False) as engine:
        assert engine.left_out == {"mtp.*": 2}


def test_a_tokenizer_of_another_model(tmp_path: Path) -> None:
    tiny(tmp_path)
    save_tokenizer(tmp_path, vocab=65)
    with pytest.raises(CheckpointError, match="goes up to token 64, the model's vocab_size is 64"):
        load_engine(tmp_path, device="cpu")
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match="transformers cannot read the tokenizer in "):
        load_engine(tmp_path, device="cpu")


def test_a_config_that_transformers_does_not_know(tmp_path: Path) -> None:
    tiny(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "qwen9_moe"}))
    with pytest.raises(CheckpointError, match="transformers cannot build a language model from .*qwen9_moe"):
        load_engine(tmp_path, device="cpu")
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_attention_heads": "four"}))
    with pytest.raises(CheckpointError, match="num_attention_heads.* expected int, got str"):
        load_engine(tmp_path, device="cpu")


def test_b18_a_config_that_contradicts_itself(tmp_path: Path) -> None:
    tiny(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"experts_per_token": 1}))
    with pytest.raises(CheckpointError, match="experts per token: num_experts_per_tok: 2, experts_per_token: 1"):
        load_engine(tmp_path, device="cpu")


def test_nothing_stays_behind_a_broken_load(tmp_path: Path) -> None:
    """Another load works in the same process, while the first error is still held."""
    tiny(tmp_path)
    path = tmp_path / "model.safetensors"
    good = load_file(path)
    bad = {name: tensor.clone() for name, tensor in good.items()}
    bad["model.layers.1.mlp.experts.3.down_proj.weight"][0, 0] = float("nan")
    save_file(bad, path)
    with pytest.raises(CheckpointError, match="expert 3 of model.layers.1.mlp.experts holds NaN") as held:
        load_engine(tmp_path, device="cpu")
    variables: list[str] = []
    trace = held.value.__traceback__
    while trace is not None:
        variables += trace.tb_frame.f_locals if "specfit" in trace.tb_frame.f_code.co_filename else ()
        trace = trace.tb_next
    assert not {"host", "loaded", "model", "row"} & set(variables)  # the slabs are gone with the frames' variables
    save_file(good, path)
    load_engine(tmp_path, device="cpu").close()


def test_a_drafter_that_does_not_fit_is_refused_before_experts_are_read(tmp_path: Path) -> None:
    """Reading them takes minutes: here it would end with an error of its own."""
    path = tiny(tmp_path / "target") / "model.safetensors"
    tensors = load_file(path)
    tensors["model.layers.0.mlp.experts.0.down_proj.weight"][0, 0] = float("nan")
    save_file(tensors, path)
    tiny_drafter(tmp_path / "drafter", aux=(0, 5))
    with pytest.raises(CheckpointError, match="target layer id 5 is no layer"):
        load_engine(tmp_path / "target", drafter=tmp_path / "drafter", device="cpu")
    with pytest.raises(ValueError, match="kernel 'fast' is unknown"):
        load_engine(tmp_path / "target", kernel="fast", device="cpu")


# --- the hub, as its own client sees it ---


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub cache with org/tiny and its drafter in it, and no network."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    for name in ("tiny", "head"):
        snapshot = tmp_path / f"models--org--{name}" / "snapshots" / "0123456789abcdef0123456789abcdef01234567"
        snapshot.mkdir(parents=True)
        refs = tmp_path / f"models--org--{name}" / "refs"
        refs.mkdir()
        (refs / "main").write_text(snapshot.name)
        tiny(snapshot) if name == "tiny" else tiny_drafter(snapshot, aux=(0, 1))
    return tmp_path


def test_a_hub_id_loads_from_the_cache(cached: Path) -> None:
    with load_engine("org/tiny", drafter="org/head", device="cpu") as engine:
        assert engine.settings["target"] == "org/tiny" and engine.drafter is not None


class Gate(http.server.BaseHTTPRequestHandler):
    """A hub that knows the model and wants its terms accepted."""

    def do_GET(self) -> None:
        self.send_response(403)
        self.send_header("X-Error-Code", "GatedRepo")
        self.send_header("X-Error-Message", "Access to model org/gated is restricted")
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Gate)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_gated_model_says_what_to_do(gate: None) -> None:
    with pytest.raises(CheckpointError, match="org/gated is gated: accept its terms on the hub and log in"):
        load_engine("org/gated", device="cpu")
