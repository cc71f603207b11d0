"""The iterations of an engine's ranks, from the client over real channels."""

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

from actors import engine_client
from actors.channel import Answer, Door, framed
from actors.engine import EngineStatus
from actors.engine_client import EngineClient, EngineProcess
from actors.engine_server import EngineServer
from actors.liveness import Lifeline
from services.errors import EngineLost, ModelError, NoRoom, StaleEpoch
from services.messages import Iteration, IterationResult
from services.started import Started, finished
from services.wire import pack, unpack

HERE = "127.0.0.1"
DIES = """
import os, sys
from actors.engine_server import EngineServer
from actors.liveness import Lifeline
server = EngineServer(lambda iteration, missed: os.kill(os.getpid(), 9))
door = server.call(lambda: server.open(""))
print(door.name, door.secret.hex(), Lifeline("127.0.0.1").address, flush=True)
sys.stdin.read()
"""


class Rank:
    """The engine of a rank: `tokens` are in its results. Fails in iteration `fails`."""

    def __init__(self, tokens: dict[str, int], epoch: str = "1:a", fails: int = -1) -> None:
        self.missed: list[list[int]] = []  # the steps of the results, by iteration
        self._tokens, self._epoch, self._fails = tokens, epoch, fails
        self._server = EngineServer(self._start)

    def open(self) -> Door:
        return self._server.call(lambda: self._server.open(""))

    def serve(self, epoch: str) -> Door:
        self._epoch = epoch
        self._server.call(lambda: self._server.dismiss("the engine serves another epoch"))
        return self.open()

    def _start(self, packed: bytes, missed: list[bytes]) -> Started[bytes]:
        iteration = unpack(Iteration, packed)
        if iteration.epoch != self._epoch:
            raise StaleEpoch(f"the engine's is {self._epoch}")
        if iteration.step == self._fails:
            raise ValueError("no such request")
        self.missed.append([unpack(IterationResult, result).step for result in missed])
        return finished(pack(IterationResult(iteration.epoch, iteration.step, self._tokens)))


async def client_to(*doors: Door, sampler: int = 0, lifeline: str = "", pid: int = 0) -> EngineClient:
    """A client of ranks behind these doors, which live in this process unless `lifeline` is another one's."""
    status = EngineStatus("engine-0-0-a", "", None, pid, HERE, lifeline or Lifeline(HERE).address, "", False, False)
    client = EngineClient([EngineProcess(status, None) for _ in doors], sampler, HERE)  # type: ignore[arg-type]
    await client.connect(doors)
    return client


def iteration(step: int, epoch: str = "1:a") -> Iteration:
    return Iteration(epoch, step, {"r/0": 1})


async def test_iterations_in_flight_end_in_order() -> None:
    client = await client_to(Rank({"r/0": 7}).open())
    assert client.first_result == 0.0
    results = await asyncio.gather(*(client.start(iteration(step)) for step in range(10)))
    assert [result.step for result in results] == list(range(10))
    assert results[0].tokens == {"r/0": 7}
    assert client.first_result > 0.0


async def test_each_rank_gets_the_results_since_its_last_iteration() -> None:
    ranks = [Rank({}), Rank({"r/0": 7})]
    client = await client_to(*(rank.open() for rank in ranks), sampler=1)
    first = await client.start(iteration(0))
    together = client.start(iteration(1)), client.start(iteration(2))
    await asyncio.gather(*together)
    await client.start(iteration(3))
    assert first.tokens == {"r/0": 7}
    for rank in ranks:
        assert rank.missed == [[], [0], [], [1, 2]]


async def test_one_rank_needs_no_results() -> None:
    rank = Rank({"r/0": 7})
    client = await client_to(rank.open())
    for step in range(3):
        await client.start(iteration(step))
    assert rank.missed == [[], [], []]


@pytest.mark.parametrize("error", [NoRoom("others have it"), ModelError("no file")])
async def test_a_rank_that_waits_for_one_that_cannot_load_loses_the_engine(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would wait at their meeting, with its weights, until its owner gives up."""
    monkeypatch.setattr(engine_client, "TOGETHER", 0.1)
    client, never = await client_to(Rank({}).open(), Rank({}).open()), asyncio.Event()

    async def refuses() -> None:
        raise error

    async def dies() -> None:
        await asyncio.sleep(0.01)
        raise EngineLost("it died")

    async def waits() -> None:
        await never.wait()

    with pytest.raises(type(error)):
        await client._answers([refuses(), refuses()])
    with pytest.raises(EngineLost, match="it died"):  # it is killed, in whatever state it is
        await client._answers([refuses(), dies()])
    with pytest.raises(EngineLost, match=f"only some ranks can load: {error}"):
        await client._answers([waits(), refuses()])
    client.close()


async def test_an_iteration_of_another_epoch_is_refused() -> None:
    client = await client_to(Rank({}, epoch="2:b").open())
    with pytest.raises(StaleEpoch, match="the engine's is 2:b"):
        await client.start(iteration(0))
    with pytest.raises(StaleEpoch):
        await client.start(iteration(1))


async def test_the_owner_before_gets_stale_epoch() -> None:
    rank = Rank({"r/0": 7})
    first = await client_to(rank.open())
    await first.start(iteration(0))
    second = await client_to(await asyncio.to_thread(rank.serve, "2:b"))
    with pytest.raises(StaleEpoch, match="another epoch"):
        await first.start(iteration(1))
    assert (await second.start(iteration(0, "2:b"))).tokens == {"r/0": 7}


async def test_an_exception_of_the_engine_loses_it() -> None:
    rank = Rank({}, fails=1)
    client = await client_to(rank.open())
    results = [client.start(iteration(step)) for step in range(3)]
    assert (await results[0]).step == 0
    for result in results[1:]:
        with pytest.raises(EngineLost, match="no such request"):
            await result
    assert len(rank.missed) == 1


async def test_an_exception_of_one_rank_loses_the_engine() -> None:
    client = await client_to(Rank({"r/0": 7}).open(), Rank({}, fails=0).open())
    with pytest.raises(EngineLost, match="no such request"):
        await client.start(iteration(0))


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
    name, secret, lifeline = dies.stdout.readline().split()
    client = await client_to(Door("", name, bytes.fromhex(secret)), lifeline=lifeline, pid=dies.pid)
    with pytest.raises(EngineLost, match=f"engine process {dies.pid} died"):
        await client.start(iteration(0))
    assert client.gone
    assert await asyncio.to_thread(dies.wait) == -signal.SIGKILL


async def test_a_channel_that_ends_within_an_answer_loses_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_client, "DEATH_NOTICE", 0.01)
    door = Door("", f"orca-test-{os.getpid()}", b"secret")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(door.address)
        listener.listen()
        client = await client_to(door)
        result = client.start(iteration(0))
        engine, _ = listener.accept()
        engine.sendall(framed_half())
        engine.close()
        with pytest.raises(EngineLost, match="closed its channel"):
            await result


def framed_half() -> bytes:
    whole = framed(Answer(pack(IterationResult("1:a", 0, {"r/0": 7}))))
    return whole[: len(whole) // 2]


async def test_closing_ends_what_is_in_flight() -> None:
    client = await client_to(Rank({}).open())
    result = client.start(iteration(0))
    client.close()
    with pytest.raises(EngineLost, match="closed"):
        await result


async def test_an_engine_that_is_gone_cannot_be_reached() -> None:
    with pytest.raises(OSError, match="refused"):
        await client_to(Door("", f"orca-nobody-{os.getpid()}", b"secret"))
