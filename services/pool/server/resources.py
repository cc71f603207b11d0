"""The memory and the disk of the machine on which a pool server runs."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

from services.files import DISK_FULL
from services.limits import total_memory

# Memory that the server needs for requests of `max_pool_bytes`: FACTOR times these bytes for the data structures
# around them; and EXTRA for events that gateways have not read yet and for the buffers of connections.
FACTOR = 2
EXTRA = 256 << 20
SHARE = 0.5  # of all memory; models, gateways and a copy of the server that rewrites its file need the rest

DISK_RESERVE = 16 << 20  # bytes; a server that syncs each write exits at the first write that does not fit

log = logging.getLogger(__name__)


def max_memory(max_pool_bytes: int, total: int | None = None) -> int:
    """`maxmemory` of the server, in bytes: enough for `max_pool_bytes` of requests, at most half of `total`.

    `total` is the memory of this machine by default. Logs a warning where half of it is too little: the server's
    memory is then full before the pool is.
    """
    total = total_memory() if total is None else total
    enough, most = FACTOR * max_pool_bytes + EXTRA, int(total * SHARE)
    if most < enough:
        log.warning(
            "max_pool_bytes=%d needs %d bytes of memory in the pool's server, which gets %d, half of the %d there are; "
            "when they are full, new requests get a 503",
            max_pool_bytes,
            enough,
            most,
            total,
        )
    return min(enough, most)


def has_disk_space(folder: Path) -> bool:
    """Whether `folder` can take `DISK_RESERVE` more bytes, as its file system and the user's quota allow."""
    probe = folder / "place"
    try:
        with open(probe, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, DISK_RESERVE)
    except OSError as error:
        if error.errno in DISK_FULL:
            return False
        raise
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()
    return True
