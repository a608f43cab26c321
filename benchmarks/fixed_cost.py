"""Where does the time of one target forward go when nothing is copied? The fixed cost b_k of the paper's cost model.

A random Qwen3-MoE of 48 layers, 128 experts, top-8 and hidden 256 runs forwards of 1, 4 and 8 rows with all its
experts in slots: once through the experts hook, once as the library runs it, in turns. Then one forward is taken apart.

    python -m benchmarks.fixed_cost [--rounds N] [--layers N]
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch

from benchmarks.random_moe import MIDDLE, random_experts, random_model
from specfit.engine.link import InstantLink
from specfit.engine.offload import IMPLEMENTATION, Offload
from specfit.engine.target import OffloadedTarget
from specfit.machine import describe_machine
from specfit.tree import DraftPool

PREFIX = 64  # tokens before the tree
ROWS = (1, 4, 8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--layers", type=int, default=MIDDLE["num_hidden_layers"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    machine = describe_machine()
    print(f"{machine['processor']}, {machine['cores']} cores, 1 thread, torch {machine['versions']['torch']}")
    target = middle_target(options.layers)
    for rows in ROWS:
        compare(target, rows, options.rounds)
    for rows in ROWS:
        take_apart(target, rows, options.rounds)


def middle_target(layers: int) -> OffloadedTarget:
    """All experts resident, expert e in slot e, so that the library's own kernel can run on the slots too."""
    device = torch.device("cpu")
    model = random_model({**MIDDLE, "num_hidden_layers": layers}, dtype=torch.float32, device=device)
    host = random_experts(model, dtype=torch.float32, pin=False)
    offload = Offload(
        model,
        host,
        slots=len(host[0]),
        link=InstantLink(),
        cleared=False,
        overlap=False,
        kernel="host_grouped",
        device=device,
    )
    with torch.inference_mode():
        for layer in offload.layers:
            every = list(range(len(host[0])))
            layer.cache.serve(every)
            layer.cache.slot_of.update({expert: expert for expert in every})
            for expert, slot in layer.cache.slot_of.items():
                layer._slot_rows[slot].copy_(layer._rows[expert])
    target = OffloadedTarget(model, offload, aux_layer_ids=(), device=device)
    target.prefill(list(range(PREFIX)))
    return target


def tree(rows: int) -> tuple[DraftPool, tuple[int, ...]]:
    """A chain of rows - 1 nodes."""
    nodes = rows - 1
    pool = DraftPool(tuple(range(100, 100 + nodes)), tuple(range(-1, nodes - 1)), tuple(0.5**i for i in range(nodes)))
    return pool, tuple(range(nodes))


def forward(target: OffloadedTarget, rows: int) -> float:
    pool, nodes = tree(rows)
    start = perf_counter()
    target.verify(7, pool, nodes)
    spent = 1e3 * (perf_counter() - start)
    target.rewind()
    return spent


def compare(target: OffloadedTarget, rows: int, rounds: int) -> None:
    """The forward through the hook over the library's own, on the same weights, in turns."""
    times: dict[str, list[float]] = {IMPLEMENTATION: [], "grouped_mm": []}
    for round_ in range(rounds + 2):
        for name, spent in times.items():
            target.model.set_experts_implementation(name)
            took = forward(target, rows)
            if round_ >= 2:
                spent.append(took)
    target.model.set_experts_implementation(IMPLEMENTATION)
    ours, theirs = (median(spent) for spent in times.values())
    print(f"{rows} rows: hook {ours:.1f} ms, library {theirs:.1f} ms, ratio {ours / theirs:.2f}")


def take_apart(target: OffloadedTarget, rows: int, rounds: int) -> None:
    """Time of every part of a forward through the hook; what is left is the model's own Python and norms."""
    spent: dict[str, float] = defaultdict(float)
    undo: list[Callable[[], None]] = []

    def watch(owner: object, method: str, part: str) -> None:
        function, own = getattr(owner, method), method in vars(owner)

        def timed(*args, **kwargs):
            start = perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                spent[part] += 1e3 * (perf_counter() - start)

        object.__setattr__(owner, method, timed)
        undo.append(lambda: object.__setattr__(owner, method, function) if own else object.__delattr__(owner, method))

    for block in target.model.base_model.layers:
        watch(block.self_attn, "forward", "attention")
        watch(block.mlp.gate, "forward", "router")
        watch(block.mlp, "forward", "moe block")
    for layer in target.offload.layers:
        watch(layer, "_pass", "hook with kernel")
        watch(layer, "_kernel", "experts kernel")
        watch(layer.cache, "serve", "cache")
    whole = sum(forward(target, rows) for _ in range(rounds))
    for restore in undo:
        restore()
    parts = {
        "attention": spent["attention"],
        "router": spent["router"],
        "experts kernel": spent["experts kernel"],
        "cache": spent["cache"],
        "remap": spent["hook with kernel"] - spent["experts kernel"] - spent["cache"],
        "dispatch": spent["moe block"] - spent["router"] - spent["hook with kernel"],
        "rest (norms, residuals, head, Python)": whole - spent["moe block"] - spent["attention"],
    }
    print(f"\n{rows} rows, {whole / rounds:.1f} ms a forward (parts are timed, so a little slower):")
    for part, ms in sorted(parts.items(), key=lambda item: -item[1]):
        print(f"  {part:40s} {ms / rounds:6.2f} ms {ms / whole:6.1%}")


if __name__ == "__main__":
    main()
