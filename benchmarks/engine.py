"""Is the engine fast enough to matter? Three questions, answered as ratios of times taken in one run.

(a) Autoregressive decoding through our engine with all experts resident, against the library's own `generate`.
(b) What share of a SpecFit cycle is spent outside the target's forward, the drafter and the link: the loop, the
    expert cache, the routes of the record and the commit; the selection apart.
(c) What the experts hook costs a forward of 1, 4 and 8 tokens, against the same model with its own experts.

    python benchmarks/engine.py [--prompts N]

Every pair is interleaved and medians are compared, so a slow moment of the machine hits both sides.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch
from transformers import AutoModelForCausalLM, DynamicCache

import specfit
from specfit.embedded import target_folder
from specfit.engine.engine import Engine
from specfit.machine import describe_machine
from specfit.runs import prompts_of

LINK_MS, SLOTS = 0.8, 24


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=4)
    count = parser.parse_args().prompts
    torch.set_num_threads(1)
    library = AutoModelForCausalLM.from_pretrained(target_folder(), dtype=torch.float32).eval()
    machine = describe_machine()
    print(f"{machine['processor']}, {machine['cores']} cores, 1 thread, torch {machine['versions']['torch']}\n")
    with specfit.load_engine("embedded") as resident:
        prompts = [prompt.ids for prompt in prompts_of(resident, specfit.embedded_workload("problems", count=count))]
        autoregressive(library, resident, prompts)
        hook(library, resident, prompts[0])
        atlas = specfit.record_atlas(resident, prompts, max_new_tokens=200)
    for cleared in (False, True):
        with specfit.load_engine("embedded", slots_per_layer=SLOTS, cleared=cleared, link=LINK_MS) as engine:
            outside(engine, prompts, atlas)


def autoregressive(library: torch.nn.Module, engine: Engine, prompts: list[tuple[int, ...]]) -> None:
    """(a) decode tokens per second, ours over the library's."""
    ours, theirs = [], []
    for prompt in [prompts[0], *prompts]:  # the first pass warms both up and fills the slots
        start = perf_counter()
        decoding = engine.decode(prompt, method=specfit.AR, max_new_tokens=200)
        for _ in decoding:
            pass
        ours.append(len(decoding.output) / (perf_counter() - start))
        start = perf_counter()
        text = library.generate(torch.tensor([prompt]), max_new_tokens=200, do_sample=False)
        theirs.append((text.shape[1] - len(prompt)) / (perf_counter() - start))
        assert text[0, len(prompt) :].tolist() == decoding.output, "the engine's text is not the library's"
    ratio = median(a / b for a, b in zip(ours[1:], theirs[1:], strict=True))
    print(
        f"(a) AR, all experts resident: {ratio:.2f} x the library's generate "
        f"({median(ours):.0f} against {median(theirs):.0f} tokens/s)"
    )


def outside(engine: Engine, prompts: list[tuple[int, ...]], atlas: specfit.Atlas) -> None:
    """(b) share of a cycle outside the target's forward (with the link) and the drafter, selection apart."""
    spent = {"inside": 0.0}
    engine.target.model.forward = _timed(engine.target.model.forward, spent)
    cost = specfit.CostModel.affine(8.0, 0.2, expert_ms=LINK_MS if engine.settings["cleared"] else 0.15)
    whole = selecting = inside = cycles = 0.0
    for prompt in prompts:
        decoding = engine.decode(prompt, method=specfit.SPECFIT, cost=cost, routes=atlas, max_new_tokens=200)
        decoding.prefill()
        before = spent["inside"]
        start = perf_counter()
        for cycle in decoding:
            selecting += cycle.times.select_ms / 1e3
            inside += cycle.times.draft_ms / 1e3
            cycles += 1
        whole += perf_counter() - start
        inside += spent["inside"] - before
    rest = whole - selecting - inside
    cache = "cleared" if engine.settings["cleared"] else f"{SLOTS} slots"
    print(
        f"(b) SpecFit cycle, {cache}, emulated link {LINK_MS} ms: {rest / (whole - selecting):.1%} outside forward, "
        f"drafter and link ({1e3 * whole / cycles:.1f} ms a cycle, of which {1e3 * selecting / cycles:.2f} selecting)"
    )


def _timed(function: Callable, spent: dict[str, float]) -> Callable:
    def timed(*args, **kwargs):
        start = perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            spent["inside"] += perf_counter() - start

    return timed


@torch.inference_mode()
def hook(library: torch.nn.Module, engine: Engine, prompt: tuple[int, ...]) -> None:
    """(c) a forward through the hook over the same forward of the library model."""
    for rows in (1, 4, 8):
        times: dict[str, list[float]] = {"ours": [], "theirs": []}
        tokens = torch.tensor([prompt[-rows:]])
        caches = {}
        for name, model in (("ours", engine.target.model), ("theirs", library)):
            caches[name] = DynamicCache(config=library.config)
            model(torch.tensor([prompt]), past_key_values=caches[name], use_cache=True)
        for _ in range(60):
            for name, model in (("ours", engine.target.model), ("theirs", library)):
                start = perf_counter()
                model(tokens, past_key_values=caches[name], use_cache=True)
                times[name].append(perf_counter() - start)
                caches[name].crop(-rows)
        ours, theirs = median(times["ours"]), median(times["theirs"])
        print(
            f"(c) forward of {rows} token{'s' if rows > 1 else ''}: "
            f"hook {ours / theirs:.2f} x the library's ({1e3 * ours:.2f} against {1e3 * theirs:.2f} ms)"
        )


if __name__ == "__main__":
    main()
