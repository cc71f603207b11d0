"""Runs `load/locustfile.py` headless as a process and reads back what it counted."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Stat:
    """What Locust counted in one row."""

    requests: int
    failures: int
    average: float  # ms
    length: int  # sum of output tokens


@dataclass(frozen=True)
class LocustRun:
    exit_code: int
    stats: dict[str, Stat]  # by type and name, as `POST /v1/completions`
    aggregated: int  # requests in the row Aggregated
    failures: list[str]  # one for each failure
    exceptions: list[str]  # errors of the locustfile itself
    output: str


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return str(free.getsockname()[1])


def run_locust(host: str, folder: Path, *args: str, requests: int = 4, users: int = 2) -> LocustRun:
    """Load `host` with exactly `requests` requests of `users` users; a result file goes to `folder`.

    `args` are more of Locust's arguments, e.g. `--max-tokens 8` or a user class. Ends after 60 s in any case.
    """
    record = folder / "locust.json"
    command = [sys.executable, "-m", "locust", "-f", "load/locustfile.py,tests/load/locust_record.py"]
    command += ["--headless", "--only-summary", "--host", host, "--run-time", "60s"]
    command += ["--users", str(users), "--spawn-rate", str(users), "--requests", str(requests), *args]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "LOCUST_RECORD": str(record)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=90,
        check=False,
    )
    assert record.exists(), done.stdout
    counted = json.loads(record.read_text())
    failures = [error for error, occurrences in counted["failures"] for _ in range(occurrences)]
    stats = {name: Stat(**stat) for name, stat in counted["stats"].items()}
    return LocustRun(done.returncode, stats, counted["aggregated"], failures, counted["exceptions"], done.stdout)
