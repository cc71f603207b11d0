"""Observers of an engine loop: they note what it does, for the live page and for traces, and change nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from enum import StrEnum

from services.messages import Claim, Commit, Iteration, IterationResult

log = logging.getLogger(__name__)


class Leaving(StrEnum):
    """Why requests leave a scheduler that has not ended them, and that still owns them."""

    RELEASED = "released"  # the scheduler was stopped and has given its requests back
    ENGINE_LOST = "engine_lost"
    SCHEDULER_FAULT = "scheduler_fault"


class Observer:
    """What an engine loop tells its observers. Each method does nothing, so an observer defines those that it needs."""

    def claimed(self, claims: Sequence[Claim], foreign: Sequence[str]) -> None:
        """Requests came to this scheduler. Those with the ids `foreign` belong to another one."""

    def started(self, iteration: Iteration) -> None:
        """An iteration was sent to the engine."""

    def finished(self, iteration: Iteration, result: IterationResult, seconds: float) -> None:
        """An iteration has finished, `seconds` after its start. This is called while the engine runs the next one."""

    def committed(self, commits: Sequence[Commit]) -> None:
        """These commits are sent to the pool."""

    def rest(self) -> None:
        """Engine and pool are at work, and the loop is about to wait for them."""

    def close(self, leaving: Leaving | None) -> None:
        """The loop has ended. `leaving` says why the requests that are still here leave; None if another scheduler
        owns them."""


class Observers:
    """Tells several observers. One that raises an exception is not told again, so its defect costs no request."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = list(observers)

    def tell(self, what: Callable[[Observer], None]) -> None:
        for observer in self._observers[:]:
            try:
                what(observer)
            except Exception:
                log.exception("%s failed and is not called again", type(observer).__name__)
                self._observers.remove(observer)
