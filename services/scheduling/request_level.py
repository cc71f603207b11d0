"""RequestLevelScheduler: the way of Triton + FasterTransformer (paper, section 2), our baseline."""

from __future__ import annotations

from services.messages import Room
from services.scheduling.scheduler import Scheduler


class RequestLevelScheduler(Scheduler):
    """A batch is fixed until its last request ends; only then the next one is claimed and started.

    Two mercies beside a real FasterTransformer: requests that have ended idle instead of being computed on, and
    prompts are not padded to the longest of the batch. What is left is the cost of the fixed batch alone.
    """

    def _closed(self) -> bool:
        return bool(self._lineup.running)

    def room(self) -> Room:
        """Room for a whole batch once none runs, or the iterations in flight end the last of it by length."""
        if all(entry.closing for entry in self._lineup.running):
            return super().room()
        return Room(0, 0, self.blocks.block_size)
