"""The command line. Every mistake of the caller ends in one sentence on stderr and exit code 2; nothing is lost."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
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
    """Run a command; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        options.command(options)
    except (ValueError, OSError) as error:
        print(f"specfit: {_sentence(error)}", file=sys.stderr)
        return 2
    except (MemoryError, RuntimeError) as error:
        if (
            not isinstance(error, MemoryError) and type(error).__name__ != "OutOfMemoryError"
        ):  # torch's, not loaded here
            raise
        print(f"specfit: out of memory: {_sentence(error)[:200]}; take fewer slots or shorter text", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("specfit: stopped; finished requests are kept, and the same command goes on from there", file=sys.stderr)
        return 130
    return 0


class _Parser(argparse.ArgumentParser):
    """Complains in one sentence."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"specfit: {message} (see {self.prog} --help)\n")


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
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return " ".join(str(error).split())


if __name__ == "__main__":
    sys.exit(main())
