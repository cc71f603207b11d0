"""`orca COMMAND ...`: runs a command. The module of a command has its name."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from typing import NoReturn

from services.errors import OrcaError, UsageError
from services.settings.names import suggestion
from services.version import program_version

COMMANDS = {
    "serve": "serve one model or several: pool, engines, schedulers and gateway, until Ctrl-C",
    "chat": "talk to a running server",
    "status": "what a running server is doing",
    "top": "the same in a terminal, iteration by iteration",
    "engines": "show the engines of a cluster, or add and remove some",
    "models": "show the models of a running server, add one or remove one",
}
FLAGS = {"--help": "this list; after a command, its flags", "--version": "the version of this program"}


def main() -> None:
    """Exit status: 0 success, 1 failure, 2 wrong usage or configuration. An error is one line on stderr."""
    try:
        try:
            _run()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output has ended, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is flushed at exit
        sys.exit(128 + signal.SIGPIPE)  # as if the signal had ended the program, which Python ignores


def _run() -> None:
    name, arguments = (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else ("", [])
    if name in ("", "-h", "--help"):
        print(_help())
        sys.exit(0 if name else 2)
    if name == "--version":
        print(f"orca {program_version()}")
        return
    if name not in COMMANDS:
        kind = "flag" if name.startswith("-") else "command"
        near = suggestion(name, [*COMMANDS, *FLAGS]) or f"; there are: {', '.join(COMMANDS)}"
        _end(2, f"orca: unknown {kind} {name!r}{near}")
    try:
        importlib.import_module(f"cli.{name}").run(arguments)
    except UsageError as error:
        _end(2, f"orca {name}: {error}")
    except OrcaError as error:
        _end(1, f"orca {name}: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


def _help() -> str:
    listed = [f"  {name:10} {text}" for name, text in (COMMANDS | FLAGS).items()]
    return "\n".join(["usage: orca COMMAND [--help]", "", *listed])


def _end(status: int, line: str) -> NoReturn:
    print(line, file=sys.stderr)
    sys.exit(status)
