"""What Triton's interpreter runs, in a process of its own: it must be on before Triton is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]  # one test has a hundred checks

CHECKS = [
    Path(__file__).with_name(f"check_{what}.py")
    for what in ("kernels", "codes", "adapters", "decoder", "ranks", "bench")
]


@pytest.mark.parametrize(
    "marked",
    [
        "not full and not chaos",
        pytest.param("full and not chaos", marks=pytest.mark.full),
        pytest.param("chaos", marks=pytest.mark.chaos),
    ],
)
def test_interpreted(marked: str) -> None:
    """All checks with this mark pass."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marked, *CHECKS]
    env = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    outcome = subprocess.run(command, env=env, capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stdout[-8000:] + outcome.stderr[-2000:]
    assert " passed" in outcome.stdout
