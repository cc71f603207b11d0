"""Admission: how many KV blocks a request holds, from when on."""

from __future__ import annotations

from typing import Protocol

from services.scheduling.block_pool import BlockPool
from services.scheduling.request_entry import Entry


class Admission(Protocol):
    whole: bool  # a request holds blocks for its whole length

    def blocks(self, entry: Entry) -> int:
        """KV blocks it takes when it starts."""
        ...

    def margin(self, running: int) -> int:
        """KV blocks that must stay free when one more starts beside so many."""
        ...


class Reserve:
    """The paper's: blocks for prompt + max_new_tokens (Algorithm 1, line 24), or for the model's length where that
    ends the request earlier. One that has started never lacks any."""

    whole = True

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool

    def blocks(self, entry: Entry) -> int:
        return self._pool.blocks_for(entry.last)

    def margin(self, running: int) -> int:
        return 0


class OnDemand:
    """Blocks for the tokens there are, more as they fill. Each request that runs finds one more block free when
    another starts: what starts is not preempted at once."""

    whole = False

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool

    def blocks(self, entry: Entry) -> int:
        return self._pool.blocks_for(entry.num_tokens)

    def margin(self, running: int) -> int:
        return running
