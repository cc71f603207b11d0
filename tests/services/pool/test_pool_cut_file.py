"""A real server loses the tail of its append-only file, but nothing that a scheduler or gateway still holds."""

import os
import signal
from dataclasses import replace

import pytest
from pool_helpers import FIGURES, NO_ROOM, ROOM, SEAT, STOP, Owner, commit, counts, group, stored, until_done
from pool_servers import ONE_OF_ALL

from load.server import until
from services.messages import Commit, Exchange, Room
from services.pool.pool import RequestPool
from services.pool.server.pool_server import PoolServer


class Server:
    """A server whose file can be cut. Each reply is synced first, so that an offset in the file is a point in time."""

    def __init__(self, binary, folder):
        self.process = PoolServer(binary, folder, "strict")

    async def start(self):
        return await self.process.start()

    @property
    def _file(self):
        folder = self.process.data_dir
        [file] = [*folder.glob("appendonlydir/*.incr.aof"), *folder.glob("appendonly.aof")]
        return file

    def moment(self):
        return self._file.stat().st_size

    async def lose(self, moment, more):
        """Kill the server, cut its file to `more` bytes after the marked offset, and start it again."""
        self.process._supervisor.cancel()
        os.kill(self.process.pid, signal.SIGKILL)
        await until(lambda: not self.process._alive(), every=0.005)
        assert self.moment() > moment + more
        os.truncate(self._file, moment + more)
        await self.process.start()


def token(id, index):
    """The only token that a sequence can have at this index, whichever engine computes it."""
    return 1000 * int(id.split("/")[1]) + index


class Scheduler:
    """A minimal scheduler: each round it generates a token for each sequence that it holds, up to LENGTH."""

    LENGTH = 6

    def __init__(self, pool, epoch):
        self.pool, self.epoch = pool, epoch
        self.call, self.held, self.sync, self.figures = 0, {}, False, FIGURES
        self.ended = set()

    async def round(self, room=NO_ROOM):
        commits = []
        for id, count in sorted(self.held.items()):
            end = STOP if count + 1 == self.LENGTH else None
            commits.append(Commit(id, count, [token(id, count)], None, end))
            self.held[id] += 1
            if end:
                del self.held[id]
        return await self.send(commits, room)

    async def send(self, commits, room):
        holds, self.sync = (sorted(self.held) if self.sync else None), False
        self.call += 1
        exchange = Exchange(SEAT, self.epoch, self.call, commits, room, figures=self.figures, holds=holds)
        self.figures = None
        reply = await until_done(lambda: self.pool.exchange(exchange))
        assert reply.owned
        for id in reply.foreign:
            self.held.pop(id, None)
        for id, count in reply.have.items():
            if id in self.held:
                self.held[id] = count
        for claim in reply.claims:
            assert claim.id not in self.held, "claimed a sequence that it holds already"
            self.held[claim.id] = len(claim.output)
        if reply.lost:
            self.sync, self.figures = True, FIGURES
        return reply


class Gateway:
    """A minimal gateway: it collects tokens by index, each once, and puts back requests that the pool does not know."""

    def __init__(self, pool):
        self.pool, self.cursor, self.call = pool, "0", 0
        self.submissions, self.tokens, self.ends = {}, {}, set()

    async def submit(self, request, n=1):
        self.submissions[request] = submission = replace(
            group(request, n, new=Scheduler.LENGTH), resumable=True, idempotency_key=request
        )
        self.tokens |= {sequence.id: [] for sequence in submission.sequences}
        await self.pool.submit(submission)

    async def read(self):
        self.cursor, events = await until_done(lambda: self.pool.read_events("gateway", self.cursor, 0.001))
        gaps = False
        for event in events:
            gaps |= not self.take(event.id, event.index, [event.token] if event.end is None else [], event.end)
        self.call += 1
        if not await until_done(lambda: self.pool.heartbeat("gateway", self.call, {})) or gaps:
            await self.read_again()

    async def read_again(self):
        open = {id: len(tokens) for id, tokens in self.tokens.items() if id not in self.ends}
        unknown = set()
        for snapshot in await self.pool.listen("gateway", open):
            if snapshot.known:
                assert self.take(snapshot.id, snapshot.index, snapshot.tokens, snapshot.end)
            else:
                unknown.add(snapshot.id.split("/")[0])
        for request in unknown:
            lost = self.submissions[request]
            sequences = [replace(s, output=self.tokens[s.id]) for s in lost.sequences]
            await self.pool.submit(replace(lost, sequences=sequences))

    def take(self, id, index, tokens, end):
        known = self.tokens[id]
        if index > len(known):
            return False
        assert [token(id, index + i) for i in range(len(tokens))] == tokens
        known += tokens[len(known) - index :]
        if end:
            self.ends.add(id)
        return True


@pytest.fixture(params=ONE_OF_ALL)
async def server(request, tmp_path):
    server = Server(request.param, tmp_path)
    yield server
    await server.process.stop()


@pytest.mark.parametrize("more", [0, 30], ids=["between commands", "in a command"])
async def test_a_lost_tail_costs_no_request_and_no_token(server, more):
    pool = RequestPool(await server.start(), "tail")
    gateway = Gateway(pool)
    for request in "abc":
        await gateway.submit(request, n=2)
    scheduler = Scheduler(pool, (await pool.acquire(SEAT, "me", 100)).epoch)
    await scheduler.round(Room(4, 64, 16))  # a and b; c waits
    for _ in range(Scheduler.LENGTH - 2):
        await scheduler.round()
    await gateway.read()

    moment = server.moment()
    await gateway.submit("d")
    await scheduler.round()
    await scheduler.round(Room(1, 64, 16))  # a and b have ended; c/0 is claimed
    await scheduler.round(Room(9, 64, 16))  # c/1 and d too
    await scheduler.round()
    await pool.cancel("c")
    await gateway.read()
    assert len(gateway.ends) == 4
    assert set(scheduler.held) == {"c/0", "c/1", "d/0"}
    await server.lose(moment, more)

    assert await counts(pool) == (2, 4, 0)
    reply = await scheduler.round(ROOM)
    assert (reply.lost, reply.foreign, reply.claims) == (True, ["c/0", "c/1", "d/0"], [])
    for _ in range(12):
        await gateway.read()
        await scheduler.round(ROOM)
    await gateway.read()
    assert gateway.ends == set(gateway.tokens)
    assert gateway.tokens == {id: [token(id, i) for i in range(Scheduler.LENGTH)] for id in gateway.tokens}
    assert await counts(pool) == (0, 0, 7)
    for id in gateway.tokens:
        assert (await stored(pool, id)).tokens == gateway.tokens[id]
    await pool.close()


async def test_tokens_that_are_still_held_are_sent_again(server):
    pool = RequestPool(await server.start(), "tail")
    gateway = Gateway(pool)
    await gateway.submit("a", n=2)
    scheduler = Scheduler(pool, (await pool.acquire(SEAT, "me", 100)).epoch)
    await scheduler.round(ROOM)
    await scheduler.round()
    moment = server.moment()
    for _ in range(3):
        await scheduler.round()
    await gateway.read()
    await server.lose(moment, 0)
    assert [len((await stored(pool, f"a/{i}")).tokens) for i in range(2)] == [1, 1]
    reply = await scheduler.round()
    assert (reply.have, reply.foreign, reply.lost) == ({"a/0": 1, "a/1": 1}, [], True)
    while scheduler.held:
        await scheduler.round(ROOM)
    await gateway.read()
    await gateway.read()
    assert gateway.ends == {"a/0", "a/1"}
    await pool.close()


async def test_epochs_and_event_numbers_do_not_repeat(server):
    """Epochs and event numbers after a lost tail are greater than the lost ones."""
    pool = RequestPool(await server.start(), "tail")
    await pool.submit(group("r"))
    owner = await Owner.take(pool)
    await owner.claim()
    await owner.exchange(commit("r/0", 0, 1))
    moment = server.moment()
    await owner.exchange(commit("r/0", 1, 2))
    await owner.exchange(commit("r/0", 2, 3))
    cursor, _ = await pool.read_events("gateway", "0", 1)
    lost = await pool.acquire("other", "lost", 100)
    await server.lose(moment, 0)
    found = await until_done(lambda: pool.acquire("other", "found", 100))
    assert found.granted
    assert int(found.epoch.split(":")[0]) > int(lost.epoch.split(":")[0])
    reply = await owner.exchange(commit("r/0", 3, 4))
    assert reply.have == {"r/0": 1}
    await owner.exchange(commit("r/0", 1, 2, 3, 4))
    _, events = await pool.read_events("gateway", cursor, 1)
    assert [event.index for event in events] == [1, 2, 3]
    assert not await pool.heartbeat("gateway", 9, {})
    await pool.close()
