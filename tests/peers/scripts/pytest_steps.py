"""Runs a suite of pytest and prints each test as a line of JSON, as `tests.clients.outcome` reads them."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

URL = os.environ["ORCA_URL"]
MODEL = os.environ["ORCA_MODEL"]
SUITE = Path(os.environ["ORCA_SUITE"])


class Steps:
    """A test passes when it, its setup and its teardown pass. One that the suite skips has not passed."""

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else getattr(report, "wasxfail", "")
            _say(report.nodeid, False, reason)
        elif report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            _say(report.nodeid, False, crash.message if crash else str(report.longrepr)[-300:])
        elif report.when == "call":
            _say(report.nodeid, True, "")

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            _say(report.nodeid, False, str(report.longrepr)[-300:])


def _say(name: str, passed: bool, detail: str) -> None:
    line = {"step": name, "passed": passed, "detail": " ".join(detail.split())[:300]}
    print("\n" + json.dumps(line), flush=True)


def run(folder: Path, *arguments: str, plugins: Sequence[object] = ()) -> None:
    """All tests below `folder` but the files that are left out."""
    os.chdir(folder)
    left_out = [f"--ignore={file}" for file in json.loads(os.environ["ORCA_LEFT_OUT"])]
    own = ["-p", "no:cacheprovider", "-q", "--timeout=60", f"--confcutdir={folder}"]
    pytest.main([*own, *left_out, *arguments], plugins=[Steps(), *plugins])
