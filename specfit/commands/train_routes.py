"""`specfit train-routes`: train the route head of a pair, which then stands in for the atlas (`run --routes head`)."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from specfit.commands import options as add_options
from specfit.commands.places import output_file
from specfit.commands.setup import make_engine, need_drafter, set_threads
from specfit.demo import bar
from specfit.runs import prompts_of
from specfit.workloads import Limits, Workload, embedded_workload, spec_bench

COUNT = 30  # prompts of each embedded workload
ROWS_FROM = 60_000  # of the train split: rows that neither target nor drafter has learnt from
NEW_TOKENS = 200


def add(commands: Any) -> None:
    train = commands.add_parser("train-routes", help="train the route head of a pair", allow_abbrev=False)
    train.add_argument(
        "--questions",
        type=Path,
        metavar="FILE",
        help="question file to train with; the embedded pair has prompts of its own",
    )
    train.add_argument("--category", help="of that file, exactly as spelt there")
    train.add_argument(
        "--count", type=add_options.positive, metavar="N", help="the first N (embedded: 30 of each kind)"
    )
    train.add_argument("--max-new-tokens", type=add_options.positive, default=NEW_TOKENS, metavar="N")
    train.add_argument("--raw", action="store_true", help="give questions as plain text, without a chat template")
    add_options.pair(train)
    add_options.room(train)
    add_options.seed(train, "the training")
    train.add_argument(
        "--out",
        type=Path,
        default=Path("route_head.safetensors"),
        metavar="FILE",
        help="a new file (route_head.safetensors)",
    )
    train.set_defaults(command=_train)


def _train(options: argparse.Namespace) -> None:
    workloads = _workloads(options)
    need_drafter(options, "`specfit train-routes`")
    from specfit.engine.route_training import RouteRecipe, train_head  # here: it loads torch

    set_threads(options)
    with output_file(options.out), make_engine(options) as engine:
        prompts = [prompt.ids for workload in workloads for prompt in prompts_of(engine, workload, raw=options.raw)]
        about = {
            "workloads": {workload.name: [question.id for question in workload.questions] for workload in workloads},
            "max_new_tokens": options.max_new_tokens,
        }
        with bar("collect routes", len(prompts)) as step:
            head = train_head(
                engine,
                prompts,
                max_new_tokens=options.max_new_tokens,
                recipe=RouteRecipe(seed=options.seed),
                about=about,
                progress=step,
            )
    head.save(options.out)
    held_out = head.card["held_out_prompts"]
    print(f"share of the true top {head.shape.top_k} that the head predicts, on {held_out} held-out prompts:")
    for kind, shares in head.card["accuracy"].items():
        layers = " ".join(f"{share:.2f}" for share in shares)
        print(f"  {kind:<6} {sum(shares) / len(shares):.3f}   by layer {layers}")
    print(options.out)


def _workloads(options: argparse.Namespace) -> list[Workload]:
    limits = Limits(max_new_tokens=options.max_new_tokens)
    if options.questions is not None:
        found = spec_bench(
            options.questions, category=options.category, limit=options.count, limits=limits, name="file"
        )
        return [found]
    if options.target != "embedded":
        raise ValueError("this target needs --questions FILE, a question file to train with (not the one you report)")
    if options.category is not None:
        raise ValueError("--category chooses from a question file; give --questions FILE with it")
    count = options.count or COUNT
    return [embedded_workload(kind, split="train", count=count, first=ROWS_FROM) for kind in ("problems", "news")]
