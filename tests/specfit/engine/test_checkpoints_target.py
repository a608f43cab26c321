"""The target's side: facts and expert counts from plain config JSON, files, and where each layer's experts lie."""

import json

import pytest
import torch
from safetensors.torch import save_file

from specfit.engine.checkpoints import (
    CheckpointError,
    open_checkpoint,
    read_moe_shape,
)
from tests.checkpoint_toys import write_folder

torch.set_num_threads(1)

QWEN = {"model_type": "qwen3_moe", "num_hidden_layers": 4, "num_experts": 8, "num_experts_per_tok": 2}


# --- B1, B2, B4, B6, B14, B18: how many experts, where ---


@pytest.mark.parametrize(
    ("config", "experts", "top_k"),
    [
        (QWEN, (8,) * 4, (2,) * 4),
        (QWEN | {"num_experts": None, "num_local_experts": 8}, (8,) * 4, (2,) * 4),  # as transformers 5 saves it
        (QWEN | {"num_local_experts": 8}, (8,) * 4, (2,) * 4),
        (QWEN | {"num_hidden_layers": 6, "decoder_sparse_step": 2, "mlp_only_layers": [3]}, (0, 8, 0, 0, 0, 8), None),
        (QWEN | {"decoder_sparse_step": 1, "mlp_only_layers": []}, (8,) * 4, None),
        (QWEN | {"mlp_only_layers": [0, 3]}, (0, 8, 8, 0), (0, 2, 2, 0)),
        (
            {"num_hidden_layers": 3, "n_routed_experts": 8, "num_experts_per_tok": 2, "first_k_dense_replace": 1},
            (0, 8, 8),
            None,
        ),
        (
            {"model_type": "glm4_moe", "num_hidden_layers": 3, "n_routed_experts": 8, "num_experts_per_tok": 2},
            (0, 8, 8),
            None,
        ),
        (
            {"model_type": "deepseek_v3", "num_hidden_layers": 5, "n_routed_experts": 8, "num_experts_per_tok": 2},
            (0, 0, 0, 8, 8),
            None,
        ),
        (
            {
                "model_type": "deepseek_v2",
                "num_hidden_layers": 27,
                "n_routed_experts": 64,
                "num_experts_per_tok": 6,
                "n_shared_experts": 2,
                "first_k_dense_replace": 1,
                "moe_layer_freq": 1,
                "q_lora_rank": None,
                "topk_method": "greedy",
                "topk_group": 1,
                "n_group": 1,
            },
            (0,) + (64,) * 26,
            (0,) + (6,) * 26,
        ),
        ({"num_hidden_layers": 4, "num_experts": 4, "moe_topk": [1, 2, 1, 2]}, (4,) * 4, (1, 2, 1, 2)),
        ({"num_hidden_layers": 4, "num_experts": [4, 4, 8, 8], "moe_topk": 1}, (4, 4, 8, 8), (1,) * 4),
        ({"num_hidden_layers": 3, "num_experts": [4, 0, 8], "moe_topk": [1, 0, 2]}, (4, 0, 8), (1, 0, 2)),
        (
            {
                "num_hidden_layers": 6,
                "moe_num_experts": 4,
                "moe_k": 2,
                "moe_num_shared_experts": 0,
                "moe_layer_start_index": 1,
                "moe_layer_end_index": -1,
                "moe_layer_interval": 2,
            },
            (0, 4, 0, 4, 0, 4),
            None,
        ),
        (
            {
                "num_hidden_layers": 6,
                "moe_num_experts": 4,
                "moe_k": 2,
                "moe_layer_start_index": 2,
                "moe_layer_end_index": 3,
            },
            (0, 0, 4, 4, 0, 0),
            None,
        ),
        ({"num_hidden_layers": 2, "num_experts": 13, "num_experts_per_tok": 8}, (13, 13), (8, 8)),
        ({"num_hidden_layers": 2, "num_experts": [16, 13], "num_experts_per_tok": 8}, (16, 13), (8, 8)),
        ({"num_hidden_layers": 1, "num_experts": 1, "num_experts_per_tok": 1}, (1,), (1,)),
        ({"num_hidden_layers": 2, "num_local_experts": 8, "experts_per_token": 4}, (8, 8), (4, 4)),
        (
            {"num_hidden_layers": 2, "num_local_experts": 8, "experts_per_token": 4, "num_experts_per_tok": 4},
            (8, 8),
            (4, 4),
        ),
        (
            {"num_hidden_layers": 3, "mlp_layer_types": ["dense", "sparse", "sparse"], "num_experts": 4, "moe_k": 1},
            (0, 4, 4),
            None,
        ),
        (
            {"num_hidden_layers": 4, "num_experts": 4, "moe_k": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
            (0, 4, 0, 4),
            None,
        ),
        ({"num_hidden_layers": 3, "num_experts": 4, "moe_k": 1, "num_dense_layers": 2}, (0, 0, 4), None),
        ({"num_hidden_layers": 3, "n_routed_experts": 4, "moe_k": 1, "moe_layer_freq": [0, 1, 1]}, (0, 4, 4), None),
        ({"vocab_size": 9, "text_config": QWEN | {"hidden_size": 16}}, (8,) * 4, None),
        (QWEN | {"quantization_config": None}, (8,) * 4, None),
    ],
    ids=range(26),
)
def test_experts_of_each_layer(config, experts, top_k):
    shape = read_moe_shape(config)
    assert shape.experts == experts
    assert shape.sparse_layers == tuple(layer for layer, count in enumerate(experts) if count)
    if top_k is not None:
        assert shape.top_k == top_k


def test_b1_a_config_saved_by_transformers(tmp_path):
    from transformers import Glm4MoeConfig, Qwen3MoeConfig

    Qwen3MoeConfig(num_experts=8, num_experts_per_tok=2, num_hidden_layers=3).save_pretrained(tmp_path)
    assert read_moe_shape(json.loads((tmp_path / "config.json").read_text())).experts == (8, 8, 8)
    Glm4MoeConfig(n_routed_experts=8, num_experts_per_tok=2, num_hidden_layers=3).save_pretrained(tmp_path)
    assert read_moe_shape(json.loads((tmp_path / "config.json").read_text())).experts == (0, 8, 8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_experts": None}, "does not say the number of experts .*num_local_experts"),
        ({"num_experts_per_tok": None}, "does not say experts per token"),
        ({"experts_per_token": 4}, "experts per token: num_experts_per_tok: 2, experts_per_token: 4"),
        ({"num_local_experts": 16}, "num_experts: 8, num_local_experts: 16"),
        ({"num_experts": [8, 8]}, "num_experts lists 2 layers"),
        ({"num_experts_per_tok": 9}, "9 of 8 experts"),
        ({"num_experts": "8"}, "expected a positive whole number"),
        ({"num_experts": [8, 8, 8, -1]}, "num_experts: -1"),
        (
            {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}},
            "quantized .quantization_config: fp8",
        ),
        ({"text_config": {"quantization_config": {"quant_method": "mxfp4"}}}, "mxfp4"),
        ({"compression_config": {"format": "pack"}}, "compression_config"),
        ({"num_hidden_layers": None}, "no num_hidden_layers"),
    ],
    ids=range(12),
)
def test_unusable_expert_counts_are_refused(changes, message):
    with pytest.raises(CheckpointError, match=message):
        read_moe_shape(QWEN | changes)


# --- files ---


def some_tensors():
    return {f"t{i}": torch.full((2, 3), float(i)) for i in range(7)}


@pytest.mark.parametrize("form", ["safetensors", "sharded"])
def test_tensors_are_indexed_and_read_one_by_one(tmp_path, form):
    with open_checkpoint(write_folder(tmp_path, QWEN, some_tensors(), form=form)) as checkpoint:
        assert set(checkpoint.tensors) == set(some_tensors())
        assert checkpoint.tensors["t3"].shape == (2, 3) and checkpoint.tensors["t3"].dtype == "F32"
        assert checkpoint.config == QWEN
        for name, tensor in some_tensors().items():
            assert torch.equal(checkpoint.read_tensor(name), tensor)
        assert torch.equal(checkpoint.read_part("t3", 1), some_tensors()["t3"][1])
        with pytest.raises(CheckpointError, match="no tensor named t9"):
            checkpoint.read_tensor("t9")


def test_nothing_is_read_before_it_is_asked_for(tmp_path):
    folder = write_folder(tmp_path, QWEN, some_tensors(), form="sharded")
    checkpoint = open_checkpoint(folder)
    checkpoint.read_tensor("t0")
    assert len(checkpoint._open_files) == 1
    checkpoint.close()
    assert len(checkpoint._open_files) == 0
    assert torch.equal(checkpoint.read_tensor("t1"), some_tensors()["t1"])


@pytest.mark.parametrize("cut", [-1, -40, 100, 9, 8, 3, 0])
@pytest.mark.parametrize("form", ["safetensors", "sharded"])
def test_a_truncated_file_is_a_sentence(tmp_path, cut, form):
    folder = write_folder(tmp_path, QWEN, some_tensors(), form=form)
    path = sorted(folder.glob("*.safetensors"))[-1]
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(CheckpointError, match=f"{path.name} is cut off"):
        open_checkpoint(folder)


def test_damaged_files_are_sentences(tmp_path):
    folder = write_folder(tmp_path, QWEN, some_tensors())
    path = folder / "model.safetensors"
    good = path.read_bytes()
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(CheckpointError, match="Git LFS pointer"):
        open_checkpoint(folder)
    path.write_bytes((20).to_bytes(8, "little") + b"x" * 100)
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        open_checkpoint(folder)
    path.write_bytes(good.replace(b'"shape":[2,3]', b'"shape":[2,4]', 1))
    with pytest.raises(CheckpointError, match="is not its shape"):
        open_checkpoint(folder)


def test_a_missing_shard_is_named(tmp_path):
    folder = write_folder(tmp_path, QWEN, some_tensors(), form="sharded")
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"needs model-00002-of-00003.safetensors for 2 tensors .t1, t4"):
        open_checkpoint(folder)


def test_an_index_that_does_not_fit_its_shards_is_named(tmp_path):
    folder = write_folder(tmp_path, QWEN, some_tensors(), form="sharded")
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    for change, message in (
        ({"t99": "model-00001-of-00003.safetensors"}, "places t99 in model-00001-of-00003.safetensors, which does not"),
        ({"t99": "../model.safetensors"}, "places t99 outside the folder"),
        ({"t99": 3}, "no weight_map"),
    ):
        path.write_text(json.dumps({"weight_map": index["weight_map"] | change}))
        with pytest.raises(CheckpointError, match=message):
            open_checkpoint(folder)
    path.write_text("{}")
    with pytest.raises(CheckpointError, match="no weight_map"):
        open_checkpoint(folder)


def test_a_folder_without_weights_is_named(tmp_path):
    folder = write_folder(tmp_path, QWEN, some_tensors(), form="bin")
    with pytest.raises(CheckpointError, match=r"neither model.safetensors nor .*convert the weights to safetensors"):
        open_checkpoint(folder)
    with pytest.raises(CheckpointError, match="is a file; give the folder"):
        open_checkpoint(folder / "config.json")


def test_a_single_file_wins_over_an_index_left_beside_it(tmp_path):
    write_folder(tmp_path, QWEN, {"old": torch.zeros(1)}, form="sharded")
    with open_checkpoint(write_folder(tmp_path, QWEN, some_tensors())) as checkpoint:
        assert "old" not in checkpoint.tensors


def test_two_kinds_of_file_names(tmp_path):
    """One loose file of any name is taken; two without an index are not guessed at."""
    folder = write_folder(tmp_path, QWEN, some_tensors())
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    assert "t0" in open_checkpoint(folder).tensors
    save_file({"x": torch.zeros(1)}, folder / "b.safetensors")
    with pytest.raises(CheckpointError, match=r"it has a.safetensors, b.safetensors"):
        open_checkpoint(folder)
