"""What Triton's interpreter runs, in processes of its own: it must be on before Triton is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")


@pytest.mark.parametrize("checks", ["check_kernels.py", "check_decoder.py"])
def test_interpreted(checks: str) -> None:
    """Those of `checks` pass."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", Path(__file__).with_name(checks)]
    env = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    outcome = subprocess.run(command, env=env, capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stdout[-8000:] + outcome.stderr[-2000:]
    assert " passed" in outcome.stdout
