"""The tokenizer: byte-level BPE over 2,048 pieces, learnt from the training split, with the chat format built in.

A document is `<|user|>prompt<|assistant|>answer<|end|>`. Numbers are not split into digits: " 37" is one token, since
the training text is full of it.
"""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from specfit.embedded import corpus

VOCAB = 2048
PAD, USER, ASSISTANT, END = "<|pad|>", "<|user|>", "<|assistant|>", "<|end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ '<|end|>' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def train_tokenizer(out: Path, *, rows: int = 4000) -> PreTrainedTokenizerFast:
    """Learn the pieces from `rows` training documents of each kind and save the tokenizer's files into `out`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[PAD, USER, ASSISTANT, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    documents = (*corpus.problems("train", rows), *corpus.news("train", rows))
    numbers = "".join(f" {n}" for n in range(100))  # every number the world holds, often enough to be one piece
    texts = [numbers] * 50 + [text for row in documents for text in (row.prompt, row.answer)]
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[USER, ASSISTANT],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=1024,
    )
    fast.save_pretrained(out)
    path = out / "tokenizer_config.json"
    raw = json.loads(path.read_text())
    raw["tokenizer_class"] = "PreTrainedTokenizerFast"  # the name that Transformers 4 and 5 both know
    path.write_text(json.dumps(raw, indent=2) + "\n")
    return fast
