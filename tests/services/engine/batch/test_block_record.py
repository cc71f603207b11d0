"""What the record says of a block is true whenever the process that writes it is killed."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.engine.batch.block_names import BYTES, LONGEST_NAME, BlockNames, BlockRecord
from services.messages import Iteration, NewRequest
from services.requests import SamplingParams

BLOCKS = 4
WRITES = st.lists(st.tuples(st.integers(0, BLOCKS - 1), st.binary(min_size=1, max_size=LONGEST_NAME)), max_size=6)


class Killed(Exception):
    pass


class Blocks:
    """Blocks that contain their names, in memory that outlives the processes which write them."""

    def __init__(self) -> None:
        self.memory = np.zeros((BLOCKS, BYTES), np.uint8)
        self.contents: list[list[bytes]] = [[b"", b""] for _ in range(BLOCKS)]

    def write(self, record: BlockRecord, block: int, name: bytes) -> None:
        content = self.contents[block]
        record.begin(block)
        content[0] = name
        content[1] = name
        record.fill(block, name)

    def process(self, writes: list[tuple[int, bytes]], kill_at: int) -> bool:
        """A process that is killed before it executes line number `kill_at`. Returns whether it was."""
        lines = 0
        watched = {Blocks.write.__code__, BlockRecord.begin.__code__, BlockRecord.fill.__code__}

        def trace(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal lines
            if frame.f_code not in watched:
                return None
            if event == "line":
                if lines == kill_at:
                    raise Killed
                lines += 1
            return trace

        record, before = BlockRecord(self.memory), sys.gettrace()
        sys.settrace(trace)
        try:
            for block, name in writes:
                self.write(record, block, name)
        except Killed:
            return True
        finally:
            sys.settrace(before)
        return False

    def check(self) -> dict[int, bytes]:
        full = BlockRecord(self.memory).full()
        for block, name in full.items():
            assert self.contents[block] == [name, name]
        assert not full.keys() & set(BlockRecord(self.memory).unknown())
        return full


@settings(max_examples=15)
@given(WRITES, WRITES)
def test_a_block_is_named_only_while_it_is_complete(
    writes: list[tuple[int, bytes]], later: list[tuple[int, bytes]]
) -> None:
    """For each line at which the process can be killed; another process goes on afterwards."""
    kill_at, killed = 0, True
    while killed:
        blocks = Blocks()
        killed = blocks.process(writes, kill_at)
        full = blocks.check()
        blocks.process(later, -1)
        assert blocks.check() == {b: n for b, n in full.items() if b not in dict(later)} | dict(later)
        kill_at += 1
    assert full == dict(writes)


def test_names_begin_with_those_of_the_record() -> None:
    memory = np.zeros((BLOCKS, BYTES), np.uint8)
    names = BlockNames(4, BlockRecord(memory))
    new = NewRequest("a/0", [5] * 8, 8, SamplingParams(4))
    names.begin(Iteration("e", 1, {"a/0": 8}, [new], {"a/0": [3, 1, 2]}))
    names.begin(Iteration("e", 2, {"a/0": 1}, full_blocks={3: b"x", 1: b"y"}))
    names.fail([1])
    assert BlockNames(4, BlockRecord(memory)).as_dict() == {3: b"x"}
    assert BlockRecord(memory).unknown() == [1, 2]


@pytest.mark.parametrize("name", [b"", bytes(LONGEST_NAME + 1)])
def test_names_have_a_bounded_length(name: bytes) -> None:
    with pytest.raises(AssertionError):
        BlockRecord(np.zeros((BLOCKS, BYTES), np.uint8)).fill(0, name)
