"""Runs `load/locustfile.py` headless as a process and reads back what it counted."""

from __future__ import annotations

import json
import os
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


def run_locust(host: str, folder: Path, *args: str, requests: int = 4, users: int = 2) -> LocustRun:
    """Load `host` with exactly `requests` requests of `users` users; a result file goes to `folder`.

    `args` are more of Locust's arguments, e.g. `--max-tokens 8` or a user class. Ends after 60 s in any case.
    """
    record = folder / "locust.json"
    load = ["--users", str(users), "--spawn-rate", str(users), "--requests", str(requests)]
    process = locust_process(host, record, "--headless", "--only-summary", "--run-time", "60s", *load, *args)
    try:
        output, _ = process.communicate(timeout=90)
    finally:
        process.kill()
    return read_record(record, process.returncode, output)


def locust_process(host: str, record: Path, *args: str) -> subprocess.Popen[str]:
    """Locust with these arguments; unless it is a worker, it writes what it counted to `record`."""
    command = [sys.executable, "-m", "locust", "-f", "load/locustfile.py,tests/load/locust_record.py"]
    return subprocess.Popen(
        [*command, "--host", host, *args],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "LOCUST_RECORD": str(record)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def read_record(record: Path, exit_code: int, output: str) -> LocustRun:
    """What a process counted that has ended."""
    assert record.exists(), output
    counted = json.loads(record.read_text())
    failures = [error for error, occurrences in counted["failures"] for _ in range(occurrences)]
    stats = {name: Stat(**stat) for name, stat in counted["stats"].items()}
    return LocustRun(exit_code, stats, counted["aggregated"], failures, counted["exceptions"], output)
