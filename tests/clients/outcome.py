"""Results of one client: what its script prints as lines of JSON, and what becomes of them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.clients.catalogue import Client


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that was done."""

    name: str
    passed: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a client's script did. `missing`: why the client could not be installed."""

    client: Client
    steps: Sequence[Step] = field(default_factory=tuple)
    missing: str = ""

    @property
    def failures(self) -> list[Step]:
        return [step for step in self.steps if not step.passed]


def run(client: Client, command: list[str], environment: dict[str, str], log: Path) -> Outcome:
    """Run a script; its steps, and one more that has failed where it ended badly. All that it said goes to `log`."""
    with log.open("w") as errors:
        process = subprocess.Popen(
            command,
            env=os.environ | environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,  # what it starts ends with it
        )
        try:
            said, _ = process.communicate(timeout=client.timeout)
            problem = f"ended with {process.returncode}: {_last_line(log)}" if process.returncode else ""
        except subprocess.TimeoutExpired:
            problem = f"not within {client.timeout:.0f} s"
            os.killpg(process.pid, signal.SIGKILL)
            said, _ = process.communicate()
        finally:  # also what it left running, and after Ctrl-C
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    with log.open("a") as more:
        more.write(said)
    steps = read(said)
    if problem or not steps:
        steps.append(Step("the script", False, problem or "said nothing"))
    return Outcome(client, steps)


def read(said: str) -> list[Step]:
    """The steps among the lines that a script and its libraries printed."""
    lines = [json.loads(line) for line in said.splitlines() if line.startswith('{"step":')]
    return [Step(line["step"], line["passed"], line["detail"]) for line in lines]


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
