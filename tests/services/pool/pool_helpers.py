"""Helpers of the pool's tests: groups, commits, owners of seats, time, the server's settings."""

import asyncio
import contextlib
import time
from dataclasses import replace

import redis.asyncio as redis

from services.errors import PoolUnavailable
from services.messages import Commit, End, EngineFigures, Exchange, NewSequence, Room, Submission
from services.pool.group_packing import pack_group, prompt_logprobs_bytes, token_bytes
from services.pool.packing import pack, unpack
from services.pool.pool import RequestPool
from services.requests import FinishReason, SamplingParams

SEAT = "cluster/0"
STOP = End(FinishReason.STOP, stop=2)
CANCELLED = End(FinishReason.CANCELLED)
FIGURES = EngineFigures("tiny", 128, 64, 16, 1000, "float32/cpu")
NO_ROOM = Room(0, 0, 16)
ROOM = Room(8, 64, 16)
SINCE = 12  # index of `since` in the counts of lua/fragments/counts.lua


class Clock:
    """The clock of a test's pools. It stands still but for `advance`; waits take real time."""

    def __init__(self):
        self.micros = round(time.time() * 1e6)

    def now(self):
        return self.micros / 1e6

    def advance(self, seconds):
        self.micros += round(seconds * 1e6)

    async def sleep(self, seconds):
        await asyncio.sleep(seconds)

    async def wait(self, awaitable, timeout):
        done, _ = await asyncio.wait([awaitable], timeout=timeout)
        return bool(done)


class ClockedPool(RequestPool):
    """A pool whose scripts get their time from a test's clock. Each call is 1 us later than the one before."""

    def __init__(self, url, name, limits=None, clock=None):
        super().__init__(url, name, limits)
        self._clock = clock or Clock()

    def _pack(self, name, /, **arguments):
        super()._pack(name, **arguments)  # checks their names
        self._clock.micros += 1
        return pack(arguments | {"now": self._clock.micros})


def sequence(id, prompt=(1, 2, 3), new=4, **sampling):
    return NewSequence(id, list(prompt), SamplingParams(max_new_tokens=new, **sampling))


def group(request, n=1, gateway="gateway", prompt=(1, 2, 3), new=4, key=None, tenant="default", body=b"", **sampling):
    sequences = [sequence(f"{request}/{i}", prompt, new, choice=i, **sampling) for i in range(n)]
    return Submission(request, gateway, sequences, tenant, key, body)


def size(*groups):
    """The bytes that these groups count for until they end."""
    return sum(pack_group(group).size for group in groups)


def ended_size(group):
    """The bytes that a group counts for after it ended without a token."""
    packed = pack_group(group)
    unmade = sum(
        s.sampling.max_new_tokens * token_bytes(s.sampling) + prompt_logprobs_bytes(s.sampling, len(s.prompt))
        for s in group.sequences
    )
    return packed.size - packed.inputs - unmade


class Owner:
    """A scheduler as the pool sees it: a seat, an epoch, call numbers."""

    def __init__(self, pool, epoch, seat=SEAT):
        self.pool, self.epoch, self.seat, self.call = pool, epoch, seat, 0

    @classmethod
    async def take(cls, pool, seat=SEAT, name="owner", lease=100.0, dead=None):
        grant = await pool.acquire(seat, name, lease, dead)
        assert grant.granted
        assert grant.owner == name
        return cls(pool, grant.epoch, seat)

    async def exchange(self, *commits, room=NO_ROOM, **more):
        self.call += 1
        return await self.repeat(*commits, room=room, **more)

    async def repeat(self, *commits, room=NO_ROOM, **more):
        return await self.pool.exchange(Exchange(self.seat, self.epoch, self.call, list(commits), room, **more))

    async def claim(self, room=ROOM):
        return [claim.id for claim in (await self.exchange(room=room)).claims]


def commit(id, index, *tokens, end=None, logprobs=None):
    return Commit(id, index, list(tokens), logprobs, end)


async def counts(pool):
    overview = await pool.overview()
    return overview.waiting, overview.running, overview.ended


async def all_events(pool, gateway="gateway", after="0"):
    """All events published to the gateway until now."""
    events = []
    while True:
        after, more = await pool.read_events(gateway, after, 0.001)
        if not more:
            return events
        events += more


async def stored(pool, id):
    [snapshot] = await pool.listen("reader", {id: 0})
    return snapshot


async def keys(pool):
    """All keys of a pool in its server, without the prefix."""
    found = await pool._server.command("KEYS", f"{pool._prefix}*")
    return {key.decode().removeprefix(pool._prefix) for key in found}


def let_time_pass(pool, seconds):
    """Let so many seconds pass without a call."""
    pool._clock.advance(seconds)


async def let_wait(pool, seconds):
    """Make the last claim, or the beginning of the wait, so many seconds earlier."""
    if isinstance(pool, RequestPool):
        run, prefix = pool._server.command, pool._prefix
        tenants = await run("SMEMBERS", f"{prefix}holders")
        for key in (f"{prefix}meta", *(f"{prefix}tenant:{tenant.decode()}" for tenant in tenants)):
            counts = unpack(await run("HGET", key, "counts"))
            counts[SINCE] -= seconds * 1e6
            await run("HSET", key, "counts", pack(counts))
    else:
        pool._record_rates()
        for rate in pool._rates.values():
            rate.since -= seconds


async def rung(pool, seat):
    """Whether the seat's bell rings and no call has heard it yet."""
    if isinstance(pool, RequestPool):
        return bool(await pool._server.command("EXISTS", f"{pool._prefix}bell:{seat}"))
    return pool._bells[seat].rung


def timeless(reply):
    """An exchange's reply without the times that its claims have waited, which a repeat reads again."""
    return replace(reply, claims=[replace(claim, waited=0.0) for claim in reply.claims])


@contextlib.asynccontextmanager
async def configured(server_url, **options):
    """A client of a server, which has these settings within the context."""
    async with redis.Redis.from_url(server_url, protocol=2) as client:
        before = {name: (await client.config_get(name))[name] for name in (n.replace("_", "-") for n in options)}
        try:
            for name, value in options.items():
                await client.config_set(name.replace("_", "-"), value)
            yield client
        finally:
            for name, value in before.items():
                await client.config_set(name, value)


@contextlib.asynccontextmanager
async def full_memory(server_url):
    async with configured(server_url, maxmemory=1):
        yield


async def until_done(call):
    """The result of a call that is repeated unchanged while the pool is unavailable, as its callers do."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await call()
            except PoolUnavailable:
                await asyncio.sleep(0.02)


async def forward(reader, writer, socket_path):
    """Pass all data of a connection on to a server's socket, and back."""

    async def pump(reader, writer):
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    inner = await asyncio.open_unix_connection(socket_path)
    await asyncio.gather(pump(reader, inner[1]), pump(inner[0], writer))
