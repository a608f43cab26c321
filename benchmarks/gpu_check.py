"""What a machine gives an offloaded Qwen3-30B-A3B: one script, no checkpoint, no network, minutes.

A model of the true shape with random weights, its experts in pinned host memory, is built layer by layer until memory
or time says stop. Then: is decoding lossless, does every slot read what was copied into it, how fast are the link, a
missed expert, a forward, a drafted level, how much do copies and computing overlap, and which b_k and beta does the
paper's protocol fit. Beside each figure stand the paper's, for its A100, and what the hardware could give.

    benchmarks/gpu_check.sh                        on a machine with a GPU, torch and transformers
    benchmarks/gpu_check.sh --cpu                  the same steps, small, with an emulated link

Figures of a smaller model than 48 layers are scaled where that is meant, and say so.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch
from torch import nn

from benchmarks.random_moe import MIDDLE, QWEN3_30B_A3B, random_experts, random_model
from specfit.calibrate import calibrate
from specfit.engine.copy_order import OrderTrace, check_order
from specfit.engine.drafter import DraftConfig, Eagle3Drafter
from specfit.engine.eagle3 import Eagle3Config, Eagle3Head
from specfit.engine.engine import Engine
from specfit.engine.link import CudaLink, EmulatedLink, Link
from specfit.engine.offload import IMPLEMENTATION, Offload
from specfit.engine.route_sources import TargetRoutes
from specfit.engine.self_test import tree_self_test
from specfit.engine.target import OffloadedTarget
from specfit.machine import describe_machine
from specfit.methods import AR, EAGLE3
from specfit.paper import A100, COEFFICIENTS
from specfit.tree import DraftPool

SLOTS = 48  # a layer, the paper's
RESERVE_GIB = 8  # host memory left to the system and to this process


class Check:
    """The machine's form of the check: true shape on CUDA, a small one on a CPU."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.cuda = torch.cuda.is_available() and not options.cpu
        self.device = torch.device("cuda" if self.cuda else "cpu")
        self.dtype = torch.bfloat16 if self.cuda else torch.float32
        self.shape = dict(QWEN3_30B_A3B if self.cuda else MIDDLE)
        width = 3 * self.shape["hidden_size"] * self.shape["moe_intermediate_size"]
        self.expert_bytes = width * self.dtype.itemsize
        layers = options.layers or (self.shape["num_hidden_layers"] if self.cuda else 4)
        per_layer = self.shape["num_experts"] * self.expert_bytes
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") - RESERVE_GIB * 2**30 * self.cuda
        self.layers = max(1, min(layers, int(free // per_layer)))
        self.slots = min(options.slots, self.shape["num_experts"])
        self.seconds = options.seconds
        self.began = perf_counter()

    def link(self) -> Link:
        return CudaLink(self.device) if self.cuda else EmulatedLink(0.05)

    def synchronize(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def time(self, run: Callable[[], object], *, rounds: int = 7) -> float:
        """Median milliseconds; the first round warms up and is not counted."""
        spent = []
        for _ in range(rounds + 1):
            self.synchronize()
            start = perf_counter()
            run()
            self.synchronize()
            spent.append(1e3 * (perf_counter() - start))
        return median(spent[1:])

    def late(self) -> bool:
        return perf_counter() - self.began > self.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cpu", action="store_true", help="the small form, on a CPU with an emulated link")
    parser.add_argument("--layers", type=int, help="fewer than the model's 48")
    parser.add_argument("--slots", type=int, default=SLOTS, help=f"expert slots per layer ({SLOTS})")
    parser.add_argument("--seconds", type=float, default=420, help="start no further part after so long (420)")
    check = Check(parser.parse_args())
    torch.set_num_threads(1 if not check.cuda else torch.get_num_threads())
    machine = describe_machine()
    where = machine["gpu"] if check.cuda else f"{machine['processor']} (CPU form, emulated link: no GPU figure below)"
    versions = {name: found for name, found in machine["versions"].items() if found}
    print(f"{where}\n{machine['cores']} cores, {machine['memory_gib']} GiB, {machine['system']}, {versions}")
    for part in (lossless_and_ordered, link_speed, whole_model):
        if check.late():
            print(f"\nSKIPPED {part.__name__}: {check.seconds:.0f} s are over")
            continue
        part(check)
    print(f"\n{perf_counter() - check.began:.0f} s in all")


def build(check: Check, *, layers: int, slots: int, cleared: bool = False, drafter: bool = False) -> Engine:
    """An engine over random weights, every expert in host memory."""
    model = random_model({**check.shape, "num_hidden_layers": layers}, dtype=check.dtype, device=check.device)
    host = random_experts(model, dtype=check.dtype, pin=check.cuda)
    offload = Offload(
        model,
        host,
        slots=slots,
        link=check.link(),
        cleared=cleared,
        overlap=check.cuda,
        kernel="host_grouped",
        device=check.device,
    )
    session = random_drafter(check, layers) if drafter else None
    aux = session.head.config.aux_layer_ids if session is not None else ()
    target = OffloadedTarget(model, offload, aux_layer_ids=aux, device=check.device)
    settings = {"target": f"random, {layers} layers", "slots_per_layer": slots, "cleared": cleared}
    settings |= {"drafter": "random", "draft": {}, "dtype": str(check.dtype), "link": offload.link.describe()}
    return Engine(target, session, None, eos=(), settings=settings)


def random_drafter(check: Check, layers: int) -> Eagle3Drafter:
    """A head of the published drafter's shape: one decoder layer, three tapped layers, 32,000 draft tokens."""
    shape = check.shape
    config = Eagle3Config(
        hidden_size=shape["hidden_size"],
        intermediate_size=6 * shape["hidden_size"],
        num_layers=1,
        num_heads=shape["num_attention_heads"],
        num_kv_heads=shape["num_key_value_heads"],
        head_dim=shape["head_dim"],
        rms_norm_eps=1e-6,
        hidden_act="silu",
        vocab_size=shape["vocab_size"],
        draft_vocab_size=min(32000, shape["vocab_size"]),
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        max_position_embeddings=4096,
        aux_layer_ids=(1, layers // 2, layers - 1),
        target_hidden_size=shape["hidden_size"],
    )
    torch.manual_seed(1)
    with torch.device(check.device):
        head = Eagle3Head(config).to(check.dtype).eval().requires_grad_(False)
    if check.cuda:
        head.rope.promise(4096)
    return Eagle3Drafter(head.pack(), target_ids=None, config=DraftConfig(), eos=(), device=check.device)


# -- is it right -----------------------------------------------------------------------------------------------------


def lossless_and_ordered(check: Check) -> None:
    """Four layers: trees against plain forwards, greedy text against the library's model, and the order proof."""
    print("\n== lossless, and in order (4 layers)")
    experts, prompt, new = check.shape["num_experts"], list(range(3, 40)), 24
    with build(check, layers=4, slots=experts) as engine:
        print(f"tree self-test: largest difference {tree_self_test(engine.target):.1e} of the largest logit")
        for layer in engine.offload.layers:  # expert e in slot e: the library's own kernel can run on the slots
            layer.cache.serve(list(range(experts)))
            layer.cache.slot_of.update({expert: expert for expert in range(experts)})
            for expert in range(experts):
                layer._slot_rows[expert].copy_(layer._rows[expert])
        engine.target.model.set_experts_implementation("grouped_mm")
        text, gaps = greedy(engine.target.model, prompt, new, check.device)
        engine.target.model.set_experts_implementation(IMPLEMENTATION)
    for slots, cleared in ((experts, False), (16, False), (16, True), (3, False)):
        with build(check, layers=4, slots=slots, cleared=cleared, drafter=True) as engine:
            trace = OrderTrace(engine.offload)
            found = {}
            for method in (AR, EAGLE3):
                decoding = engine.decode(prompt, method=method, max_new_tokens=new)
                for _ in decoding:
                    pass
                found[method.name] = decoding.output
            reads = check_order(trace.operations)
        cache = "cleared" if cleared else "kept"
        says = ", ".join(f"{name} {agreement(output, text, gaps)}" for name, output in found.items())
        print(f"{slots} slots, {cache}: {says}; {reads} reads of slots, each after its copy and before the next")


def greedy(model: nn.Module, prompt: list[int], new: int, device: torch.device) -> tuple[list[int], list[float]]:
    """The resident library model's greedy text by whole forwards, with the gap of its two best logits at each token."""
    text, gaps = list(prompt), []
    with torch.inference_mode():
        for _ in range(new):
            best = model(torch.tensor([text], device=device), use_cache=False).logits[0, -1].float().topk(2)
            gaps.append(float(best.values[0] - best.values[1]))
            text.append(int(best.indices[0]))
    return text[len(prompt) :], gaps


def agreement(output: list[int], text: list[int], gaps: list[float]) -> str:
    first = next((at for at, (a, b) in enumerate(zip(output, text, strict=True)) if a != b), None)
    if first is None:
        return f"equal to the library's {len(text)} tokens"
    return f"DIFFERS at token {first}, where the library's two best logits are {gaps[first]:.4f} apart"


# -- how fast --------------------------------------------------------------------------------------------------------


def link_speed(check: Check) -> None:
    """Pinned copies of one expert, as the engine issues them."""
    print("\n== host link")
    count = 64
    width = check.expert_bytes // check.dtype.itemsize
    source = torch.zeros(count, width, dtype=check.dtype, pin_memory=check.cuda)
    target = torch.zeros(8, width, dtype=check.dtype, device=check.device)
    link = check.link()
    pairs = [(source[i], target[i % 8]) for i in range(count)]

    def copies() -> None:
        link.fetch(pairs)
        link.wait()

    ms = check.time(copies) / count
    paper = next(c for c in COEFFICIENTS if c.machine == A100 and c.cache == "cleared")
    print(f"one expert is {check.expert_bytes:,} bytes")
    show("ms per expert copied", ms, f"{paper.expert_ms:.3f} (its beta, cleared)", "0.36 at 26 GB/s, 0.17 at 55 GB/s")
    show("GB/s", check.expert_bytes / ms / 1e6, "23.1", "26 for PCIe 4 x16, 55 for PCIe 5 x16")


def whole_model(check: Check) -> None:
    print(f"\n== the model: {check.layers} of {check.shape['num_hidden_layers']} layers, {check.slots} slots a layer")
    start = perf_counter()
    engine = build(check, layers=check.layers, slots=check.slots, drafter=True)
    size = check.layers * check.shape["num_experts"] * check.expert_bytes / 2**30
    print(f"built in {perf_counter() - start:.0f} s: {size:.1f} GiB of experts in {'pinned ' * check.cuda}host memory")
    with engine:
        engine.target.prefill(list(range(64)))
        engine.target.commit(())
        forwards(check, engine)
        drafting(check, engine)
        if not check.late():
            coefficients(check, engine)


def forwards(check: Check, engine: Engine) -> None:
    """A forward with every expert in a slot, with every expert missed, and the copies alone."""
    print("forward, ms:   all hits | all missed | copies alone | of the copies hidden | ms per miss over its copy")
    target, layers = engine.target, engine.offload.layers
    for rows in (1, 4, 8):
        nodes = rows - 1
        pool = DraftPool(tuple(range(9, 9 + nodes)), tuple(range(-1, nodes - 1)), (0.5,) * nodes)

        def forward(pool: DraftPool = pool, nodes: int = nodes) -> None:
            target.verify(7, pool, range(nodes))
            target.rewind()

        forward()
        wanted = [sorted(set(layer.uses)) for layer in layers]
        fits = max(map(len, wanted)) <= check.slots
        hits = check.time(forward) if fits else float("nan")  # the round before left them all in slots
        if fits and rows == 1:
            waits = host_waits(check, forward)
            print(
                f"  the host waits for the device {waits} times a forward of {len(layers)} layers; once each is needed"
            )

        def missed(forward: Callable[[], None] = forward) -> None:
            engine.offload.clear()
            forward()

        cold = check.time(missed, rounds=3)
        pairs = [
            (layer._rows[e], layer._slot_rows[i % check.slots])
            for layer, es in zip(layers, wanted, strict=True)
            for i, e in enumerate(es)
        ]

        def copies(pairs: list = pairs) -> None:
            engine.offload.link.fetch(pairs)
            engine.offload.link.wait()

        copying = check.time(copies, rounds=3)
        engine.offload.clear()  # the slots now hold other experts than the caches think
        hidden = (hits + copying - cold) / min(hits, copying)
        over = (cold - hits) / len(pairs)
        shown = f"{hits:10.1f} | {cold:10.1f} | {copying:10.1f} | {hidden:7.0%} | {over:.3f}"
        print(f"  {rows} rows: {shown} ({len(pairs)} experts)")
    if check.cuda and check.layers == check.shape["num_hidden_layers"]:
        paper = next(c for c in COEFFICIENTS if c.machine == A100 and c.cache == "cleared")
        print(f"  the paper's A100 spends {paper.intercepts_ms[0]:.0f} ms a cycle besides its experts (b_0, cleared)")


def host_waits(check: Check, forward: Callable[[], None]) -> str:
    """How often the host waited for the device, by torch's own warnings: once a layer is what routing needs."""
    if not check.cuda:
        return "(not counted without CUDA)"
    import warnings

    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        forward()
    torch.cuda.set_sync_debug_mode("default")
    return str(sum("synchroniz" in str(warning.message) for warning in caught))


def drafting(check: Check, engine: Engine) -> None:
    drafter = engine.drafter
    assert drafter is not None
    tokens = list(range(1, 65))
    engine.target.prefill(tokens[:-1])
    drafter.begin()
    drafter.extend(tokens[1:], engine.target.commit(()))
    drafter.catch_up()
    levels = drafter.full_pool().levels
    pool = DraftPool((9, 10, 11), (-1, -1, 1), (0.5, 0.5, 0.3))

    def scattered_commit() -> None:
        engine.target.verify(7, pool, range(3))
        engine.target.commit((0, 2, 3))
        engine.target.rewind()

    print(f"the host waits for the device {host_waits(check, drafter.full_pool)} times in {levels} levels and")
    print(f"{host_waits(check, scattered_commit)} times in a forward whose accepted path is scattered")
    show(
        "ms per drafted level",
        check.time(drafter.full_pool) / levels,
        "not printed",
        "its weights over the memory's speed",
    )


def coefficients(check: Check, engine: Engine) -> None:
    """The paper's protocol: nine states, probe trees of 0 to 7 nodes, each timed twice."""
    prompts = [[(11 * i + seed) % 997 for i in range(48)] for seed in (1, 2, 3)]
    fitted = calibrate(engine, prompts, TargetRoutes(engine), protocol="paper", max_new_tokens=12)
    print(f"paper's protocol, {check.slots} slots:")
    print("\n".join(f"  {line}" for line in str(fitted).splitlines()))
    for cost in (c for c in COEFFICIENTS if c.machine == A100):
        b = " ".join(f"{ms:.0f}" for ms in cost.intercepts_ms)
        print(f"  the paper's A100, {cost.cache}: b_0..b_7 = {b} ms; beta = {cost.expert_ms:.3f} ms per expert")


def show(what: str, value: float, paper: str, limit: str) -> None:
    print(f"{what:26s} {value:9.3f}   paper's A100: {paper}; hardware: {limit}")


if __name__ == "__main__":
    main()
