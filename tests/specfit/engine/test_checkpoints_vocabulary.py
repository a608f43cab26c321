"""The draft vocabulary: maps, masks, aliases and leftovers (A20, A22)."""

import pytest
import torch

from specfit.engine.checkpoints import TargetFacts
from tests.checkpoint_toys import read, refused, spread_offsets, toy_head, write_drafter

torch.set_num_threads(1)


# --- A20, A22: the draft vocabulary ---


def test_a20_leftover_maps_of_a_whole_vocabulary_are_the_identity(tmp_path):
    maps = {"d2t": torch.zeros(64, dtype=torch.int64), "t2d": torch.ones(64, dtype=torch.bool)}
    _, vocabulary, report = read(write_drafter(tmp_path, toy_head(draft_vocab_size=64), tensors=maps))
    assert vocabulary.target_ids is None and report.warnings == ()
    assert torch.equal(vocabulary.to_target(torch.tensor([5, 63])), torch.tensor([5, 63]))


def test_a20_zeros_in_a_smaller_vocabulary_are_reported(tmp_path):
    zeros = torch.zeros(24, dtype=torch.int64)
    first = torch.arange(64) < 24
    for maps in ({"d2t": zeros, "t2d": first}, {"d2t": zeros, "t2d": None}):
        _, vocabulary, report = read(write_drafter(tmp_path, tensors=maps))
        assert vocabulary.target_ids.tolist() == list(range(24))
        assert "the first 24 target tokens; probably unset" in report.warnings[0]
    refused(
        write_drafter(tmp_path, tensors={"d2t": zeros}), "d2t names 24 target tokens, t2d 24, and they are not the same"
    )


@pytest.mark.parametrize("name", ["d2t", "draft_id_to_target_id", "model.d2t", "model.draft_id_to_target_id"])
def test_a22_renamed_maps_are_read(tmp_path, name):
    folder = write_drafter(tmp_path, tensors={"d2t": None, name: spread_offsets()})
    assert read(folder)[1].target_ids.tolist() == (spread_offsets() + torch.arange(24)).tolist()


def test_a22_a_map_of_target_ids_is_read(tmp_path):
    ids = spread_offsets() + torch.arange(24)
    assert torch.equal(read(write_drafter(tmp_path, tensors={"d2t": None, "hot_token_id": ids}))[1].target_ids, ids)


def test_a22_no_map_is_never_the_identity_of_a_smaller_vocabulary(tmp_path):
    refused(write_drafter(tmp_path / "a", tensors={"d2t": None}), "24 tokens, the target 64, and the file has no d2t")
    unknown = {"d2t": None, "draft_to_target": spread_offsets()}
    refused(write_drafter(tmp_path / "b", tensors=unknown), "draft_to_target")


@pytest.mark.parametrize(
    ("maps", "message"),
    [
        ({"d2t": spread_offsets() + torch.arange(24)}, "d2t holds target ids, going by t2d"),
        (
            {"d2t": torch.arange(24) + 3, "t2d": (torch.arange(64) > 2) & (torch.arange(64) < 27)},
            "d2t holds target ids",
        ),
        ({"d2t": torch.arange(24) * 3, "t2d": None}, "outside the target's 64"),
        ({"d2t": -torch.arange(24), "t2d": None}, "draft tokens 0 and 1 both map to target token 0"),
        ({"d2t": torch.full((24,), -1), "t2d": None}, "maps to target token -1"),
        ({"d2t": torch.zeros(16, dtype=torch.int64)}, r"d2t has shape \(16,\), draft_vocab_size asks for \(24,\)"),
        ({"t2d": torch.ones(60, dtype=torch.bool)}, r"t2d has shape \(60,\).*\(64,\)"),
        ({"t2d": torch.ones(64, dtype=torch.bool)}, "names 24 target tokens, t2d 64"),
        ({"d2t": spread_offsets() + 0.5}, "expected whole numbers"),
        ({"draft_id_to_target_id": spread_offsets() + 1}, "name different target tokens"),
    ],
    ids=range(10),
)
def test_broken_maps_are_refused(tmp_path, maps, message):
    refused(write_drafter(tmp_path, tensors=maps), message)


def test_draft_vocab_size_may_be_unsaid(tmp_path):
    whole = write_drafter(tmp_path / "w", toy_head(draft_vocab_size=64), config={"draft_vocab_size": "absent"})
    assert read(whole)[1].target_ids is None
    part = write_drafter(tmp_path / "p", config={"draft_vocab_size": None})
    assert read(part)[1].size == 24
    refused(
        write_drafter(tmp_path / "n", config={"draft_vocab_size": None}, tensors={"d2t": None}),
        r"lm_head.weight has shape \(24, 16\)",
    )


def test_token_ids_past_the_tokenizer_are_mapped_like_any_other(tmp_path):
    last = torch.arange(24) + 40 - torch.arange(24)
    mask = torch.arange(64) >= 40
    assert read(write_drafter(tmp_path, tensors={"d2t": last, "t2d": mask}))[1].to_target(torch.tensor(23)) == 63


def test_another_vocabulary_is_refused(tmp_path):
    refused(write_drafter(tmp_path), "vocab_size is 64, the target's is 80", target=TargetFacts(16, 8, 80))
