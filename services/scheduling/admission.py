"""Admission: how many KV blocks a request takes when it starts."""

from __future__ import annotations

from typing import Protocol

from services.scheduling.block_pool import BlockPool
from services.scheduling.request_entry import RequestEntry


class Admission(Protocol):
    whole: bool  # a request takes blocks for its whole length

    def num_blocks(self, entry: RequestEntry) -> int:
        """Return how many KV blocks the request takes when it starts."""
        ...

    def margin(self, num_running: int) -> int:
        """Return how many KV blocks must stay free when a request starts beside `num_running` others."""
        ...


class Reserve:
    """The paper's admission: blocks for prompt + max_new_tokens (Algorithm 1, line 24), or for the model's length if
    that is shorter. A request that has started never lacks a block.
    """

    whole = True

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool

    def num_blocks(self, entry: RequestEntry) -> int:
        return self._pool.blocks_for(entry.max_tokens)

    def margin(self, num_running: int) -> int:
        return 0


class OnDemand:
    """Blocks for the current tokens, and more as they fill. One free block must be left for each running request, so
    that a request is not preempted just after it has started.
    """

    whole = False

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool

    def num_blocks(self, entry: RequestEntry) -> int:
        return self._pool.blocks_for(entry.num_tokens)

    def margin(self, num_running: int) -> int:
        return num_running
