"""The command line of a program that runs parts: all there are, or those that are named."""

from __future__ import annotations

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Mapping


def parser(program: str, description: str, parts: Mapping[str, str]) -> ArgumentParser:
    """Of `python -m program`; `parts` are told by what each says of itself, `part` is those named, None for all."""
    made = ArgumentParser(
        prog=f"python -m {program}",
        description=description,
        formatter_class=RawDescriptionHelpFormatter,
        epilog="parts:\n" + "\n".join(f"  {name:14}{about}" for name, about in parts.items()),
    )
    made.add_argument("--part", action="append", choices=list(parts), help="run only this part; may be repeated")
    return made
