"""Which request a fault of the scheduler is about.

Nothing is recorded while all is well, so that iterations pay nothing for it: the frames of the exception's traceback
still hold the request that was being handled.
"""

from __future__ import annotations

from collections.abc import Collection
from types import FrameType

# What the scheduler and the packing of messages call the request they handle; `self` is a request in its own methods.
NAMES = ("entry", "claim", "commit", "new", "head", "self")


def blamed(error: BaseException, known: Collection[str]) -> str | None:
    """The id of the request, one of `known`, that was handled where `error` was raised, looking from the innermost
    frame outwards; None where no frame has one."""
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
