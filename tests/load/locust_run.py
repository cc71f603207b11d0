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
    """What Locust counted under one name."""

    requests: int
    failures: int
    average: float  # ms
    length: int  # sum of output tokens for `e2e` and `tpot`


@dataclass(frozen=True)
class LocustRun:
    exit_code: int
    stats: dict[str, Stat]  # by name: `ttft`, `tpot`, `e2e`, `/v1/models`
    failures: dict[str, dict[str, int]]  # name -> error -> occurrences
    exceptions: list[str]  # errors of the locustfile itself
    output: str


def run_locust(host: str, folder: Path, *args: str, requests: int = 4, users: int = 2) -> LocustRun:
    """Load `host` with exactly `requests` streamed requests of `users` users; a result file goes to `folder`.

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
    failures: dict[str, dict[str, int]] = {}
    for name, error, occurrences in counted["failures"]:
        failures.setdefault(name, {})[error] = occurrences
    stats = {name: Stat(**stat) for name, stat in counted["stats"].items()}
    return LocustRun(done.returncode, stats, failures, counted["exceptions"], done.stdout)
