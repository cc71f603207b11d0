"""The iterations of an engine's ranks, over real channels."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors import rank_channels
from actors.channel import Answer, Door, framed
from actors.engine_thread import EngineThread
from actors.rank_channels import RankChannels
from services.errors import EngineLost, StaleEpoch
from services.messages import Iteration, IterationResult
from services.wire import pack, unpack

DIES = """
import os, sys
from actors.engine_thread import EngineThread
thread = EngineThread(lambda iteration, missed: os.kill(os.getpid(), 9))
door = thread.call(lambda: thread.open(""))
print(door.name, door.secret.hex(), flush=True)
sys.stdin.read()
"""


class Rank:
    """The engine of a rank: `tokens` are in its results. Fails in iteration `fails`."""

    def __init__(self, tokens: dict[str, int], epoch: str = "1:a", fails: int = -1) -> None:
        self.missed: list[list[int]] = []  # the steps of the results, by iteration
        self._tokens, self._epoch, self._fails = tokens, epoch, fails
        self._thread = EngineThread(self._run)

    def open(self) -> Door:
        return self._thread.call(lambda: self._thread.open(""))

    def serve(self, epoch: str) -> Door:
        self._epoch = epoch
        self._thread.call(lambda: self._thread.dismiss("the engine serves another epoch"))
        return self.open()

    def _run(self, packed: bytes, missed: list[bytes]) -> bytes:
        iteration = unpack(Iteration, packed)
        if iteration.epoch != self._epoch:
            raise StaleEpoch(f"the engine's is {self._epoch}")
        if iteration.step == self._fails:
            raise ValueError("no such request")
        self.missed.append([unpack(IterationResult, result).step for result in missed])
        return pack(IterationResult(iteration.epoch, iteration.step, self._tokens))


async def channels_to(*doors: Door, sampler: int = 0) -> RankChannels:
    channels = RankChannels(len(doors), sampler)
    await channels.connect(doors)
    return channels


def iteration(step: int, epoch: str = "1:a") -> Iteration:
    return Iteration(epoch, step, {"r/0": 1})


async def test_iterations_in_flight_end_in_order() -> None:
    channels = await channels_to(Rank({"r/0": 7}).open())
    assert channels.first_result == 0.0
    results = await asyncio.gather(*(channels.start(iteration(step)) for step in range(10)))
    assert [result.step for result in results] == list(range(10))
    assert results[0].tokens == {"r/0": 7}
    assert channels.first_result > 0.0


async def test_each_rank_gets_the_results_since_its_last_iteration() -> None:
    ranks = [Rank({}), Rank({"r/0": 7})]
    channels = await channels_to(*(rank.open() for rank in ranks), sampler=1)
    first = await channels.start(iteration(0))
    together = channels.start(iteration(1)), channels.start(iteration(2))
    await asyncio.gather(*together)
    await channels.start(iteration(3))
    assert first.tokens == {"r/0": 7}
    for rank in ranks:
        assert rank.missed == [[], [0], [], [1, 2]]


async def test_one_rank_needs_no_results() -> None:
    rank = Rank({"r/0": 7})
    channels = await channels_to(rank.open())
    for step in range(3):
        await channels.start(iteration(step))
    assert rank.missed == [[], [], []]


async def test_an_iteration_of_another_epoch_is_refused() -> None:
    channels = await channels_to(Rank({}, epoch="2:b").open())
    with pytest.raises(StaleEpoch, match="the engine's is 2:b"):
        await channels.start(iteration(0))
    with pytest.raises(StaleEpoch):
        await channels.start(iteration(1))


async def test_the_owner_before_gets_stale_epoch() -> None:
    rank = Rank({"r/0": 7})
    first = await channels_to(rank.open())
    await first.start(iteration(0))
    second = await channels_to(await asyncio.to_thread(rank.serve, "2:b"))
    with pytest.raises(StaleEpoch, match="another epoch"):
        await first.start(iteration(1))
    assert (await second.start(iteration(0, "2:b"))).tokens == {"r/0": 7}


async def test_an_exception_of_the_engine_loses_it() -> None:
    rank = Rank({}, fails=1)
    channels = await channels_to(rank.open())
    results = [channels.start(iteration(step)) for step in range(3)]
    assert (await results[0]).step == 0
    for result in results[1:]:
        with pytest.raises(EngineLost, match="no such request"):
            await result
    assert len(rank.missed) == 1


async def test_an_exception_of_one_rank_loses_the_engine() -> None:
    channels = await channels_to(Rank({"r/0": 7}).open(), Rank({}, fails=0).open())
    with pytest.raises(EngineLost, match="no such request"):
        await channels.start(iteration(0))


@pytest.fixture
def dies() -> Iterator[subprocess.Popen[str]]:
    """A process whose engine kills it in its first iteration."""
    command = [sys.executable, "-c", DIES]
    process = subprocess.Popen(
        command, cwd=Path(__file__).parents[2], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    yield process
    process.kill()
    process.wait()


async def test_the_death_of_a_process_is_told_by_its_lifeline(dies: subprocess.Popen[str]) -> None:
    assert dies.stdout is not None
    name, secret = dies.stdout.readline().split()
    channels = await channels_to(Door("", name, bytes.fromhex(secret)))
    result = channels.start(iteration(0))
    assert await asyncio.to_thread(dies.wait) == -signal.SIGKILL
    while channels._closing is None:  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0.001)
    assert not result.done()
    channels.fail(EngineLost(f"engine process {dies.pid} died"))
    with pytest.raises(EngineLost, match=f"{dies.pid} died"):
        await result


async def test_a_channel_that_ends_within_an_answer_loses_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_channels, "DEATH_NOTICE", 0.01)
    door = Door("", f"orca-test-{os.getpid()}", b"secret")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(door.address)
        listener.listen()
        channels = await channels_to(door)
        result = channels.start(iteration(0))
        engine, _ = listener.accept()
        engine.sendall(framed_half())
        engine.close()
        with pytest.raises(EngineLost, match="closed its channel"):
            await result


def framed_half() -> bytes:
    whole = framed(Answer(pack(IterationResult("1:a", 0, {"r/0": 7}))))
    return whole[: len(whole) // 2]


async def test_closing_ends_what_is_in_flight() -> None:
    channels = await channels_to(Rank({}).open())
    result = channels.start(iteration(0))
    channels.close()
    with pytest.raises(EngineLost, match="closed"):
        await result


async def test_an_engine_that_is_gone_cannot_be_reached() -> None:
    with pytest.raises(OSError, match="refused"):
        await channels_to(Door("", f"orca-nobody-{os.getpid()}", b"secret"))
