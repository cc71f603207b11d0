"""`orca COMMAND ...`: picks the command; each lives in a file of its own."""

from __future__ import annotations

import importlib
import sys

from services.errors import OrcaError

COMMANDS = {
    "serve": "serve a model: pool, engines, schedulers and gateway, until Ctrl-C",
    "chat": "talk to a running server",
    "status": "what a running server is doing",
}


def main() -> None:
    """Exit status: 0 done, 1 failed with a line that says why, 2 called wrongly."""
    name, arguments = (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else ("", [])
    if name in ("", "-h", "--help"):
        print("usage: orca COMMAND [--help]\n" + "".join(f"\n  {c:8} {text}" for c, text in COMMANDS.items()))
        sys.exit(0 if name else 2)
    if name not in COMMANDS:
        sys.exit(f"orca: unknown command {name!r}; there are: {', '.join(COMMANDS)}")
    try:
        importlib.import_module(f"cli.{name}").run(arguments)
    except OrcaError as error:
        sys.exit(f"orca {name}: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
