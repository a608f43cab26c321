"""Held-out figures of an embedded pair: `python -m specfit.embedded.evaluate [folder] [--split test] [--rows 32]`.

For each kind it prints: whether the text is any good (right numbers; repeated facts and foreign values in summaries),
tokens committed per cycle by EAGLE-3's tree of 7 nodes, LRU hit rates of the tree forwards (prefills included, slots
carried over from prompt to prompt), and how many experts a forward of so many rows needs.
The target is the plain Transformers model in float32; nothing of the engine but the drafter's head is used.
"""

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, Qwen3MoeForCausalLM

from specfit.embedded import corpus, news
from specfit.embedded.drafter_files import load_drafter
from specfit.embedded.drafting import TREE, KnownText, Pool
from specfit.engine.eagle3 import Eagle3Head

SLOTS = (24, 12, 6)
VALUES = {*news.FIRST, *news.LAST, *news.TOWNS, *news.DAYS}


@dataclass
class Figures:
    """Sums over the prompts of one kind; the properties are the printed figures."""

    kind: str
    answers: list[str] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)  # tokens, end token included
    good: int = 0  # problems: right numbers; news: summaries that repeat no fact
    values: int = 0  # names and numbers in summaries
    known_values: int = 0  # of them, those that stand in the report
    cycles: int = 0
    committed: int = 0
    demand: int = 0
    hits: dict[int, int] = field(default_factory=lambda: dict.fromkeys(SLOTS, 0))  # slots -> hits
    unions: dict[int, list[float]] = field(default_factory=lambda: {1: [], 2: [], 4: [], 8: [], 19: []})
    shared: dict[str, list[float]] = field(default_factory=lambda: {"siblings": [], "parent": [], "first and last": []})

    def table(self) -> str:
        """All figures as lines of text."""
        count = len(self.answers)
        good = "right numbers" if self.kind == "problems" else "no fact repeated"
        lines = [
            f"{self.kind}: {count} prompts",
            f"  answer tokens            {sum(self.lengths) / count:.0f} ({min(self.lengths)}-{max(self.lengths)})",
            f"  {good:<24} {self.good / count:.0%}",
        ]
        if self.values:
            lines.append(f"  values from the report   {self.known_values / self.values:.1%}")
        lines.append(f"  committed per cycle      {self.committed / self.cycles:.2f} ({self.cycles} cycles)")
        rates = " / ".join(f"{self.hits[slots] / self.demand:.2f}" for slots in SLOTS)
        lines.append(f"  hits at 24 / 12 / 6      {rates}")
        unions = " / ".join(f"{_mean(sizes):.1f}" for sizes in self.unions.values())
        lines.append(f"  experts of 1/2/4/8/19    {unions} rows, a layer")
        shared = ", ".join(f"{name} {_mean(counts):.2f}" for name, counts in self.shared.items())
        lines.append(f"  experts shared, of 4     {shared}")
        return "\n".join(lines)


class RouteRecorder:
    """Collects the chosen experts of every router: after a forward, (layers, rows, top_k)."""

    def __init__(self, target: Qwen3MoeForCausalLM):
        self.rows: list[Tensor] = []
        self.used = torch.zeros(len(target.model.layers), target.config.num_experts, dtype=torch.bool)
        for layer in target.model.layers:
            layer.mlp.gate.register_forward_hook(lambda module, args, out: self.rows.append(out[2]))

    def take(self) -> Tensor:
        """The routes since the last call; the forward must have been of one document."""
        routes, self.rows = torch.stack(self.rows), []
        self.used.scatter_(1, routes.flatten(1), True)
        return routes


class LruSlots:
    """Which experts of each layer a cache of `slots` holds, least recent first."""

    def __init__(self, slots: int, layers: int):
        self.slots, self.held = slots, [[] for _ in range(layers)]

    def serve(self, routes: Tensor) -> int:
        """Hits of one forward, (layers, rows, top_k); recency follows the last row that uses an expert."""
        hits = 0
        for layer, uses in enumerate(routes.flatten(1).tolist()):
            wanted = list(dict.fromkeys(reversed(uses)))[::-1]
            hits += len(set(wanted).intersection(self.held[layer]))
            self.held[layer] = [e for e in self.held[layer] if e not in set(wanted)] + wanted
            self.held[layer] = self.held[layer][-self.slots :]
        return hits


def measure(
    target: Qwen3MoeForCausalLM,
    head: Eagle3Head,
    tokenizer: PreTrainedTokenizerFast,
    rows: tuple[corpus.Row, ...],
    *,
    max_new_tokens: int = 200,
) -> tuple[Figures, Tensor]:
    """Figures of one kind of prompts, and which (layer, expert) pairs were used at all."""
    figures = Figures(rows[0].kind)
    recorder = RouteRecorder(target)
    layers = len(target.model.layers)
    caches = {slots: LruSlots(slots, layers) for slots in SLOTS}
    for row in rows:
        prompt = chat_ids(tokenizer, row.prompt)
        [ids] = greedy(target, [prompt], max_new_tokens=max_new_tokens)
        recorder.rows.clear()
        _judge(figures, row, tokenizer.decode(ids[len(prompt) :], skip_special_tokens=True))
        figures.lengths.append(len(ids) - len(prompt))
        text = KnownText(target, head, ids)
        routes = recorder.take()[:, : len(prompt)]
        _count_hits(figures, caches, routes)
        committed = len(prompt)
        while committed < len(ids) - 1:
            pool = text.grow(committed)
            nodes = pool.top(TREE)
            text.verify(pool, committed)
            routes = recorder.take()  # (layers, 19, top_k), root first
            _count_hits(figures, caches, routes[:, [0, *(node + 1 for node in nodes)]])
            _count_unions(figures, pool, nodes, routes)
            accepted = text.accepted(pool, nodes, committed)
            figures.cycles += 1
            figures.committed += 1 + accepted
            committed += 1 + accepted
    return figures, recorder.used


def chat_ids(tokenizer: PreTrainedTokenizerFast, prompt: str) -> list[int]:
    """A user's prompt in the chat format, ready for the answer."""
    return tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], add_generation_prompt=True, return_dict=False
    )


@torch.no_grad()
def greedy(target: Qwen3MoeForCausalLM, prompts: list[list[int]], *, max_new_tokens: int) -> list[list[int]]:
    """Prompts with their greedy answers, up to and with the end token; one batch, padded on the left."""
    length, pad, end = max(map(len, prompts)), target.config.pad_token_id, target.config.eos_token_id
    padding = [length - len(prompt) for prompt in prompts]
    ids = torch.tensor([[pad] * more + prompt for more, prompt in zip(padding, prompts, strict=True)])
    out = target.generate(
        ids, attention_mask=(ids != pad).long(), do_sample=False, max_new_tokens=max_new_tokens, pad_token_id=pad
    )
    texts = [text[more:] for more, text in zip(padding, out.tolist(), strict=True)]
    return [text[: text.index(end) + 1] if end in text else text for text in texts]


def repeated_facts(summary: str) -> int:
    """How often a summary states a fact it has already stated."""
    facts = [fact for sentence in re.split(r"(?<=\.)\s", summary) if (fact := news.stated_fact(sentence))]
    return len(facts) - len(set(facts))


def _judge(figures: Figures, row: corpus.Row, answer: str) -> None:
    figures.answers.append(answer)
    if row.kind == "problems":
        number = re.search(r"#### (\d+)", answer)
        figures.good += number is not None and int(number.group(1)) == row.number
        return
    figures.good += repeated_facts(answer) == 0
    said = [word for word in re.findall(r"\w+", answer) if word.isdigit() or word in VALUES]
    known = set(re.findall(r"\w+", row.prompt))
    figures.values += len(said)
    figures.known_values += sum(word in known for word in said)


def _count_hits(figures: Figures, caches: dict[int, LruSlots], routes: Tensor) -> None:
    figures.demand += sum(len(set(layer)) for layer in routes.flatten(1).tolist())
    for slots, cache in caches.items():
        figures.hits[slots] += cache.serve(routes)


def _count_unions(figures: Figures, pool: Pool, nodes: list[int], routes: Tensor) -> None:
    per_row = [[set(row) for row in layer] for layer in routes.tolist()]  # layer -> row -> experts
    in_order = [0, *(node + 1 for node in sorted(nodes, key=lambda node: -pool.log_probs[node]))]
    for rows, sizes in figures.unions.items():
        kept = range(19) if rows == 19 else in_order[:rows]
        sizes.append(_mean([len(set.union(*(layer[row] for row in kept))) for layer in per_row]))
    for layer in per_row:
        figures.shared["siblings"].append(len(layer[1] & layer[2]))
        figures.shared["parent"].append(len(layer[0] & layer[1]))
        figures.shared["first and last"].append(len(layer[1] & layer[-1]))


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)


def main(
    folder: Path,
    *,
    split: str = "test",
    rows: int = 32,
    show: int = 0,
    max_new_tokens: int = 200,
    log: Callable[[str], None] = print,
) -> dict[str, Figures]:
    """Measure the pair in `folder` (its `target` and `drafter` folders) and log a table; returns figures by kind."""
    target = AutoModelForCausalLM.from_pretrained(folder / "target", dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / "target")
    head = load_drafter(folder / "drafter").eval()
    found: dict[str, Figures] = {}
    used = torch.zeros(target.config.num_hidden_layers, target.config.num_experts, dtype=torch.bool)
    with torch.no_grad():
        for kind in ("problems", "news"):
            questions = getattr(corpus, kind)(split, rows)
            found[kind], kind_used = measure(target, head, tokenizer, questions, max_new_tokens=max_new_tokens)
            used = used | kind_used
            log(found[kind].table())
            for row, answer in zip(questions[:show], found[kind].answers):
                log(f"--- {row.prompt}\n>>> {answer}")
    log(f"experts used at all: {int(used.sum())} of {used.numel()}")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path(__file__).parent)
    parser.add_argument("--split", default="test", choices=("tune", "test"))
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--show", type=int, default=0, help="print this many answers of each kind")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    main(arguments.folder, split=arguments.split, rows=arguments.rows, show=arguments.show)
