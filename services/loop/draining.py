"""Draining: how a surplus seat gives up its requests, so that its engine can be removed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf


class Draining:
    """A surplus seat gets no requests (see `services/seats.py`). Those that it has may finish for `timeout` seconds;
    then they go back to the pool with their tokens. Times are of the loop's clock."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._until = inf

    def told(self, surplus: bool, now: float) -> None:
        """The pool has said whether the seat is surplus. It may be wanted again before it is drained."""
        if not surplus:
            self._until = inf
        elif self._until == inf:
            self._until = now + self._timeout

    def is_over(self, now: float, held: Callable[[], Sequence[str]]) -> bool:
        """Whether the seat can be given back: it is surplus, and holds no request or has had its time."""
        return self._until < inf and (now >= self._until or not held())
