"""Programmatic dependent launch: a kernel starts while the one before it still runs, and waits for that one's results
itself. This hides the time that a launch takes.

A kernel that is launched with `early` calls `wait` before it touches what another kernel writes or reads. All kernels
of an iteration do, so whatever ran before the one before has ended, too.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

LEAST = 9  # compute capability


@cache
def _launches_early(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= LEAST


def early(device: torch.device) -> dict[str, Any]:
    """Arguments of a launch on this device."""
    return {"EARLY": True, "launch_pdl": True} if _launches_early(device) else {}


@triton.jit
def wait(EARLY: tl.constexpr):
    """Let the next kernel start, and wait for the last one."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
