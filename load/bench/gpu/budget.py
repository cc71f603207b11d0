"""Budget: the seconds that a run may take."""

from __future__ import annotations

import time
from collections.abc import Callable


class Budget:
    """Begins when it is made. `clock` is in seconds."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = clock() + seconds

    @property
    def left(self) -> float:
        """Seconds; 0 once it is spent."""
        return max(0.0, self._end - self._clock())

    @property
    def spent(self) -> bool:
        return self.left == 0.0

    def share(self, parts: int) -> float:
        """What each of so many parts may take of what is left."""
        assert parts > 0, f"{parts = }"
        return self.left / parts
