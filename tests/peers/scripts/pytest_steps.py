"""Runs a suite of pytest and prints each test as a line of JSON, as `tests.clients.outcome` reads them."""

import json
import os
import re
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


def run(root: Path, place: str, *options: str) -> None:
    """The tests in a file or a folder of `root`; a file that is left out has not passed."""
    os.chdir(root)
    left_out = re.compile("|".join(json.loads(os.environ["ORCA_LEFT_OUT"])) or "$.")
    files = sorted(str(file) for file in Path(place).rglob("test_*.py")) or [place]
    for file in filter(left_out.fullmatch, files):
        _say(file, False, "not run")
    own = ["-p", "no:cacheprovider", "-q", "--timeout=180", f"--rootdir={root}", f"--confcutdir={root}"]
    pytest.main([*own, *options, *(file for file in files if not left_out.fullmatch(file))], plugins=[Steps()])
