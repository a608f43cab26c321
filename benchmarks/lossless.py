"""Lossless in every configuration, to the end of every answer: 40 prompts x 3 methods x 6 slot counts x 2 cache modes.

    python benchmarks/lossless.py [--prompts N]

Prints how many answers equal the library's own greedy text, and how many tokens were compared.
"""

from __future__ import annotations

import argparse

import torch
from transformers import AutoModelForCausalLM

import specfit
from specfit.embedded import target_folder
from specfit.runs import prompts_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=40)
    count = parser.parse_args().prompts
    torch.set_num_threads(1)
    library = AutoModelForCausalLM.from_pretrained(target_folder(), dtype=torch.float32).eval()
    cost = specfit.CostModel.affine(8.0, 0.3, expert_ms=0.3)
    with specfit.load_engine("embedded") as resident:
        prompts = [
            prompt.ids
            for kind in ("problems", "news")
            for prompt in prompts_of(resident, specfit.embedded_workload(kind, count=count // 2))
        ]
        atlas = specfit.record_atlas(resident, prompts, max_new_tokens=200)
    texts = []
    for prompt in prompts:
        with torch.no_grad():
            text = library.generate(torch.tensor([prompt]), max_new_tokens=200, do_sample=False)
        texts.append(text[0, len(prompt) :].tolist())
    equal = answers = tokens = 0
    for slots in (64, 24, 12, 6, 4, 1):
        for cleared in (False, True):
            with specfit.load_engine("embedded", slots_per_layer=slots, cleared=cleared) as engine:
                for prompt, text in zip(prompts, texts, strict=True):
                    for method in (specfit.AR, specfit.EAGLE3, specfit.SPECFIT):
                        decoding = engine.decode(prompt, method=method, cost=cost, routes=atlas, max_new_tokens=200)
                        for _ in decoding:
                            pass
                        answers += 1
                        tokens += len(text)
                        equal += decoding.output == text
            print(
                f"slots {slots:2d} {'cleared' if cleared else 'kept   '}: "
                f"{equal} of {answers} answers equal, {tokens} tokens"
            )


if __name__ == "__main__":
    main()
