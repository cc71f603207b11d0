"""Watcher: a slow reader of the live feed loses the oldest batches, and is told how many."""

from __future__ import annotations

import asyncio
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.live.feed import MOST_BATCHES, MOST_BYTES, Watcher, event


def events_in(taken: bytes) -> list[tuple[str, object]]:
    found = []
    for frame in taken.decode().split("\n\n")[:-1]:
        name, data = frame.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


@settings(max_examples=20)
@given(st.lists(st.integers(0, MOST_BATCHES * 2), max_size=5), st.integers(1, MOST_BYTES))
def test_each_batch_is_taken_once_in_order_or_counted_as_lost(bursts: list[int], size: int) -> None:
    watcher, sent, told = Watcher("t"), 0, 0
    padding = b" " * (size if size > MOST_BYTES // 4 else 1)

    async def read() -> None:
        nonlocal sent, told
        for burst in bursts:
            for _ in range(burst):
                watcher.put(event("iterations", b"%d%b" % (sent, padding)))
                sent += 1
            watcher.put_state(event("state", b"%d" % sent))
            events = events_in(await watcher.take())
            *batches, last = events
            assert last == ("state", sent)
            if batches and batches[0][0] == "lost":
                lost = batches.pop(0)[1]
                assert isinstance(lost, dict)
                told += lost["batches"]
            assert batches == [("iterations", number) for number in range(told, sent)]
            assert len(batches) <= MOST_BATCHES
            told += len(batches)

    asyncio.run(read())


async def test_a_state_replaces_the_one_before() -> None:
    watcher = Watcher("t")
    watcher.put_state(b"old")
    watcher.put_state(b"new")
    assert await watcher.take() == b"new"


async def test_a_reader_waits_for_an_event_and_learns_of_the_end() -> None:
    watcher = Watcher("t")
    taking = asyncio.create_task(watcher.take())
    await asyncio.sleep(0)
    assert not taking.done()
    watcher.put(b"last")
    watcher.end()
    assert await taking == b"last"
    assert watcher.ended
    assert await watcher.take() == b""
