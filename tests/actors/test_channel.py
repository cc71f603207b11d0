"""The channel between a scheduler and an engine process, over real sockets."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.channel import Answer, Door, EngineChannel, Frames, Order, framed
from actors.engine_server import MAX_STRANGERS, EngineServer
from services.started import Started, finished

HERE = "127.0.0.1"
BIG = 3 << 20  # bytes, more than any socket buffers
OTHER_USER = "import os, socket, time; os.setuid(65534); c = socket.socket(socket.AF_UNIX)"


class Owner:
    """A scheduler's end of a channel that keeps what it receives."""

    def __init__(self) -> None:
        self.answers: asyncio.Queue[Answer] = asyncio.Queue()
        self.closed = asyncio.Event()
        self.channel = EngineChannel(self.answers.put_nowait, self.closed.set)

    def send(self, iteration: bytes) -> None:
        self.channel.send(framed(Order(iteration, [])))

    async def result(self) -> bytes:
        answer = await self.answers.get()
        assert answer.result is not None, answer.error
        return answer.result


async def connect(door: Door) -> Owner:
    owner = Owner()
    await owner.channel.connect(door)
    return owner


def echo(iteration: bytes, missed: list[bytes]) -> Started[bytes]:
    return finished(iteration)


def open_door(server: EngineServer, host: str = "") -> Door:
    return server.call(lambda: server.open(host))


def replace_owner(server: EngineServer) -> Door:
    server.call(lambda: server.dismiss("epoch 1:a is over"))
    return open_door(server)


@pytest.fixture(params=["", HERE], ids=["unix", "tcp"])
def host(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@settings(max_examples=50)
@given(st.lists(st.binary(max_size=40)), st.lists(st.integers(1, 30), min_size=1))
def test_messages_are_whole_however_they_arrive(messages: list[bytes], pieces: list[int]) -> None:
    data = b"".join(framed(Order(message, [])) for message in messages)
    frames, found, at = Frames(), [], 0
    while at < len(data):
        size = pieces[at % len(pieces)]
        found += list(frames.feed(data[at : at + size]))
        at += size
    assert [framed(Order(message, []))[4:] for message in messages] == found


async def test_answers_come_in_the_order_of_the_orders(host: str) -> None:
    owner = await connect(open_door(EngineServer(echo), host))
    sent = [b"%d" % number for number in range(200)]
    for message in sent:
        owner.send(message)
    assert [await owner.result() for _ in sent] == sent


async def test_big_messages_both_ways(host: str) -> None:
    owner = await connect(open_door(EngineServer(echo), host))
    sent = [os.urandom(BIG), b"small", os.urandom(BIG)]
    for message in sent:
        owner.send(message)
    assert [await owner.result() for _ in sent] == sent


async def test_one_thread_runs_orders_and_calls() -> None:
    names: set[int] = set()

    def run(iteration: bytes, missed: list[bytes]) -> Started[bytes]:
        names.add(threading.get_ident())
        return finished(iteration)

    server = EngineServer(run)
    owner = await connect(open_door(server))
    owner.send(b"1")
    await owner.result()
    names.add(server.call(threading.get_ident))
    assert len(names) == 1
    assert threading.get_ident() not in names


def test_a_call_that_raises_raises_here() -> None:
    server = EngineServer(echo)
    with pytest.raises(ZeroDivisionError):
        server.call(lambda: 1 // 0)
    assert server.call(lambda: 1) == 1


@pytest.mark.parametrize("ranks", [False, True], ids=["one rank", "several ranks"])
async def test_a_call_waits_for_the_order_that_runs_and_goes_before_the_next(ranks: bool) -> None:
    """One of several ranks runs all orders that it has first: another rank may wait for it in one of them."""
    began, go_on = threading.Event(), threading.Event()
    done: list[bytes] = []

    def run(iteration: bytes, missed: list[bytes]) -> Started[bytes]:
        began.set()
        assert go_on.wait(60)
        done.append(iteration)
        return finished(iteration)

    server = EngineServer(run, finish=ranks)
    first = await connect(open_door(server))
    first.send(b"1")
    await asyncio.to_thread(began.wait, 60)
    first.send(b"2")
    first.send(b"2")
    serving = asyncio.create_task(asyncio.to_thread(replace_owner, server))
    while not server._calls:  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0.001)
    assert not serving.done()
    go_on.set()
    second = await connect(await serving)
    expected = [b"1", b"2", b"2"] if ranks else [b"1"]
    assert done == expected
    assert [await first.result() for _ in expected] == expected
    assert await first.answers.get() == Answer(None, "epoch 1:a is over", stale=True)
    await first.closed.wait()
    first.send(b"3")
    second.send(b"4")
    assert await second.result() == b"4"
    assert done == [*expected, b"4"]


class Device:
    """Ends the work that it was given when it is told. `log` has what was started and read, in order."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.ended: set[bytes] = set()
        self.fails: set[bytes] = set()

    def start(self, iteration: bytes, missed: list[bytes]) -> Started[bytes]:
        self.log.append(f"start {iteration.decode()}")
        if iteration == b"bad":
            raise ValueError(iteration)
        return Started(lambda: iteration in self.ended, lambda: self._read(iteration))

    def _read(self, iteration: bytes) -> bytes:
        self.log.append(f"read {iteration.decode()}")
        if iteration in self.fails:
            raise ValueError(iteration)
        return iteration

    async def until(self, *log: str) -> None:
        async with asyncio.timeout(60):
            while self.log != list(log):  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.001)


async def test_an_order_starts_while_a_device_runs_the_one_before() -> None:
    device = Device()
    owner = await connect(open_door(EngineServer(device.start)))
    owner.send(b"1")
    owner.send(b"2")
    await device.until("start 1", "start 2")
    device.ended.add(b"1")
    assert await owner.result() == b"1"
    owner.send(b"3")
    await device.until("start 1", "start 2", "read 1", "start 3")
    device.ended |= {b"2", b"3"}
    assert [await owner.result() for _ in range(2)] == [b"2", b"3"]


async def test_a_fault_that_comes_late_ends_the_channel_without_an_answer() -> None:
    """Neither to its own order nor to those behind it."""
    device = Device()
    device.fails.add(b"2")
    owner = await connect(open_door(EngineServer(device.start)))
    for order in (b"1", b"2", b"3"):
        owner.send(order)
    await device.until("start 1", "start 2", "start 3")
    device.ended |= {b"1", b"2", b"3"}
    assert await owner.result() == b"1"
    last = await owner.answers.get()
    assert last.result is None
    assert "ValueError" in last.error
    await owner.closed.wait()
    assert "read 3" not in device.log


async def test_orders_before_one_that_cannot_start_are_answered() -> None:
    device = Device()
    owner = await connect(open_door(EngineServer(device.start)))
    owner.send(b"1")
    owner.send(b"bad")
    assert await owner.result() == b"1"
    assert "ValueError" in (await owner.answers.get()).error


async def test_a_new_owner_waits_for_the_device() -> None:
    device = Device()
    server = EngineServer(device.start)
    first = await connect(open_door(server))
    first.send(b"1")
    await device.until("start 1")
    second = await connect(await asyncio.to_thread(replace_owner, server))
    assert device.log == ["start 1", "read 1"]
    assert await first.answers.get() == Answer(None, "epoch 1:a is over", stale=True)
    second.send(b"2")
    device.ended.add(b"2")
    assert await second.result() == b"2"


async def test_an_owner_that_does_not_read_gives_way() -> None:
    server = EngineServer(lambda iteration, missed: finished(bytes(BIG)))
    door = open_door(server)
    with socket.socket(socket.AF_UNIX) as stopped:
        stopped.connect(door.address)
        stopped.sendall(door.secret + framed(Order(b"1", [])))
        assert stopped.recv(1)
        second = await connect(await asyncio.to_thread(replace_owner, server))
        second.send(b"2")
        assert len(await second.result()) == BIG


async def test_half_an_answer_is_not_completed_by_a_last_word() -> None:
    answer = os.urandom(BIG)
    server = EngineServer(lambda iteration, missed: finished(answer))
    door = open_door(server)
    with socket.socket(socket.AF_UNIX) as slow:
        slow.connect(door.address)
        slow.sendall(door.secret + framed(Order(b"1", [])))
        received = slow.recv(1)

        def read_and_dismiss() -> bytes:
            read = slow.recv(BIG)  # there is room for a last word after it
            server.dismiss("the owner is dismissed")
            return read

        received += await asyncio.to_thread(server.call, read_and_dismiss)
        while rest := slow.recv(BIG):
            received += rest
    assert framed(Answer(answer)).startswith(received)


async def test_an_owner_that_dies_in_the_middle_of_an_order() -> None:
    done: list[bytes] = []

    def run(iteration: bytes, missed: list[bytes]) -> Started[bytes]:
        done.append(iteration)
        return finished(iteration)

    server = EngineServer(run)
    door = open_door(server)
    with socket.socket(socket.AF_UNIX) as dies:
        dies.connect(door.address)
        dies.sendall(door.secret + framed(Order(b"1", []))[:-1])
    second = await connect(await asyncio.to_thread(replace_owner, server))
    second.send(b"2")
    assert await second.result() == b"2"
    assert done == [b"2"]


async def test_only_one_connection_with_the_secret_is_let_in(host: str) -> None:
    server = EngineServer(echo)
    door = open_door(server, host)
    strangers = [door.socket() for _ in range(MAX_STRANGERS + 1)]
    for stranger in strangers:
        stranger.settimeout(60)
        stranger.connect(door.address)
    assert strangers[0].recv(1) == b""  # the oldest gives way
    strangers[1].sendall(bytes(len(door.secret)))
    assert strangers[1].recv(1) == b""
    strangers[2].sendall(door.secret[:-1])
    owner = await connect(door)
    owner.send(b"1")
    assert await owner.result() == b"1"
    for stranger in strangers[2:]:
        assert _ends(stranger)
    with pytest.raises(ConnectionRefusedError):
        await connect(door)
    for stranger in strangers:
        stranger.close()


def _ends(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a process of another user")
@pytest.mark.parametrize("listens", [False, True])
async def test_processes_of_other_users_are_refused(listens: bool, other_user: Callable[[str], str]) -> None:
    door = open_door(EngineServer(echo))
    connects = f"c.settimeout(30); c.connect({door.address!r}); print(c.recv(1))"
    if not listens:
        assert other_user(connects) == "b''"
        return
    name = other_user("c.bind('\\0orca-test-%d' % os.getpid()); c.listen(); print('orca-test-%d' % os.getpid())")
    with pytest.raises(PermissionError):
        await connect(Door("", name, b"secret"))


@pytest.fixture
def other_user() -> Iterator[Callable[[str], str]]:
    """Runs a line of Python, with a socket `c`, as another user; returns the first line that it prints."""
    started: list[subprocess.Popen[str]] = []

    def run(line: str) -> str:
        program = f"{OTHER_USER}\n{line}\nprint(flush=True)\ntime.sleep(60)"
        process = subprocess.Popen([sys.executable, "-S", "-c", program], stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        return process.stdout.readline().strip()

    yield run
    for process in started:
        process.kill()
        process.wait()
