"""`specfit chat`: talk to a target in a terminal, and see what each answer cost."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specfit.calibrate import Calibration
from specfit.commands import options as add_options
from specfit.commands.setup import make_engine, need_drafter, set_threads
from specfit.methods import AR, EAGLE3, SPECFIT, with_max_nodes
from specfit.report import printable
from specfit.runs import RouteChoice
from specfit.sampling import make_sampling
from specfit.workloads import embedded_workload

if TYPE_CHECKING:
    from specfit.engine.engine import Engine
    from specfit.engine.generate import Conversation, Generation

METHODS = {method.name: method for method in (AR, EAGLE3, SPECFIT)}
COMMANDS = "/reset forgets what was said, /quit ends the chat; Ctrl-C stops an answer and keeps the chat"


def add(commands: Any) -> None:
    chat = commands.add_parser("chat", help="talk to a target, one line a message", allow_abbrev=False)
    chat.add_argument("--method", choices=METHODS, help="specfit with --cost, else eagle3, or ar without a drafter")
    add_options.configuration(chat)
    add_options.seed(chat, "what is drawn")
    chat.add_argument("--cost", type=Path, metavar="FILE", help="coefficients of `specfit calibrate`, for specfit")
    chat.add_argument("--force-cost", action="store_true", help="use them for another configuration all the same")
    chat.add_argument("--routes", choices=["head", "last-token", "prior"], help="for specfit (head)")
    chat.add_argument("--head", type=Path, metavar="FILE", help="of `specfit train-routes`; the embedded pair has one")
    chat.add_argument("--max-new-tokens", type=add_options.positive, default=512, metavar="N", help="an answer (512)")
    chat.add_argument("--system", metavar="TEXT", help="a system message before the first")
    chat.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end an answer there; repeatable")
    chat.add_argument("--temperature", type=float, help="draw tokens (greedy without any of these three)")
    chat.add_argument("--sample-top-k", type=int, metavar="K", help="draw among the K most probable tokens")
    chat.add_argument("--sample-top-p", type=float, metavar="P", help="draw among tokens that reach probability P")
    chat.set_defaults(command=_chat)


def _chat(options: argparse.Namespace) -> None:
    drawn = {"temperature": options.temperature, "top_k": options.sample_top_k, "top_p": options.sample_top_p}
    make_sampling(**drawn, seed=options.seed)  # refused before anything loads
    if "" in options.stop:
        raise ValueError("a stop string is '', which would end every answer at once; give a text to --stop")
    if options.method in (AR.name, EAGLE3.name):
        of_specfit = ["--cost", "--force-cost", "--routes", "--head"]
        add_options.refuse_given(options, of_specfit, f"method {options.method} reads none")
    fitted = None if options.cost is None else Calibration.load(options.cost)
    if options.method in (EAGLE3.name, SPECFIT.name):
        need_drafter(options, f"method {options.method}")
    if sys.stdin is None:
        raise ValueError("a chat reads messages from stdin, which is closed; type them, or pipe in one a line")
    set_threads(options)
    with make_engine(options) as engine:
        from specfit.engine.generate import Conversation  # here: it loads torch

        conversation = Conversation(
            engine,
            system=options.system,
            max_new_tokens=options.max_new_tokens,
            stop=options.stop,
            seed=options.seed,
            **drawn,
            **_method(options, engine, fitted),
        )
        if engine.settings["link"]["kind"] == "emulated":
            print(f"EMULATED LINK, {options.link_ms} ms per expert: times depend on it")
        print(COMMANDS)
        if options.target == "embedded":
            example = embedded_workload("problems", split="tune", count=1).questions[0].turns[0]
            print(f"the embedded model knows its own kind of word problems and little else; ask it: {example}")
        for line in _lines():
            _turn(conversation, line)


def _method(options: argparse.Namespace, engine: Engine, fitted: Calibration | None) -> dict[str, Any]:
    """The method with the coefficients and routes that it reads."""
    name = options.method or ("specfit" if options.cost else "eagle3" if engine.drafter is not None else "ar")
    method = with_max_nodes(METHODS[name], options.max_nodes)
    if not method.uses_routes:
        if options.cost or options.force_cost or options.routes or options.head:
            raise ValueError(f"--cost, --force-cost, --routes and --head are for --method specfit; {name} reads none")
        return {"method": method}
    if fitted is None:
        raise ValueError("--method specfit needs --cost FILE; make one with `specfit calibrate`")
    if not options.force_cost:
        fitted.check(engine.settings)
    head, source = None, options.routes or "head"
    if options.head is not None:
        if source == "last-token":
            raise ValueError("--head is read by --routes head and prior; routes come from last-token here")
        from specfit.engine.route_head import RouteHead  # here: it loads torch

        head = RouteHead.load(options.head)
    routes, _ = RouteChoice(source=source, head=head).make(engine, None)
    return {"method": method, "cost": fitted.cost, "routes": routes}


def _lines() -> Iterator[str]:
    """What is typed or piped in, a line each, until /quit, the end of the input, or Ctrl-C between two answers."""
    prompt = "> " if sys.stdin.isatty() else ""
    while True:
        try:
            line = input(prompt).strip()
        except (EOFError, KeyboardInterrupt):
            print()
            return
        if line == "/quit":
            return
        if line:
            yield line


def _turn(conversation: Conversation, line: str) -> None:
    """Do what a line says: a command is one word that begins with a slash, anything else is a message."""
    if line == "/reset":
        conversation.reset()
        print("(a new chat)")
    elif line.startswith("/") and len(line.split()) == 1:
        print(COMMANDS)
    else:
        _answer(conversation, line, _say)


def _answer(conversation: Conversation, text: str, say: Callable[[str], None]) -> None:
    """Stream the answer and sum it up; what cannot be asked is one sentence and changes nothing."""
    before = conversation.last
    try:
        with closing(conversation.ask(text)) as pieces:
            for piece in pieces:
                say(piece)
    except KeyboardInterrupt:
        say(" ...")
    except ValueError as error:
        print(f"specfit: {' '.join(str(error).split())}", file=sys.stderr)
        return
    say("\n")
    if conversation.last is not None and conversation.last is not before:
        print(_summary(conversation.last))


def _summary(answer: Generation) -> str:
    speed, committed = answer.decode_tps, answer.committed_per_cycle
    parts = [f"{len(answer.tokens)} tokens"]
    if speed is not None and committed is not None:
        parts += [f"{speed:.1f} tokens/s", f"{committed:.2f} committed a cycle"]
    end = {"eos": "", "stop": f", stopped at {answer.ended_by!r}"}.get(answer.stop_reason, f", {answer.stop_reason}")
    prompt = f"prompt of {len(answer.prompt)} tokens, {answer.reused} of them reused"
    return printable(f"[{', '.join(parts)}; {answer.method}; {prompt}{end}]")


def _say(text: str) -> None:
    """Model text as it comes; control and direction characters as escapes, but for line ends and tabs."""
    shown = "".join(character if character in "\n\t" else printable(character) for character in text)
    print(shown, end="", flush=True)
