"""Results of one client: what its script prints as lines of JSON, and what becomes of them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.clients.catalogue import Client
from tests.clients.served import Served

DECODER = json.JSONDecoder()


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


def run(
    client: Client, command: list[str], environment: dict[str, str], log: Path, tell: Callable[[Step], None]
) -> Outcome:
    """Run a script and `tell` each step when it ends; one more has failed if the script ended badly. All that it said
    goes to `log`."""
    steps, problem = [], ""
    with log.open("w", buffering=1) as said:
        process = subprocess.Popen(
            command,
            env=os.environ | environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=said,
            start_new_session=True,  # what it starts ends with it
        )
        end = threading.Timer(client.timeout, os.killpg, (process.pid, signal.SIGKILL))
        end.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:  # those of libraries too
                said.write(line)
                if (begin := line.find('{"step":')) >= 0:  # a library may print on the same line
                    step, _ = DECODER.raw_decode(line, begin)
                    steps.append(Step(step["step"], step["passed"], step["detail"]))
                    tell(steps[-1])
            if process.wait():
                problem = f"ended with {process.returncode}: {_last_line(log)}"
            if end.finished.is_set():
                problem = f"not within {client.timeout:.0f} s"
        finally:  # also what it left running, and after Ctrl-C
            end.cancel()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if problem or not steps:
        steps.append(Step("the script", False, problem or "said nothing"))
        tell(steps[-1])
    return Outcome(client, steps)


def together(client: Client, done: Mapping[tuple[Client, Served], Outcome]) -> Outcome:
    """What a client did on all its servers: the steps of the only one, or one step for each."""
    found = {served: done[client, served] for served in client.served}
    first = found[client.served[0]]
    if len(found) == 1 or first.missing:
        return first
    steps = []
    for served, one in found.items():
        failed = "; ".join(f"{step.name}: {step.detail}" for step in one.failures)
        steps.append(Step(served.name, not one.failures, failed or f"{len(one.steps)} steps"))
    return Outcome(client, steps)


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
