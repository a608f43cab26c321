"""How far do a tree's rows move the logits in bfloat16? It tells what `specfit.engine.near_ties` may call a near-tie.

Every logit among the library's four greatest is compared with the same one of our EAGLE3 decoding, at every position up
to the first difference of the texts, in units in the last place (ulps) of the greatest; and the first differences.

    python benchmarks/near_ties.py [--prompts N]
"""

from __future__ import annotations

import argparse
from statistics import quantiles

import torch

import specfit
from specfit.engine.near_ties import first_difference, library_reference, ulp

TOKENS = 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=8, help="of each of the two workloads (8)")
    count = parser.parse_args().prompts
    torch.set_num_threads(1)
    with specfit.load_engine("embedded", dtype="bfloat16", device="cpu") as engine:
        library, moved, parted = library_reference(engine), [], []
        workloads = [specfit.embedded_workload(kind, count=count) for kind in ("problems", "news")]
        prompts = [engine.encode(question.turns[0]) for workload in workloads for question in workload.questions]
        for prompt in prompts:
            expected = library(prompt, TOKENS)
            decoding = engine.decode(prompt, method=specfit.EAGLE3, max_new_tokens=TOKENS)
            decoding.prefill()
            ours = [engine.target.last_logits[-1]]
            for cycle in decoding:
                rows = [0, *(1 + cycle.selection.nodes.index(node) for node in cycle.accepted)]
                ours += [engine.target.last_logits[row] for row in rows[: cycle.committed]]
            difference = first_difference(expected, decoding.output)
            agree = len(decoding.output) if difference is None else difference.position
            parted += [] if difference is None else [difference]
            for one, other in zip(expected.logits[:agree], ours, strict=False):
                best = one.topk(4)
                step = ulp(float(best.values[0]), torch.bfloat16)
                moved.append(float((other - one)[best.indices].abs().max()) / step)
    cuts = quantiles(moved, n=100)
    print(f"{len(moved)} positions of {len(prompts)} prompts: the four greatest logits move by at most")
    print(
        f"{cuts[49]:.2f} ulps at half of them, {cuts[94]:.2f} at 95 %, {cuts[98]:.2f} at 99 %, {max(moved):.1f} at all"
    )
    print(f"first differences: {len(parted)}, the token taken {sorted(one.ulps for one in parted)} ulps below")


if __name__ == "__main__":
    main()
