"""Finds the request that was handled when the scheduler raised an exception.

The request is read from the frames of the traceback, so iterations do not have to record what they handle.
"""

from __future__ import annotations

from collections.abc import Collection
from types import FrameType

# The names of local variables that hold the current request in the scheduler and in the packing of messages; `self` is
# the request in its own methods.
NAMES = ("entry", "claim", "commit", "new", "head", "self")


def find_request(error: BaseException, known: Collection[str]) -> str | None:
    """Return the id of the request that was handled where `error` was raised: the first of the ids `known` that a frame
    holds, from the innermost frame outwards. None if no frame holds one.
    """
    frames: list[FrameType] = []
    traceback = error.__traceback__
    while traceback is not None:
        frames.append(traceback.tb_frame)
        traceback = traceback.tb_next
    for frame in reversed(frames):
        for name in NAMES:
            id = getattr(frame.f_locals.get(name), "id", None)
            if isinstance(id, str) and id in known:
                return id
    return None
