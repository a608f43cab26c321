"""A tokenizer for tiny checkpoints: one word a token, w0, w1, ..., with a chat template that adds nothing."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


def save_tokenizer(folder: Path, *, vocab: int = 64) -> None:
    """Save it beside a target's weights."""
    tokenizer = Tokenizer(models.WordLevel({f"w{token}": token for token in range(vocab)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    fast.save_pretrained(folder)
