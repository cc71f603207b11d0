"""Machines in namespaces: the link of one is cut and mended, and its end leaves no process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from load.chaos.nodes import FIRST, NAMESPACES, missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


def test_a_machine_is_cut_off_and_comes_back_and_its_end_takes_its_processes(tmp_path: Path) -> None:
    script = Path(__file__).with_name("nodes_process.py")
    inside = [*NAMESPACES, *FIRST, sys.executable, str(script), str(tmp_path)]
    done = subprocess.run(inside, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split("\n")[:-1] == ["connected True", "cut False", "mended True", "left 0"], done.stderr
