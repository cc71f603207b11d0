"""Ray's head, as far as it can be tested without one; `tests/cli/test_serve_life.py` starts it."""

from __future__ import annotations

import shlex
import subprocess

from actors.cluster.head import STAND_IN


def test_the_stand_in_of_an_agent_lives_until_its_input_is_closed() -> None:
    """Ray appends arguments of the agent to the command."""
    process = subprocess.Popen([*shlex.split(STAND_IN), "--head"], stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(b"x" * 100_000)  # nobody reads what it writes
    process.stdin.flush()
    assert process.poll() is None
    process.stdin.close()
    assert process.wait(10) == 0
