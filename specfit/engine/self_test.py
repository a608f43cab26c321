"""The start-up self-test: a tree forward must agree with running each of its paths as a prompt of its own.

Masks, positions and cache compaction are where attention implementations differ silently, so every engine proves the
one it uses before it decodes anything.
"""

from __future__ import annotations

import torch

from specfit.engine.layer_kinds import layer_kinds
from specfit.engine.target import OffloadedTarget
from specfit.tree import EMPTY_POOL, DraftPool

TREE = (-1, -1, 0, 0, 1, 2, 2)  # parents of the tree that is tried: two branches, depth three
LONGEST = 256  # tokens of the prompt at most
TOLERANCE = {torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 1e-1}  # of the largest logit


def tree_self_test(target: OffloadedTarget) -> float:
    """Largest difference of logits, relative to the largest logit; ValueError if it is more than rounding.

    Leaves the target ready for its first prompt and the expert caches empty.
    """
    vocabulary = target.config.vocab_size
    window = layer_kinds(target.config).window or 0
    length = 9 if window > LONGEST else max(9, window + 1)  # past the window, where that takes no time
    prompt = [(7 * i + 1) % vocabulary for i in range(length)]
    pool = DraftPool(tuple((11 * i + 3) % vocabulary for i in range(len(TREE))), TREE, (0.1,) * len(TREE))
    root, nodes = 5 % vocabulary, range(len(pool))
    worst = 0.0
    for node in (3, 4, 6):
        path = pool.path(node)
        rows = [0, *(1 + node for node in path)]
        target.prefill(prompt)
        target.commit(())
        tree = target.tree_logits(root, pool, nodes)[rows]
        target.commit(rows)  # and what is kept must serve the next forward
        found = torch.cat((tree, target.tree_logits(root, EMPTY_POOL, ()))).float()
        text = [root, *(pool.tokens[node] for node in path), root]
        alone = [target.prompt_logits([*prompt, *text[: end + 1]]).float() for end in range(len(text))]
        worst = max(worst, float((found - torch.stack(alone)).abs().max() / found.abs().max()))
    target.offload.clear()
    if not worst <= TOLERANCE[target.model.dtype]:  # a NaN fails too
        raise ValueError(
            f"tree forwards of {target.config.model_type} with {target.config._attn_implementation} attention differ "
            f"from plain ones by {worst:.1e} of the largest logit; load it with attention='eager' or 'sdpa'"
        )
    return worst
