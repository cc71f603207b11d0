"""BlockNames: which KV blocks of an engine are full, and of which tokens. BlockRecord: what is in each block, in memory
that may outlive the process. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any

import numpy as np

from services.messages import Iteration

LONGEST_NAME = 32  # bytes
BYTES = 2 + LONGEST_NAME  # of a block: its state, the length of its name, and the name


class _State(IntEnum):
    EMPTY = 0  # never written
    WRITTEN = 1  # contents unknown
    FULL = 2  # contents as named


class BlockRecord:
    """A block counts as full by its state alone. It changes before the block or its name is written, and after the name
    is. A process may be killed between any two of these writes.
    """

    def __init__(self, memory: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        """`memory` [blocks, BYTES] contains zeros, or what an earlier process has left."""
        assert memory.shape[1] == BYTES, memory.shape
        self._states, self._lengths, self._names = memory[:, 0], memory[:, 1], memory[:, 2:]

    def begin(self, block: int) -> None:
        """Note that a request is about to write a block."""
        self._states[block] = _State.WRITTEN

    def fill(self, block: int, name: bytes) -> None:
        """Note that a block is full, and nothing writes it until the next `begin`. `name` has 1 to 32 bytes."""
        assert 0 < len(name) <= LONGEST_NAME, name
        self._states[block] = _State.WRITTEN
        self._lengths[block] = len(name)
        self._names[block, : len(name)] = np.frombuffer(name, np.uint8)
        self._states[block] = _State.FULL

    def clear(self) -> None:
        """Note that the contents of all blocks are unknown."""
        self._states[:] = _State.WRITTEN

    def full(self) -> dict[int, bytes]:
        """The names of the full blocks."""
        found: list[int] = np.flatnonzero(self._states == _State.FULL).tolist()
        return {block: self._names[block, : self._lengths[block]].tobytes() for block in found}

    def unknown(self) -> list[int]:
        """The blocks that were written and are not full."""
        found: list[int] = np.flatnonzero(self._states == _State.WRITTEN).tolist()
        return found


class BlockNames:
    """The names of full blocks, as the scheduler has sent them. They outlive the scheduler: the next owner of the
    engine begins with these blocks as its prefix cache. With a record in shared memory they also outlive the engine's
    process: the next one begins with those that the record names.

    A block has a name only while it contains the keys and values of exactly the tokens that the name stands for. It
    gets its name after the iteration that filled it, and loses it before another request writes to it, or if the
    request fails that wrote it.
    """

    def __init__(self, block_size: int, record: BlockRecord | None = None) -> None:
        self._block_size = block_size
        self._record = record
        self._names: dict[int, bytes] = record.full() if record else {}
        self._failed: set[int] = set()  # blocks of failed requests; iterations sent before may still name them

    def begin(self, iteration: Iteration) -> None:
        """Forget the names of the blocks that this iteration gives to requests to write, and learn those of the blocks
        that earlier ones have filled. Must be called before the iteration runs.
        """
        if not (iteration.new_blocks or iteration.full_blocks):
            return
        computed = {new.id: new.num_computed_tokens // self._block_size for new in iteration.new}
        for id, blocks in iteration.new_blocks.items():
            for block in blocks[computed.get(id, 0) :]:
                self._forget(block)
                self._failed.discard(block)
                assert block not in iteration.full_blocks, f"block {block} is full, and {id} is to write it"
        for block, name in iteration.full_blocks.items():
            if block not in self._failed:
                self._names[block] = name
                if self._record:
                    self._record.fill(block, name)

    def fail(self, blocks: Iterable[int]) -> None:
        """Forget the names of these blocks of a failed request. They get none until another request writes them."""
        for block in blocks:
            self._failed.add(block)
            self._forget(block)

    def clear(self) -> None:
        """Forget the names of all blocks: their contents are about to go."""
        self._names.clear()
        self._failed.clear()
        if self._record:
            self._record.clear()

    def as_dict(self) -> dict[int, bytes]:
        """Return the name of each block that has one, the one named longest ago first."""
        return dict(self._names)

    def _forget(self, block: int) -> None:
        self._names.pop(block, None)
        if self._record:
            self._record.begin(block)


def common(ranks: Sequence[dict[int, bytes]]) -> dict[int, bytes]:
    """Return the names that all ranks of an engine have. One may have run an iteration more than another, and only the
    one that samples knows at once that a request has failed.
    """
    first, *others = ranks
    return {block: name for block, name in first.items() if all(names.get(block) == name for names in others)}
