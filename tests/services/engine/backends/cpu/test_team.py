"""The threads of a call of the kernels: `team.h` by a program of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.engine.backends.cpu.build import COMPILER, SOURCE

LIMIT = 20.0  # seconds of a program that takes milliseconds


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("team") / "team"
    source = Path(__file__).with_name("team_program.cpp")
    flags = ["-std=c++20", "-O1", "-pthread", f"-I{SOURCE}"]
    subprocess.run([COMPILER, *flags, str(source), "-o", str(built)], check=True)
    return built


@settings(max_examples=8, deadline=None)
@given(threads=st.integers(1, 4), items=st.lists(st.integers(0, 9), min_size=1, max_size=60))
def test_no_thread_waits_for_one_that_has_not_come(program: Path, threads: int, items: list[int]) -> None:
    """Each item is done once, after the operation before it, although one thread comes after all is done."""
    items = [size or 1 for size in items[:-1]] + items[-1:]  # the program looks at the operation before
    done = subprocess.run(
        [program, *map(str, (threads, *items))], capture_output=True, text=True, timeout=LIMIT, check=True
    )
    once, early, by_late_thread = map(int, done.stdout.split())
    assert (once, early, by_late_thread) == (1, 0, 0)
