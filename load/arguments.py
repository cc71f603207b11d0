"""The command lines of all programs: options are fields of dataclasses, and parts have names."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any


def option(default: Any, help: str, **how: Any) -> Any:
    """A field of a dataclass that is an argument of a command line. `how`: further words of `add_argument`."""
    return field(default=default, metadata={"help": help, **how})


def add_options(parser: ArgumentParser, kind: Any) -> None:
    """Add an argument for each `option` of the dataclass `kind`: `cache_dir` as `--cache-dir`."""
    for one in fields(kind):
        if one.metadata:
            flag = {"action": "store_true"} if isinstance(one.default, bool) else {"type": type(one.default)}
            told = "" if one.default in ("", (), False, None) else f"; default {one.default}"
            how = {**flag, **one.metadata, "help": one.metadata["help"] + told}
            parser.add_argument(f"--{one.name.replace('_', '-')}", default=one.default, **how)


def chosen(kind: Any, given: Namespace) -> dict[str, Any]:
    """The options of the dataclass `kind` that were given, as its arguments."""
    return {one.name: getattr(given, one.name) for one in fields(kind) if one.metadata}


def parser_of(program: str, description: str, parts: Mapping[str, str] = {}) -> ArgumentParser:
    """The parser of `python -m program`. `parts`: the description of each part by its name. The argument `part` has the
    names that were given; None: all."""
    made = ArgumentParser(
        prog=f"python -m {program}",
        description=description,
        formatter_class=RawDescriptionHelpFormatter,
        epilog="\n".join(["parts:", *(f"  {name:14}{about}" for name, about in parts.items())]) if parts else None,
    )
    if parts:
        made.add_argument("--part", action="append", choices=list(parts), help="run only this part; may be repeated")
    return made
