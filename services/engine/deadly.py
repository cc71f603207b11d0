"""DeadlyToken: a request that kills its engine, injected, to test that it fails alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Container

NO_TOKEN = -1


class DeadlyToken:
    """A token id that an engine does not survive. Without one, every check is one comparison."""

    __slots__ = ("id",)

    def __init__(self, id: int = NO_TOKEN) -> None:
        self.id = id

    def check(self, tokens: Container[int]) -> None:
        """Kill this process, as a crash of the engine would, if it is to compute the deadly token."""
        if self.id != NO_TOKEN and self.id in tokens:
            os.kill(os.getpid(), signal.SIGKILL)
