"""What a process does that is a gateway and nothing else."""

from __future__ import annotations

import gc
import sys

SWITCH = 0.001  # seconds that a thread may go on while the event loop wants to; Python's own 5 ms add up


def settle() -> None:
    """Called once all is imported and loaded: collections of garbage skip that, which would hold the loop for 100 ms,
    and threads make way for the loop."""
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(SWITCH)
