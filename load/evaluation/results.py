"""What an evaluation measured, as files: one JSON file for each part, and that of the run before in a folder below."""

from __future__ import annotations

import json
import os
import subprocess
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from load.bench.figures import Figures
from load.evaluation.bench import Found
from load.report import machine
from load.server import ROOT

EARLIER = "earlier"  # the folder of the run before


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
    def found(self) -> Found:
        return Found(self.figures, self.series)

    @property
    def about(self) -> str:
        """A line on where these figures come from."""
        source = f", commit `{self.commit}`" if self.commit else ""
        took = f"{self.took:.0f} s with `--seconds {self.seconds:g}`"
        return f"{self.machine}; {self.model}; {self.at} UTC{source}; {took}; load average before: {self.load:.1f}."


class Clock:
    """What a `Result` says of the circumstances; it is created when the part begins."""

    def __init__(self) -> None:
        self._began, self._load = time.monotonic(), os.getloadavg()[0]

    def result(self, part: str, model: str, seconds: float, found: Found) -> Result:
        return Result(
            part,
            machine(),
            model,
            time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
            _commit(),
            self._load,
            time.monotonic() - self._began,
            seconds,
            found.figures,
            found.series,
        )


def save(folder: Path, result: Result) -> None:
    """Write the part's file; one that is there already becomes that of the run before."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{result.part}.json"
    if file.exists():
        (folder / EARLIER).mkdir(exist_ok=True)
        file.replace(folder / EARLIER / file.name)
    file.write_text(json.dumps(asdict(result)) + "\n")


def read(folder: Path) -> dict[str, Result]:
    """The results in this folder, by part; none if there is no such folder."""
    return {file.stem: Result(**json.loads(file.read_text())) for file in sorted(folder.glob("*.json"))}


def _commit() -> str:
    try:
        command = ["git", "-C", str(ROOT), "describe", "--always", "--exclude=*", "--dirty=+"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""  # not a checkout
