"""What an evaluation measured, as files, and the page that is made of them.

Each part has one JSON file. A file `DATE-NAME.md` beside them holds results of another machine or of a program that is
gone, as Markdown; the page includes it as it is.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from load.evaluation.bench import Bench, Found, Plots
from load.evaluation.parts import PARTS
from load.plots import draw
from load.report import Figures, machine, tables
from load.server import ROOT

ABOUT = """# Measurements

Written by `python -m load.evaluation` (`make evaluate`); [how it measures](load.md#the-evaluation). Each section names
its machine and its date: compare figures within a section only."""


@dataclass(frozen=True, slots=True)
class Result:
    """A part's measurement. `at`: UTC. `commit`: of the checkout, with "+" where it had changes; empty without git.
    `load`: processes that wanted to run when the part began; near 0 on a quiet machine."""

    part: str
    machine: str
    model: str
    at: str
    commit: str
    load: float
    took: float  # seconds
    seconds: float  # `Bench.seconds`
    figures: Figures
    series: dict[str, Any] = field(default_factory=dict)

    @property
    def about(self) -> str:
        """A line on where these figures come from."""
        source = f", commit `{self.commit}`" if self.commit else ""
        took = f"{self.took:.0f} s with `--seconds {self.seconds:g}`"
        return f"{self.machine}; {self.model}; {self.at} UTC{source}; {took}; load average before: {self.load:.1f}."

    def section(self, about: str, plots: list[str]) -> str:
        """Markdown: the part's plots, named relative to the page, where the figures come from, and its tables."""
        lines = [f"## {self.part}", f"{about[0].upper()}{about[1:]}.", self.about]
        lines += [f"![{about}]({plot})" for plot in plots]
        return "\n\n".join([*lines, *tables(self.figures)])


def measured(part: str, model: str, bench: Bench) -> Result:
    """What the part finds, and under which circumstances."""
    at, load, began = time.strftime("%Y-%m-%d %H:%M", time.gmtime()), os.getloadavg()[0], time.monotonic()
    found: Found = PARTS[part].measure(bench)
    took = time.monotonic() - began
    return Result(part, machine(), model, at, _commit(), load, took, bench.seconds, found.figures, found.series)


def save(folder: Path, result: Result) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{result.part}.json").write_text(json.dumps(asdict(result)) + "\n")


def read(folder: Path) -> dict[str, Result]:
    """The results in this folder, by part."""
    return {file.stem: Result(**json.loads(file.read_text())) for file in sorted(folder.glob("*.json"))}


def write(folder: Path, page: Path) -> None:
    """Draw all plots of the results in `folder`, and write the page."""
    for result in read(folder).values():
        for file, panels in _plots(result).items():
            draw(folder / f"{file}.png", panels, f"{result.model}; {result.machine}")
    page.write_text(page_of(folder, page.parent))


def page_of(folder: Path, beside: Path) -> str:
    """The page in the folder `beside`, whose links lead to the plots in `folder`: all results, then the files as they
    are, the newest first."""
    results, sections = read(folder), [ABOUT]
    for name, part in PARTS.items():
        if name in results:
            links = [(folder / f"{file}.png").relative_to(beside).as_posix() for file in _plots(results[name])]
            sections.append(results[name].section(part.HELP, links))
    sections += [file.read_text().strip() for file in sorted(folder.glob("*.md"), reverse=True)]
    return "\n\n".join(sections) + "\n"


def _plots(result: Result) -> Plots:
    plots: Callable[[Found], Plots] = getattr(PARTS[result.part], "plots", lambda found: {})
    return plots(Found(result.figures, result.series))


def _commit() -> str:
    try:
        command = ["git", "-C", str(ROOT), "describe", "--always", "--exclude=*", "--dirty=+"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""  # not a checkout
