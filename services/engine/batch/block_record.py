"""BlockRecord: what is in each KV block, in memory that may outlive the process."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np

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

    def full(self) -> dict[int, bytes]:
        """The names of the full blocks."""
        found: list[int] = np.flatnonzero(self._states == _State.FULL).tolist()
        return {block: self._names[block, : self._lengths[block]].tobytes() for block in found}

    def unknown(self) -> list[int]:
        """The blocks that were written and are not full."""
        found: list[int] = np.flatnonzero(self._states == _State.WRITTEN).tolist()
        return found
