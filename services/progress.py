"""Progress of long work: a bar with the time left on a terminal, lines at intervals elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from tqdm import tqdm

INTERVAL = 10.0  # seconds between two lines; shorter work prints none
LINE = "{desc}: {n_fmt} of {total_fmt} {unit} ({percentage:.0f}%), {elapsed} passed, {remaining} left"
BAR = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt} of {total_fmt} {unit}, {elapsed} passed, {remaining} left"

Say = Callable[[str], object]


def say_on_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class Bar(tqdm):  # type: ignore[misc]  # tqdm has no types
    """A `tqdm` that is drawn on stderr and removed at its end. Where stderr is no terminal, `say` gets a line every
    `INTERVAL` seconds instead. Its arguments are those of tqdm; give it `desc`, `unit` and, unless it iterates over
    something with a length, `total`."""

    monitor_interval = 0  # no thread of its own: every update looks at the clock

    def __init__(self, *args: Any, say: Say = say_on_stderr, **options: Any) -> None:
        options |= {"leave": False, "miniters": 1}
        if sys.stderr.isatty():
            options |= {"file": sys.stderr, "bar_format": BAR, "dynamic_ncols": True}
        else:
            options |= {"file": _Lines(say), "bar_format": LINE, "mininterval": INTERVAL, "delay": INTERVAL}
        super().__init__(*args, **options)

    def set_description(self, desc: str | None = None, refresh: bool = True) -> None:
        """Name the part that is at work. tqdm would add a colon, which `BAR` and `LINE` have."""
        self.set_description_str(desc, refresh)

    def reach(self, n: float) -> None:
        """Set how much is done."""
        self.update(n - self.n)


class _Lines:
    """A file that gives each text that tqdm draws to `say` as a line."""

    def __init__(self, say: Say) -> None:
        self._say = say

    def write(self, text: str) -> None:
        if line := text.strip():
            self._say(line)

    def flush(self) -> None:
        pass


def print_beside(line: str) -> None:
    """Print a line to stdout while a `Bar` may be drawn."""
    Bar.write(line)
    sys.stdout.flush()
