"""Runs a command the way a container runs it: no process it started outlives it.

    python container.py COMMAND ARGUMENT...

SIGTERM is passed on. A death of the parent counts as one.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h


def main() -> int:
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)  # orphans become our children, not the system's
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    child = subprocess.Popen(sys.argv[1:], start_new_session=True)
    signal.signal(signal.SIGTERM, lambda *_: pass_on(child.pid))
    status = reap_until(child.pid)
    while orphans := children():
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status) & 0xFF


def pass_on(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)


def reap_until(last: int) -> int:
    """Wait for children, adopted ones too, until `last` has ended; its status."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == last:
            return status


def children() -> list[int]:
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            found += [int(pid) for pid in (task / "children").read_text().split()]
    return found


if __name__ == "__main__":
    sys.exit(main())
