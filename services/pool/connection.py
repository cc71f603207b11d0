"""Connections to the pool's server: some for scripts, others for reads that block.

redis-py's defaults would send a slow script a second time and let a blocking read hang for a minute. So every option
that matters is set here.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis.asyncio as redis
from redis import exceptions
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig

from services.errors import PoolDenied, PoolFault, PoolUnavailable
from services.pool import scripts
from services.pool.kept_connections import KeptConnections
from services.pool.server.binaries import OLDEST_SERVER

SCRIPT_TIMEOUT = 5.0  # seconds for one script
CONNECT_TIMEOUT = 2.0
BLOCK_SLACK = 5.0  # seconds after its timeout at which a blocking read fails
SCRIPT_CONNECTIONS = 16

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
DEMOTED = frozenset({"READONLY", "MASTERDOWN", "UNBLOCKED"})  # the server is a replica of another one
# If a command inside a script fails, Redis 6.2 puts its code after a minus sign in the middle of the message.
_CODE = re.compile(rf"(?:^|-)({'|'.join(TEMPORARY)})\b")
_KILLED = "Script killed by user"  # SCRIPT KILL, which works only before a script has written anything
_DENIED = (exceptions.AuthenticationError, exceptions.NoPermissionError, exceptions.AuthorizationError)

log = logging.getLogger(__name__)

_SELF_TEST = 'return cmsgpack.unpack(cmsgpack.pack({1, "a"}))[2] .. #redis.call("TIME")'


def open_client(url: str) -> Any:
    """Return redis-py's client for a server, which connects at the first call and repeats none."""
    options: dict[str, Any] = {"socket_keepalive": True} if not url.startswith("unix://") else {}
    pool: Any = redis.ConnectionPool.from_url(
        url,
        protocol=2,
        decode_responses=False,
        socket_timeout=None,  # each call is limited as a whole
        socket_connect_timeout=CONNECT_TIMEOUT,
        retry=Retry(NoBackoff(), 0),
        retry_on_error=[],
        health_check_interval=0,
        maint_notifications_config=MaintNotificationsConfig(enabled=False),
        **options,
    )
    return redis.Redis.from_pool(pool)


class Connection:
    """Connections to the server at a URL: `redis://`, `rediss://` or `unix://`.

    Raises `PoolUnavailable` if the server cannot be reached or replies that it cannot serve now, `PoolFault` for any
    other error reply. Logs one line when calls of a kind begin to fail or fail for another reason, and one when they
    succeed again.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.last_call = time.monotonic()  # when the last call began
        self._shown = _without_password(url)
        self._failing: dict[str, str] = {}  # kind of call -> why the last one failed
        self._scripts, self._blocking = open_client(url), open_client(url)
        self._to_scripts = KeptConnections(self._scripts.connection_pool, _is_demoted, SCRIPT_CONNECTIONS)
        self._to_blocking = KeptConnections(self._blocking.connection_pool, _is_demoted)

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

    async def run(self, name: str, prefix: str, *args: str | bytes | int) -> Any:
        """Run a script, which is sent once: after an error the caller does not know whether it ran."""
        script = scripts.script(name)
        with self._calling(name):
            try:
                return await self._to_scripts.call(SCRIPT_TIMEOUT, "EVALSHA", script.sha, 1, prefix, *args)
            except exceptions.NoScriptError:
                return await self._to_scripts.call(SCRIPT_TIMEOUT, "EVAL", script.text, 1, prefix, *args)

    async def command(self, *args: str | bytes | int) -> Any:
        """The reply to a command, as the server sent it."""
        with self._calling(str(args[0])):
            return await self._to_scripts.call(SCRIPT_TIMEOUT, *args)

    async def block(self, timeout: float, *args: str | bytes | int) -> Any:
        """Run a command that blocks for at most `timeout` seconds, as its arguments state."""
        with self._calling(str(args[0])):
            return await self._to_blocking.call(timeout + BLOCK_SLACK, *args)

    async def close(self) -> None:
        for client in (self._scripts, self._blocking):
            await client.aclose()
            await client.connection_pool.disconnect()

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
            raise kind_of_error(f"the pool's server does not answer: {error or type(error).__name__}") from error
        if task.cancelling() > cancelled:
            raise asyncio.CancelledError
        if self._failing.pop(kind, None):
            log.warning("the pool's server answers %s again", kind)

    def _failed(self, kind: str, reason: str, error: Exception) -> None:
        if self._failing.get(kind) != reason:
            self._failing[kind] = reason
            log.warning("the pool's server does not answer %s (%s): %s", kind, reason, error)


def _without_password(url: str) -> str:
    """The URL without user and password, and without its query, which may contain them too."""
    scheme, _, rest = url.partition("?")[0].partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


def code_of(error: Exception) -> str | None:
    """The server's error code in an error that redis-py raised, if it is one of `TEMPORARY`."""
    code = getattr(error, "status_code", None)
    if code in TEMPORARY:
        return str(code)
    found = _CODE.search(str(error))
    return found[1] if found else None


def _is_demoted(error: Exception) -> bool:
    return code_of(error) in DEMOTED


def _why_unavailable(error: Exception) -> str | None:
    """A word for the server's temporary state; None for other errors, such as a fault in a script."""
    if code := code_of(error):
        return code
    if isinstance(error, exceptions.ResponseError) and not isinstance(error, _DENIED):
        return "SCRIPT KILL" if _KILLED in str(error) else None
    return type(error).__name__
