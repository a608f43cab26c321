"""Plans: the paper's model by its config alone, sums that equal what loading makes, and refusals with numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from specfit.cli import main
from specfit.engine.engine import load_engine
from specfit.engine.families import small_model
from specfit.engine.memory_sizes import free_host_memory, parse_bytes, shown
from specfit.engine.model_needs import model_needs
from specfit.engine.plan import Plan, make_plan, plan_target
from tests.checkpoint_toys import toy_head, write_drafter
from tests.models import tiny_drafter, tiny_target
from tests.offloaded import offloaded_target
from tests.word_tokenizer import save_tokenizer

torch.set_num_threads(1)
GIB = 1 << 30
QWEN3_30B_A3B = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_hidden_layers": 48,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "vocab_size": 151936,
    "max_position_embeddings": 262144,
    "rope_theta": 10000000,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the config and nothing else."""
    folder = tmp_path_factory.mktemp("qwen")
    (folder / "config.json").write_text(json.dumps(QWEN3_30B_A3B))
    return folder


@pytest.fixture(scope="module")
def plan(qwen: Path) -> Plan:
    return plan_target(qwen, slots=48, device_memory="40GB", host_memory="64GB")


def test_the_papers_model(plan: Plan) -> None:
    needs = plan.needs
    assert needs.experts == (128,) * 48
    assert set(needs.row_bytes) == {9_437_184}  # gate and up 768 x 2048 each, down 2048 x 768, two bytes a number
    assert needs.expert_bytes == 54 * GIB
    assert 54 * GIB <= needs.pinned_bytes() == 54 * GIB + GIB // 2  # 54 full chunks of 113 and one of 42, rounded up
    attention = 2048 * (2 * 32 + 2 * 4) * 128 + 2 * 128
    dense = 48 * (attention + 2 * 2048 + 128 * 2048) + 2048 + 2 * 151936 * 2048
    assert needs.dense_bytes - 2 * dense < 4096  # and two small tables of rotary frequencies
    assert needs.kv_bytes == 48 * 2 * 4 * 128 * 2
    assert needs.slot_bytes(48) == 48 * 48 * 9_437_184
    plan.check()


def test_it_prints_every_part_and_both_totals(plan: Plan) -> None:
    text = str(plan)
    for part in (
        "48 MoE layers of 128 experts, 9,437,184 bytes each",
        "20.25 GiB  48 expert slots",
        "54.50 GiB  experts (54.00 GiB) in pinned chunks",
        "384.0 MiB  keys and values of 4096 tokens",
        f"{shown(plan.device_bytes)}  in all, of 37.25 GiB",
        f"{shown(plan.host_bytes)}  in all, of 59.60 GiB",
    ):
        assert part in text, text


def planned(plan: Plan, *, host: str = "64GB", device: str | None = None, **given: Any) -> Plan:
    """Another plan of the same model."""
    limits = {"host_limit": parse_bytes(host), "device_limit": None if device is None else parse_bytes(device)}
    return make_plan(plan.name, plan.needs, on_gpu=True, **limits, **given)


def test_slots_by_number_by_share_and_by_memory(plan: Plan) -> None:
    assert planned(plan, slots=0.5).slots == 64
    assert planned(plan, device="80GB").slots == 128
    fitting = planned(plan, device="20GB")
    fitting.check()
    assert 20e9 - fitting.needs.slot_bytes(1) < fitting.device_bytes <= 20e9
    with pytest.raises(ValueError, match=r"between 1 and the target's 128 experts, or a share such as 0.5; got 129"):
        planned(plan, slots=129)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"host": "32GB"}, r"needs 56.50 GiB of HOST memory, .*54.00 GiB for its experts, and there are 29.80 GiB"),
        ({"slots": 128, "device": "40GB"}, r"with 128 slots .* GiB of GPU memory, .* 37.25 GiB; 75 slots would fit"),
        ({"device": "4GB"}, "GPU memory, and there are 3.73 GiB; not one slot would fit"),
    ],
)
def test_what_does_not_fit_is_refused_with_numbers(plan: Plan, given: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        planned(plan, **given).check()


def test_b26_a_longer_context_leaves_fewer_slots(plan: Plan) -> None:
    short, long = (planned(plan, context=tokens, device="24GiB").slots for tokens in (4096, 32768))
    assert short - long in (6, 7)  # 28672 tokens of 96 KiB, a slot in every layer being 432 MiB
    assert planned(plan, device="24GiB").device_reserve == 2 * GIB


def test_a_plan_counts_what_loading_makes(tmp_path: Path) -> None:
    tiny_target(tmp_path / "target", mlp_only_layers=[0])
    save_tokenizer(tmp_path / "target")
    tiny_drafter(tmp_path / "drafter")
    plan = plan_target(tmp_path / "target", slots=3, device="cpu", drafter=tmp_path / "drafter")
    with load_engine(tmp_path / "target", drafter=tmp_path / "drafter", slots_per_layer=3, device="cpu") as engine:
        rows = [row for layer in engine.offload.layers for row in layer._rows]
        assert plan.needs.expert_bytes == sum(row.nbytes for row in rows)
        parameters = sum(p.nbytes for p in engine.target.model.parameters())  # slots among them
        buffers = sum(b.nbytes for b in engine.target.model.buffers())
        assert plan.needs.dense_bytes + plan.needs.slot_bytes(3) == parameters + buffers
        head = engine.drafter.head  # type: ignore[union-attr]
        assert plan.drafter is not None
        assert plan.drafter.weight_bytes == sum(weight.nbytes for weight in head.parameters())
        engine.target.prefill([1, 2, 3, 4])
        engine.drafter.extend([2, 3, 4, 5], engine.target.commit(()))  # type: ignore[union-attr]
        engine.drafter.catch_up()  # type: ignore[union-attr]
        held = engine.drafter._cache._layers  # type: ignore[union-attr]
        assert plan.drafter.kv_bytes * 4 == sum(keys.nbytes + values.nbytes for keys, values in held)
        assert plan.drafter_bytes == plan.drafter.weight_bytes + 4096 * plan.drafter.kv_bytes


def test_mapped_experts_serve_a_cpu_only(tmp_path: Path) -> None:
    tiny_target(tmp_path)
    with pytest.raises(ValueError, match='experts="mapped" serves a CPU only'):
        plan_target(tmp_path, experts="mapped", device="cuda")


def test_a_drafter_in_bin_files_is_counted(tmp_path: Path) -> None:
    tiny_target(tmp_path / "target")
    folder = write_drafter(tmp_path / "drafter", layout="SafeAILab", form="sharded bin")
    plan = plan_target(tmp_path / "target", device="cpu", drafter=folder)
    weights = sum(weight.nbytes for weight in toy_head().parameters())
    assert plan.drafter is not None and weights < plan.drafter.weight_bytes < 4 * weights  # these are small for a file
    assert shown(plan.drafter_bytes) + "  drafter" in str(plan)


def test_mapped_experts_need_no_memory_and_leave_room_for_slots(plan: Plan) -> None:
    def on_cpu(**given: Any) -> Plan:
        return make_plan(plan.name, plan.needs, on_gpu=False, host_limit=parse_bytes("24GB"), **given)

    with pytest.raises(ValueError, match=r'leave the experts in their files \(experts="mapped"\), or take a smaller'):
        on_cpu().check()
    mapped = on_cpu(mapped=True)
    mapped.check()
    assert "experts (54.00 GiB) stay in their files" in str(mapped)
    assert 1 < mapped.slots < 48 and mapped.host_bytes <= 24e9 < mapped.host_bytes + 2 * mapped.needs.slot_bytes(1)
    with pytest.raises(ValueError, match="of them 54.00 GiB for its experts, .*; take fewer slots"):
        on_cpu(mapped=True, slots=128).check()


@pytest.mark.parametrize("family", ["qwen2_moe", "deepseek_v3", "gpt_oss"])
def test_shared_experts_are_dense_and_keys_may_be_wider_than_values(tmp_path: Path, family: str) -> None:
    """B14, B22: whatever the family, the counts are those of the tensors."""
    model = small_model(family, tmp_path)
    target = offloaded_target(tmp_path, slots=2)
    plan = plan_target(tmp_path, slots=2, device="cpu", dtype="float32")
    routed = sum(p.nbytes for name, p in model.named_parameters() if ".mlp.experts." in name)
    assert plan.needs.expert_bytes == routed
    assert plan.needs.dense_bytes == sum(t.nbytes for t in (*model.parameters(), *model.buffers())) - routed
    target.prefill(list(range(5)))
    cached = sum(layer.keys[:, :, :5].nbytes + layer.values[:, :, :5].nbytes for layer in target._kv.layers)
    assert plan.needs.kv_bytes * 5 == cached


def test_counting_leaves_the_model_as_it_was(qwen: Path, tmp_path: Path) -> None:
    small_model("qwen3_moe", tmp_path)
    target = offloaded_target(tmp_path, slots=2)
    before = target.prompt_logits([1, 2, 3])
    with torch.device("meta"):
        fresh = type(target.model)(target.config)
    model_needs(fresh)
    assert torch.equal(target.prompt_logits([1, 2, 3]), before)


@pytest.mark.parametrize(
    ("text", "size"),
    [("20GB", 20_000_000_000), ("1.5 GiB", 3 * GIB // 2), ("64kb", 64_000), ("123", 123), (7, 7), ("2tib", 2 << 40)],
)
def test_amounts_of_memory(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-3GB", "0", "1e3", "20 parsecs", "1,5GB"])
def test_what_is_no_amount_of_memory(text: str) -> None:
    with pytest.raises(ValueError, match="is no amount of memory; write it as 20GB"):
        parse_bytes(text)


def test_this_machine_has_memory() -> None:
    assert free_host_memory() is None or free_host_memory() > 1 << 26  # type: ignore[operator]


def test_an_engine_that_does_not_fit_is_refused_before_it_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_target(tmp_path)
    monkeypatch.setattr("specfit.engine.loading.free_host_memory", lambda: 100_000)
    with pytest.raises(ValueError, match="of HOST memory, of them .* for its experts, and there are 0.1 MiB"):
        load_engine(tmp_path, device="cpu")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    tiny_target(tmp_path)
    (tmp_path / "model.safetensors").unlink()  # not needed
    command = ["plan", str(tmp_path), "--host-memory", "64GB"]
    assert main([*command, "--device-memory", "20GB"]) == 0
    assert "8 expert slots in every layer" in capsys.readouterr().out
    assert main([*command, "--device-memory", "500KB", "--slots", "0.75"]) == 2
    printed = capsys.readouterr()
    assert "6 expert slots" in printed.out and "GPU memory" in printed.err and printed.err.count("\n") == 1
    assert main([*command, "--device", "cpu", "--experts", "mapped"]) == 0
    assert "stay in their files" in capsys.readouterr().out
    assert main([*command, "--experts", "mapped"]) == 2
    assert "take the CPU, or leave it out" in capsys.readouterr().err
    assert main([*command, "--device-memory", "a lot"]) == 2
    assert "'a lot' is no amount of memory" in capsys.readouterr().err
    assert main(["plan", "./nowhere"]) == 2
    assert "./nowhere is not a folder here" in capsys.readouterr().err
