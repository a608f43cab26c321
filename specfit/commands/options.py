"""Options that several commands share, and their types."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable
from pathlib import Path

from specfit.runs import RouteChoice

MOST_THREADS = 1024


def questions(parser: argparse.ArgumentParser) -> None:
    """Which prompts are decoded."""
    parser.add_argument(
        "--workload", default="problems", help="problems, news, or a Spec-Bench question file (problems)"
    )
    parser.add_argument("--category", help="of a question file, exactly as spelt there")
    parser.add_argument("--ids", help="question ids, comma separated; or summarization, gsm8k, gsm8k-4090: the paper's")
    parser.add_argument("--count", type=positive, metavar="N", help="the first N questions (embedded: 8; file: all)")
    parser.add_argument("--max-new-tokens", type=positive, metavar="N")
    parser.add_argument("--raw", action="store_true", help="give questions as plain text, without a chat template")


def configuration(parser: argparse.ArgumentParser) -> None:
    """Which engine decodes them, with all that decides its speed."""
    pair(parser)
    room(parser)
    parser.add_argument("--cleared", action="store_true", help="clear the expert cache before every forward")
    link(parser)
    parser.add_argument("--max-nodes", type=positive, default=7, help="draft nodes verified at most, K (7)")


def pair(parser: argparse.ArgumentParser) -> None:
    """Target and drafter, and what is drafted: routes and pools depend on nothing else."""
    parser.add_argument("--target", default="embedded", help="embedded, a checkpoint folder, or a hub id (embedded)")
    parser.add_argument("--drafter", help="an EAGLE-3 checkpoint; the embedded target brings its own")
    parser.add_argument("--top-k", type=positive, default=2, help="children of a drafted node, and nodes expanded (2)")
    parser.add_argument("--depth", type=positive, default=5, help="drafted levels at most (5)")
    parser.add_argument("--max-pool", type=positive, default=18, help="drafted nodes at most (18)")
    parser.add_argument("--device", help="cpu, cuda, ... (CUDA if there is one and the link is not emulated)")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], help="float32 on a CPU, else as stored")
    experts(parser)
    parser.set_defaults(slots=None, device_memory=None, cleared=False, link_ms=None)  # of commands without them
    threads(parser)


def experts(parser: argparse.ArgumentParser) -> None:
    """Where the host's experts lie."""
    text = "in host memory, or on a CPU left in their files, for a model larger than that (memory)"
    parser.add_argument("--experts", choices=["memory", "mapped"], default="memory", help=text)


def room(parser: argparse.ArgumentParser) -> None:
    """How much of the target lies on the device."""
    parser.add_argument("--slots", type=slots, metavar="N|SHARE", help="expert slots per layer (all that fit)")
    parser.add_argument("--device-memory", metavar="SIZE", help="of the GPU, such as 20GB (what it has free)")


def link(parser: argparse.ArgumentParser, default: float | None = None) -> None:
    """A host link to emulate."""
    shown = "none" if default is None else default
    parser.add_argument("--link-ms", type=milliseconds, default=default, help=f"emulated link, ms per expert ({shown})")


def seed(parser: argparse.ArgumentParser, what: str) -> None:
    """What is drawn at random."""
    parser.add_argument("--seed", type=seed_number, default=0, metavar="N", help=f"of {what} (0)")


def costs(parser: argparse.ArgumentParser, *, given: bool = True) -> None:
    """How cost coefficients are fitted; with `given`, also which fitted ones are used."""
    parser.add_argument("--protocol", choices=["consecutive", "paper"], help="of the calibration (consecutive)")
    parser.add_argument(
        "--calibration-questions", metavar="FILE", help="a question file to calibrate with (its first 3)"
    )
    if given:
        parser.add_argument("--cost", type=Path, metavar="FILE", help="coefficients of `specfit calibrate`")
        parser.add_argument("--force-cost", action="store_true", help="use them for another configuration all the same")


def routes(parser: argparse.ArgumentParser) -> None:
    """Where route estimates come from."""
    parser.add_argument(
        "--routes",
        type=route_choice,
        metavar="SOURCE",
        help="head, atlas, noisy:SHARE (or a SHARE: accuracy of noise on the atlas), last-token or prior "
        "(head where there is one for the pair, else atlas)",
    )
    parser.add_argument(
        "--head", type=Path, metavar="FILE", help="of `specfit train-routes`; the embedded pair has one"
    )
    parser.add_argument(
        "--atlas", type=Path, metavar="PATH", help="keep the atlas in this file, or in this folder under its own name"
    )


def out(parser: argparse.ArgumentParser, text: str) -> None:
    """Where runs go."""
    parser.add_argument("--out", type=Path, metavar="DIR", help=text)


def threads(parser: argparse.ArgumentParser) -> None:
    """How many cores compute."""
    parser.add_argument("--threads", type=thread_count, default=1, help="CPU threads; small models want one (1)")


def positive(text: str) -> int:
    """A whole number of 1 or more."""
    value = int(text) if text.isascii() and text.isdigit() and len(text) <= 12 else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of 1 or more")
    return value


def thread_count(text: str) -> int:
    """A number of threads that torch survives."""
    value = positive(text)
    if value > MOST_THREADS:
        raise argparse.ArgumentTypeError(
            f"{text} threads are more than any machine here has; give up to {MOST_THREADS}"
        )
    return value


def seed_number(text: str) -> int:
    """A whole number of 0 or more that every generator takes."""
    value = int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else -1
    if not 0 <= value < 1 << 32:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0 to {(1 << 32) - 1}")
    return value


def milliseconds(text: str) -> float:
    """A finite number, 0 or more."""
    value = _number(text)
    if not 0 <= value < math.inf:  # a NaN fails too
        raise argparse.ArgumentTypeError(f"{text!r} is no number of milliseconds, 0 or more")
    return value


def _number(text: str) -> float:
    """Any number; NaN for other words, which no bound lets pass."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def slots(text: str) -> int | float:
    """Slots in every layer, as a number (12) or as a share of the experts (0.5)."""
    if text.isdigit():
        return positive(text)
    value = share(text)
    if not value:
        raise argparse.ArgumentTypeError("0 slots cannot hold an expert; give a number of 1 or more, or a share")
    return value


def share(text: str) -> float:
    """A number between 0 and 1."""
    value = _number(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share between 0 and 1")
    return value


def route_choice(text: str) -> RouteChoice:
    """A route source by its name on the command line."""
    if text in ("atlas", "head", "last-token", "prior"):
        return RouteChoice(source=text)
    try:
        return RouteChoice(accuracy=share(text.removeprefix("noisy:")))
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no route source; use atlas, head, noisy:SHARE, last-token, prior or a share between 0 and 1"
        ) from None


def refuse_given(options: argparse.Namespace, names: Iterable[str], why: str) -> None:
    """ValueError for the first of these options (as "--max-new-tokens") that was given; else it would go unheard."""
    for name in names:
        if getattr(options, name.removeprefix("--").replace("-", "_"), None) not in (None, False):
            raise ValueError(f"{name} does not fit here: {why}; leave it out")
