"""RequestLevelScheduler: the way of Triton + FasterTransformer (paper, section 2), our baseline."""

from __future__ import annotations

from services.messages import Room
from services.scheduling.scheduler import Scheduler


class RequestLevelScheduler(Scheduler):
    """A batch is fixed until its last request ends; only then the next one is claimed and started.

    Two mercies beside a real FasterTransformer: requests that have ended idle instead of being computed on, and
    prompts are not padded to the longest of the batch. What is left is the cost of the fixed batch alone.
    """

    def _admit(self) -> dict[str, list[int]]:
        return {} if self._running else super()._admit()

    def _admit_suspect(self) -> dict[str, list[int]]:
        return {} if self._running else super()._admit_suspect()

    def room(self) -> Room:
        """Room for a whole batch once none runs, or the iteration in flight ends the last of it by length."""
        if all(entry.ends_by_length_next() for entry in self._running):
            return super().room()
        return Room(0, 0, self.blocks.block_size)
