"""Parser: argparse whose errors are one line with the nearest name."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from typing import NoReturn

from services.errors import UsageError
from services.settings.names import suggestion

NARROWEST, WIDEST = 80, 100  # columns of `--help`


class Parser(argparse.ArgumentParser):
    """Takes no abbreviations. `other_flags` are suggested too where an unknown flag is near them."""

    def __init__(self, program: str, description: str, other_flags: Iterable[str] = ()) -> None:
        super().__init__(program, description=description, allow_abbrev=False, formatter_class=_Formatter)
        self._other_flags = other_flags

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """What the command line says. Raises UsageError; `--help` ends the program."""
        options, extra = self.parse_known_args(arguments)
        for argument in extra:
            if argument.startswith("-"):
                flag = argument.partition("=")[0]
                known = [*self._option_string_actions, *self._other_flags] if flag.startswith("--") else []
                raise UsageError(f"unknown flag {flag}{suggestion(flag, known)}")
        if extra:
            raise UsageError(f"unexpected argument {extra[0]!r}")
        return options

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Lines of 80 to 100 columns, broken between words alone: a hyphen belongs to a flag."""

    def __init__(self, prog: str) -> None:
        columns = shutil.get_terminal_size((NARROWEST, 24)).columns
        super().__init__(prog, max_help_position=30, width=min(WIDEST, max(NARROWEST, columns)) - 2)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False)
