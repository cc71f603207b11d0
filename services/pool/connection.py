"""Connections to the pool's server: some for scripts, others for reads that block. They follow a failover."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Any

from redis import exceptions

from services.background import start
from services.errors import PoolDenied, PoolFault, PoolUnavailable
from services.pool import scripts
from services.pool.address import without_password
from services.pool.clients import close_client, has_sentinels, master_of, nodes_of, open_clients
from services.pool.server.binaries import OLDEST_SERVER

SCRIPT_TIMEOUT = 5.0  # seconds for one script
WAIT_TIMEOUT = 2.0  # seconds of it for the replicas
BLOCK_SLACK = 5.0  # seconds after its timeout at which a blocking read fails
SCRIPT_CONNECTIONS = 16
LONGEST_WAIT = 20.0  # seconds for a connection, while all are in use
LOOK_PERIOD = 1.0  # seconds between questions to the Sentinels, while there are calls

# Error codes of temporary states of the server: full memory or disk, a failover, a script that runs too long.
TEMPORARY = (
    "OOM",
    "MISCONF",
    "BUSY",
    "READONLY",
    "NOREPLICAS",
    "MASTERDOWN",
    "LOADING",
    "MOVED",
    "ASK",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "UNBLOCKED",  # a blocking command, when the server becomes a replica
)
# Another server may serve by now: this one is a replica, has lost its replicas, or does not have the pool's slot.
LEFT = frozenset({"READONLY", "MASTERDOWN", "UNBLOCKED", "NOREPLICAS", "MOVED", "CLUSTERDOWN"})
# If a command inside a script fails, Redis 6.2 puts its code after a minus sign in the middle of the message.
_CODE = re.compile(rf"(?:^|-)({'|'.join(TEMPORARY)})\b")
_NO_MASTER = "WAIT cannot be used with replica"  # after a script that has written nothing; it has no code of its own
_KILLED = "Script killed by user"  # SCRIPT KILL, which works only before a script has written anything
_DENIED = (exceptions.AuthenticationError, exceptions.NoPermissionError, exceptions.AuthorizationError)

Command = tuple[str | bytes | int, ...]

log = logging.getLogger(__name__)

_SELF_TEST = 'return cmsgpack.unpack(cmsgpack.pack({1, "a"}))[2] .. #redis.call("TIME")'


class Connection:
    """Connections to the server at a URL, whose forms are those of `address`.

    Raises `PoolUnavailable` if the server cannot be reached or replies that it cannot serve now, `PoolFault` for any
    other error reply. Logs one line when calls of a kind begin to fail or fail for another reason, and one when they
    succeed again. After a failure, and when the Sentinels name another master, all connections are opened again.

    With `wait_replicas` above 0, the reply to a script is returned only when so many replicas have what the server had
    written by then. If they do not within `WAIT_TIMEOUT`, PoolUnavailable is raised, although the script has run.
    """

    def __init__(self, url: str, wait_replicas: int = 0) -> None:
        self.url = url
        self.wait_replicas = wait_replicas
        self.last_call = time.monotonic()  # when the last call began
        self._shown = without_password(url)
        self._failing: dict[str, str] = {}  # kind of call -> why the last one failed
        self._scripts, self._blocking = open_clients(url, 2)
        self._nodes = nodes_of(self._scripts)
        self._master: tuple[str, int] | None = None  # that the Sentinels named last
        self._looked = -inf if has_sentinels(self._scripts) else inf  # when they were asked
        self._to_scripts = KeptConnections(self._scripts.connection_pool, self._on_error, SCRIPT_CONNECTIONS)
        self._to_blocking = KeptConnections(self._blocking.connection_pool, self._on_error)

    async def check(self) -> None:
        """Raise PoolUnavailable unless the server answers, is new enough and runs Lua with cmsgpack."""
        with self._calling("check"):
            async with asyncio.timeout(SCRIPT_TIMEOUT):
                await self._check()

    async def _check(self) -> None:
        info = await self._scripts.info("server")
        version = str(info["redis_version"])
        if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_SERVER:
            raise PoolUnavailable(f"{self._shown}: server {version} is older than 6.2")
        try:
            answer = await self._scripts.eval(_SELF_TEST, 0)
        except exceptions.ResponseError as error:
            if code_of(error):
                raise
            raise PoolUnavailable(f"{self._shown}: server {version} does not run our Lua: {error}") from None
        assert answer == b"a2", f"Lua self-test gave {answer!r}"
        for name in scripts.names():
            await self._scripts.script_load(scripts.script(name).text)

    async def run(self, name: str, prefix: str, packed: bytes) -> Any:
        """Run a script with its packed arguments. It is sent once: after an error the caller does not know whether it
        ran."""
        with self._calling(name):
            return await self._scripted(self._to_scripts, SCRIPT_TIMEOUT, name, (1, prefix, packed))

    async def command(self, *args: str | bytes | int) -> Any:
        """The reply to a command, as the server sent it."""
        with self._calling(str(args[0])):
            (reply,) = await self._follow(self._to_scripts, SCRIPT_TIMEOUT, args)
            return reply

    async def block(self, timeout: float, *args: str | bytes | int) -> Any:
        """Run a command that blocks for at most `timeout` seconds, as its arguments state."""
        with self._calling(str(args[0])):
            (reply,) = await self._follow(self._to_blocking, timeout + BLOCK_SLACK, args)
            return reply

    async def block_confirmed(self, timeout: float, prefix: str, *args: str | bytes | int) -> Any:
        """As `block`, but with `wait_replicas` the reply is returned only when so many replicas have what it tells.

        They are asked for on the same connection: it may be one to an earlier master, for which its successor's
        replicas say nothing."""
        if not self.wait_replicas:
            return await self.block(timeout, *args)
        with self._calling(str(args[0])):
            call = (1, prefix, scripts.script("confirm").pack())
            return await self._scripted(self._to_blocking, timeout + BLOCK_SLACK, "confirm", call, args)

    async def close(self) -> None:
        for client in (self._scripts, self._blocking):
            await close_client(client)

    async def _scripted(self, kept: KeptConnections, seconds: float, name: str, args: Command, *before: Command) -> Any:
        """The reply to the first of the commands `before`, or to the script that follows them."""
        script = scripts.script(name)
        try:
            return await self._confirmed(kept, seconds, *before, ("EVALSHA", script.sha, *args))
        except exceptions.NoScriptError:
            return await self._confirmed(kept, seconds, *before, ("EVAL", script.text, *args))

    async def _confirmed(self, kept: KeptConnections, seconds: float, *commands: Command) -> Any:
        """The reply to the first of some commands, when `wait_replicas` replicas have what they wrote."""
        if not self.wait_replicas:
            (reply,) = await self._follow(kept, seconds, *commands)
            return reply
        wait = ("WAIT", self.wait_replicas, round(WAIT_TIMEOUT * 1000))
        reply, *_, count = await self._follow(kept, seconds, *commands, wait)
        if count < self.wait_replicas:
            what = f"NOREPLICAS {count} of {self.wait_replicas} replicas had a write after {WAIT_TIMEOUT:.0f} s"
            error = exceptions.ResponseError(what)
            await self._on_error(error)
            raise error
        return reply

    async def _follow(self, kept: KeptConnections, seconds: float, *commands: Command) -> list[Any]:
        """The replies to commands, from the node of a Cluster that has the pool's slot.

        ASK is not followed: while a slot migrates, neither of two nodes has all of the pool's keys, and a script must
        not run on some of them. The caller waits for the end of the migration.
        """
        if self.last_call > self._looked + LOOK_PERIOD:
            self._looked = self.last_call
            start(self._look_for_failover(), "the question to the Sentinels")
        node = self._nodes.current if self._nodes else None
        try:
            return await kept.pipeline(seconds, *commands)
        except exceptions.MovedError as error:  # the node did nothing
            if self._nodes is None:
                raise
            self._nodes.move_to(error.host, error.port)
            return await kept.pipeline(seconds, *commands)
        except (TimeoutError, exceptions.ClusterDownError):
            if self._nodes and node:
                self._nodes.failed(node)
            raise

    async def _look_for_failover(self) -> None:
        """Leave an earlier master that still answers: after a failover it takes writes, which are lost, until the
        Sentinels have made it a replica, which takes them ten seconds."""
        found = await master_of(self._scripts)
        if found and self._master and found != self._master:
            log.warning("the pool's master is %s:%d after a failover", *found)
            await self._reopen()
        self._master = found or self._master

    async def _on_error(self, error: Exception) -> None:
        """After a call that failed: the next calls open new connections if this one shows that another server may serve
        by now."""
        if not isinstance(error, exceptions.ResponseError) or code_of(error) in LEFT:
            await self._reopen()

    async def _reopen(self) -> None:
        await self._to_scripts.reopen()
        await self._to_blocking.reopen()

    @contextmanager
    def _calling(self, kind: str) -> Iterator[None]:
        """Wraps every call: translates errors, and passes on every cancellation.

        redis-py connects under `asyncio.wait_for`, which before Python 3.12 loses a cancellation that arrives just when
        the connection is open.
        """
        task = asyncio.current_task()
        assert task is not None
        self.last_call = time.monotonic()
        cancelled = task.cancelling()
        try:
            yield
        except (exceptions.RedisError, OSError) as error:  # OSError: also TimeoutError
            if task.cancelling() > cancelled:
                raise asyncio.CancelledError from error
            reason = _why_unavailable(error)
            if reason is None:
                raise PoolFault(f"the pool's server refuses {kind}: {error}") from error
            self._failed(kind, reason, error)
            denied = isinstance(error, _DENIED) or isinstance(error.__cause__, _DENIED)
            kind_of_error = PoolDenied if denied else PoolUnavailable
            text = str(error) or type(error).__name__
            shown = text if reason in text or not code_of(error) else f"{reason} {text}"
            raise kind_of_error(f"the pool's server does not answer: {shown}") from error
        if task.cancelling() > cancelled:
            raise asyncio.CancelledError
        if self._failing.pop(kind, None):
            log.warning("the pool's server answers %s again", kind)

    def _failed(self, kind: str, reason: str, error: Exception) -> None:
        if self._failing.get(kind) != reason:
            self._failing[kind] = reason
            log.warning("the pool's server does not answer %s (%s): %s", kind, reason, error)


def code_of(error: Exception) -> str | None:
    """The server's error code in an error that redis-py raised, if it is one of `TEMPORARY`."""
    code = getattr(error, "status_code", None)
    if code in TEMPORARY:
        return str(code)
    if _NO_MASTER in str(error):
        return "READONLY"
    found = _CODE.search(str(error))
    return found[1] if found else None


def _why_unavailable(error: Exception) -> str | None:
    """A word for the server's temporary state; None for other errors, such as a fault in a script."""
    if code := code_of(error):
        return code
    if isinstance(error, exceptions.ResponseError) and not isinstance(error, _DENIED):
        return "SCRIPT KILL" if _KILLED in str(error) else None
    return type(error).__name__


class KeptConnections:
    """Sends commands on connections that stay taken out of redis-py's pool between calls.

    For every call, redis-py takes a connection out of its pool, looks whether its socket can be read, starts a task to
    write, and records figures about all of it. For a call per token of a stream this takes longer than the call itself.

    `pool` is one of redis-py's, without a socket timeout. `most`: the number of calls at a time; None: any.

    `on_error` is awaited with the error of each call that failed, also with an error reply, but not after a
    cancellation. It calls `reopen` if another server may serve now.
    """

    def __init__(self, pool: Any, on_error: Callable[[Exception], Awaitable[None]], most: int | None = None) -> None:
        self._pool = pool
        self._on_error = on_error
        self._slots = asyncio.Semaphore(most) if most else None
        self._kept: list[Any] = []
        self._round = 0  # increments when all connections are to be opened again

    async def pipeline(self, seconds: float, *commands: Command) -> list[Any]:
        """The replies to commands that are sent at once on one connection, as the server sent them, within `seconds`
        once there is a connection for them. Raises the first reply that is an error, what else redis-py raises, and
        TimeoutError."""
        if self._slots is None:
            return await self._timed(seconds, commands)
        if self._slots.locked():
            async with asyncio.timeout(LONGEST_WAIT):
                await self._slots.acquire()
        else:
            await self._slots.acquire()
        try:
            return await self._timed(seconds, commands)
        finally:
            self._slots.release()

    async def reopen(self) -> None:
        """Close all connections, those in use after their calls. The next calls open new ones."""
        self._round += 1
        while self._kept:
            await self._drop(self._kept.pop())
        await self._pool.disconnect(inuse_connections=False)  # those that redis-py's own calls have opened

    async def _timed(self, seconds: float, commands: tuple[Command, ...]) -> list[Any]:
        try:
            async with asyncio.timeout(seconds):
                return await self._exchange(commands)
        except (exceptions.RedisError, OSError) as error:  # OSError: also TimeoutError
            await self._on_error(error)
            raise

    async def _exchange(self, commands: tuple[Command, ...]) -> list[Any]:
        round = self._round
        connection = await self._take()
        try:
            await connection.send_packed_command(connection.pack_commands(commands))
            replies = [await _reply(connection) for _ in commands]
        except BaseException:  # a reply may still arrive
            await self._drop(connection)
            raise
        if round == self._round:
            self._kept.append(connection)
        else:
            await self._drop(connection)
        for reply in replies:
            if isinstance(reply, exceptions.ResponseError):
                raise reply
        return replies

    async def _take(self) -> Any:
        while self._kept:
            connection = self._kept.pop()
            if _is_open(connection):
                return connection
            await self._drop(connection)
        return await self._pool.get_connection()

    async def _drop(self, connection: Any) -> None:
        await connection.disconnect(nowait=True)
        await self._pool.release(connection)


async def _reply(connection: Any) -> Any:
    """The next reply; an error reply is returned, because replies may follow it."""
    try:
        return await connection.read_response()
    except exceptions.ResponseError as error:
        return error


def _is_open(connection: Any) -> bool:
    """Whether the server has not closed it, as far as the event loop has noticed. redis-py tells it by a read only."""
    return connection.is_connected and not (connection._reader.at_eof() or connection._writer.is_closing())
