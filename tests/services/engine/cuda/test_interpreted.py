"""What Triton's interpreter runs, in processes of its own: it must be on before Triton is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")


CHECKS = ["check_kernels.py", "check_decoder.py", "check_ranks.py"]


@pytest.mark.parametrize(
    ("checks", "marked"),
    [*((name, "not chaos") for name in CHECKS), pytest.param("check_ranks.py", "chaos", marks=pytest.mark.chaos)],
)
def test_interpreted(checks: str, marked: str) -> None:
    """Those of `checks` pass that are marked so."""
    options = ["-q", "-p", "no:cacheprovider", "-m", marked]
    command = [sys.executable, "-m", "pytest", *options, Path(__file__).with_name(checks)]
    env = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    outcome = subprocess.run(command, env=env, capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stdout[-8000:] + outcome.stderr[-2000:]
    assert " passed" in outcome.stdout
