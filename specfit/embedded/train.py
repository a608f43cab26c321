"""Make the embedded pair again, from nothing but a seed: `python -m specfit.embedded.train OUT`.

corpus -> tokenizer -> target (three phases) -> bfloat16 -> its own answers -> drafter -> figures. Every step count is
fixed and nothing looks at a clock; on one machine, one thread and one library version the same seed gives the same
bytes. It takes roughly half an hour of one CPU core.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from specfit.embedded import evaluate
from specfit.embedded.drafter_files import save_drafter
from specfit.embedded.target_shape import fresh_target, load_target, save_target, target_config
from specfit.embedded.tokenizer import train_tokenizer
from specfit.embedded.train_drafter import DrafterRecipe, fresh_drafter, own_answers, train_drafter
from specfit.embedded.train_target import TargetRecipe, train_target

DRAFTER_ROWS_FROM = 50_000  # training rows the target itself has not seen start here


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that decides the weights, besides the seed."""

    tokenizer_rows: int = 4000  # documents of each kind the pieces are learnt from
    target_shape: dict[str, int] = field(default_factory=dict)  # changes to `target_config`, for tests
    target: TargetRecipe = field(default_factory=TargetRecipe)
    drafter: DrafterRecipe = field(default_factory=DrafterRecipe)
    tested_rows: int = 32  # held-out prompts of each kind in the closing table


def main(out: Path, seed: int = 0, *, recipe: Recipe | None = None, log: Callable[[str], None] = print) -> None:
    """Write `out/target`, `out/drafter` and `out/figures.txt`."""
    recipe = recipe or Recipe()
    torch.set_num_threads(1)
    tokenizer = train_tokenizer(out / "target", rows=recipe.tokenizer_rows)
    target = fresh_target(target_config(**recipe.target_shape), seed)
    train_target(target, tokenizer, recipe.target, seed=seed, log=log)
    save_target(target, out / "target")
    target = load_target(out / "target")  # rounded: the drafter learns from the weights that ship
    answers = {
        kind: own_answers(
            target,
            tokenizer,
            kind,
            getattr(recipe.drafter, kind),
            first=DRAFTER_ROWS_FROM,
            max_new_tokens=recipe.drafter.max_new_tokens,
        )
        for kind in ("problems", "news")
    }
    head = fresh_drafter(target, seed)
    train_drafter(head, target, answers["problems"], answers["news"], recipe.drafter, seed=seed, log=log)
    save_drafter(head, out / "drafter")
    lines: list[str] = []
    evaluate.main(out, rows=recipe.tested_rows, max_new_tokens=recipe.drafter.max_new_tokens, log=lines.append)
    (out / "figures.txt").write_text("\n".join(lines) + "\n")
    log("\n".join(lines))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="folder for the new pair; it may not exist yet")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    main(arguments.out, arguments.seed)
