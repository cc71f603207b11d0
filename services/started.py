"""Started: work that was started and goes on elsewhere, such as on a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class Started(Generic[T]):
    """`done` says whether `result` returns without waiting. `result` may be called again; it raises what the work has
    raised, and `done` never does. Both belong to the thread that started the work."""

    done: Callable[[], bool]
    result: Callable[[], T]

    def then(self, change: Callable[[T], U]) -> Started[U]:
        """The work whose result is changed so, each time it is asked for."""
        return Started(self.done, lambda: change(self.result()))


def finished(value: T) -> Started[T]:
    """Work that is done."""
    return Started(lambda: True, lambda: value)
