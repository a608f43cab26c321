"""The start-up self-test: a tree forward must agree with running each of its paths on its own.

Masks, positions and cache compaction are where attention implementations differ silently, so every engine proves the
one it uses before it decodes anything.
"""

from __future__ import annotations

from itertools import pairwise

import torch

from specfit.engine.target import OffloadedTarget
from specfit.tree import DraftPool

TREE = (-1, -1, 0, 0, 1, 2, 2)  # parents of the tree that is tried: two branches, depth three
TOLERANCE = {torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 1e-1}  # of the largest logit


def tree_self_test(target: OffloadedTarget) -> float:
    """Largest difference of logits, relative to the largest logit; ValueError if it is more than rounding.

    Leaves the target ready for its first prompt and the expert caches empty.
    """
    vocabulary = target.config.vocab_size
    prompt = [(7 * i + 1) % vocabulary for i in range(9)]
    pool = DraftPool(tuple((11 * i + 3) % vocabulary for i in range(len(TREE))), TREE, (0.1,) * len(TREE))
    root, nodes = 5 % vocabulary, range(len(pool))
    target.prefill(prompt)
    target.commit(())
    tree = target.tree_logits(root, pool, nodes).float()
    worst = 0.0
    for node in (3, 4, 6):
        path = pool.path(node)
        target.prefill(prompt)
        target.commit(())
        alone = []
        for parent, _ in pairwise((-1, *path, None)):
            token = root if parent == -1 else pool.tokens[parent]
            alone.append(target.tree_logits(token, pool, ())[0].float())
            target.commit((0,))
        rows = tree[[0, *(1 + node for node in path)]]
        worst = max(worst, float((rows - torch.stack(alone)).abs().max() / rows.abs().max()))
    target.offload.clear()
    if not worst <= TOLERANCE[target.model.dtype]:  # a NaN fails too
        raise ValueError(
            f"tree forwards of {target.config.model_type} with {target.config._attn_implementation} attention differ "
            f"from sequential ones by {worst:.1e} of the largest logit; load it with attention='eager' or 'sdpa'"
        )
    return worst
