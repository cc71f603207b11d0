"""How much memory a pool server that we start may take."""

from __future__ import annotations

import logging
from pathlib import Path

# What the server needs for requests whose bytes come to `max_pool_bytes`: its own structures around them; and beside
# them events that gateways have not read yet and buffers of connections.
FACTOR = 2
BESIDE = 256 << 20
SHARE = 0.5  # of the memory there is; models, gateways and a copy while the server writes its file anew need the rest

# the limit of a container's control group, version 2 and version 1
_GROUPS = ("memory.max", "memory/memory.limit_in_bytes")

log = logging.getLogger(__name__)


def max_memory(max_pool_bytes: int, there_is: int | None = None) -> int:
    """`maxmemory` of the server, bytes: enough for `max_pool_bytes` of requests, at most half of the memory there is.

    A warning says so where that is too little: then the server's memory is full before the pool is.
    """
    there_is = memory_there_is() if there_is is None else there_is
    enough, most = FACTOR * max_pool_bytes + BESIDE, int(there_is * SHARE)
    if most < enough:
        log.warning(
            "max_pool_bytes=%d needs %d bytes of memory in the pool's server, which gets %d, half of the %d there are; "
            "when they are full, new requests get a 503",
            max_pool_bytes,
            enough,
            most,
            there_is,
        )
    return min(enough, most)


def memory_there_is(groups: Path = Path("/sys/fs/cgroup"), machine: Path = Path("/proc/meminfo")) -> int:
    """Bytes of the machine, or of the control group of this container where it may have less."""
    total = int(machine.read_text().split("MemTotal:")[1].split()[0]) * 1024
    return min([total, *(limit for name in _GROUPS if (limit := _limit(groups / name)) is not None)])


def _limit(file: Path) -> int | None:
    """None where there is no such group, or it has no limit."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None
