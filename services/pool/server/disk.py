"""Whether the disk has place for the pool server's file."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

PLACE = 16 << 20  # bytes: a server that syncs each write ends at one that does not fit, so there must be some room
_FULL = (errno.ENOSPC, errno.EDQUOT)


def has_place(folder: Path) -> bool:
    """Whether `folder` can take `PLACE` bytes more, by its file system's word or its user's quota."""
    probe = folder / "place"
    try:
        with open(probe, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, PLACE)
    except OSError as error:
        if error.errno in _FULL:
            return False
        raise
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()
    return True
