"""The command line. Every mistake of the caller ends in one sentence on stderr and exit code 2; nothing is lost."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import NoReturn

from specfit.commands import (
    atlas,
    calibrate,
    chat,
    check_lossless,
    demo,
    experiment,
    export_answers,
    figures,
    inspect,
    plan,
    record,
    replay,
    report,
    run,
    train_embedded,
    train_routes,
)
from specfit.report import printable
from specfit.safe_files import reason

COMMANDS = (
    demo,
    chat,
    run,
    experiment,
    calibrate,
    atlas,
    record,
    replay,
    report,
    export_answers,
    figures,
    plan,
    inspect,
    check_lossless,
    train_routes,
    train_embedded,
)  # in the order of --help


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code. Without `arguments` this is the program, which owns streams and signals."""
    if arguments is None:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # a terminal that lacks a character shows its number
        signal.signal(signal.SIGTERM, _terminated)
    options = _parser().parse_args(arguments)
    try:
        options.command(options)
        if sys.stdout is not None:
            sys.stdout.flush()  # here, where what it raises can still be told
    except BrokenPipeError:  # whoever reads has seen enough, as `head` has
        _drop_output()
        return 128 + 13
    except (ValueError, OSError) as error:
        _complain(_sentence(error))
        return 2
    except (MemoryError, RuntimeError) as error:
        if (
            not isinstance(error, MemoryError) and type(error).__name__ != "OutOfMemoryError"
        ):  # torch's, not loaded here
            raise
        _complain(f"out of memory: {_sentence(error)[:200]}; take fewer slots or shorter text")
        return 2
    except (KeyboardInterrupt, _Terminated) as error:
        _complain("stopped; what is finished is kept, and the same command goes on from there")
        return 128 + (signal.SIGTERM if isinstance(error, _Terminated) else signal.SIGINT)
    return 0


class _Terminated(BaseException):
    """SIGTERM, as a scheduler sends it before it kills: it ends like Ctrl-C, and ends a chat, which Ctrl-C does not."""


def _terminated(number: int, frame: object) -> NoReturn:
    raise _Terminated


def _complain(sentence: str) -> None:
    """To stderr, where there is one; and what stdout could not take is given up."""
    _drop_output()
    if sys.stderr is not None:  # closed: print would turn to stdout
        print(f"specfit: {printable(sentence)}", file=sys.stderr)


def _drop_output() -> None:
    """Write out what was printed; where that fails, leave nothing that would fail again when Python ends."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Parser(argparse.ArgumentParser):
    """Complains in one sentence."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"specfit: {printable(message)} (see {self.prog} --help)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="specfit", description="Which draft tokens are worth verifying? See README.md.", allow_abbrev=False
    )
    commands = parser.add_subparsers(dest="name", required=True, metavar="COMMAND", parser_class=_Parser)
    for command in COMMANDS:
        command.add(commands)
    return parser


def _sentence(error: Exception) -> str:
    if isinstance(error, FileExistsError | NotADirectoryError):
        return f"{error.filename} is a file where a folder is needed; give another --out"
    if isinstance(error, OSError) and error.strerror:
        return f"{reason(error)}: {error.filename}" if error.filename else reason(error)
    return " ".join(str(error).split())


if __name__ == "__main__":
    sys.exit(main())
