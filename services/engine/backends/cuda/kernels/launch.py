"""How kernels are launched on a device.

Programmatic dependent launch: a kernel starts while the one before it still runs, and waits for that one's results
itself. This hides the time that a launch takes. A kernel that is launched with `early` calls `wait` before it touches
what another kernel writes or reads. All kernels of an iteration do, so whatever ran before the one before has ended,
too.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from triton.runtime import driver

LEAST = 9  # compute capability
SHARED = 227 << 10  # bytes of shared memory that a program may have on the GPUs for which numbers of stages are chosen


@cache
def _launches_early(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= LEAST


def early(device: torch.device) -> dict[str, Any]:
    """Arguments of a launch on this device."""
    return {"EARLY": True, "launch_pdl": True} if _launches_early(device) else {}


@cache
def _shared_memory(device: torch.device) -> int:
    """Bytes that a program may have."""
    if device.type != "cuda":
        return SHARED
    return int(driver.active.utils.get_device_properties(device.index)["max_shared_mem"])


def stages(wanted: int, device: torch.device) -> int:
    """How many steps a program has in flight, each in shared memory: so many, or fewer where there is less of it. This
    changes no bit."""
    return max(2, wanted * min(_shared_memory(device), SHARED) // SHARED)


@triton.jit
def wait(EARLY: tl.constexpr):
    """Let the next kernel start, and wait for the last one."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
