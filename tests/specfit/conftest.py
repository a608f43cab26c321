"""A tiny real target, drafter and question file that runs, calibration and the command line share."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class TinyWorld:
    """Folders of a random 4-layer Qwen3-MoE with 8 experts and its drafter, and a file of four questions."""

    target: Path
    drafter: Path
    questions: Path


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyWorld:
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from tests.models import tiny_drafter, tiny_target

    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("tiny")
    tiny_target(root / "target")
    tiny_drafter(root / "drafter")
    words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(64)}, unk_token="t0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="t0").save_pretrained(root / "target")
    rows = [
        {"question_id": 1, "category": "one", "turns": ["t1 t7 t9 t40"]},
        {"question_id": 2, "category": "one", "turns": ["t2 t7 t9 t41", "t3 t3"]},
        {"question_id": 3, "category": "two", "turns": ["t5"], "reference": ["t6"]},
        {"question_id": 4, "category": "two", "turns": ["t8 t8 t8 t50 t3"]},
    ]
    questions = root / "questions.jsonl"
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return TinyWorld(root / "target", root / "drafter", questions)
