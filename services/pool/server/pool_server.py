"""PoolServer: starts a Redis or Valkey server on a data folder, or finds the one that runs there, and keeps it running.

The server outlives the process that started it, and a later start on the same folder takes it over. The server holds
a lock on the folder, so that there is at most one. Several processes may use it at once; the last one to stop ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

from services.background import start
from services.child_environment import least
from services.errors import PoolUnavailable
from services.pool.server.binaries import ServerBinary
from services.pool.server.resources import has_disk_space, max_memory
from services.pool.server.users import Users, try_lock
from services.processes import until_ended

log = logging.getLogger(__name__)

MAX_SOCKET_PATH = 100  # bytes; the kernel accepts 107
POLL = 0.05  # seconds between checks of a process that starts or ends
CHECK_PERIOD = 1.0  # seconds between checks of a process that runs, whose end is noticed at once
STOP_TIMEOUT = 10.0
MAX_PAUSE = 2.0  # seconds before a server that dies at once is started again
DISK_PERIOD = 0.5  # seconds between checks of a full disk
ANSWER_TIMEOUT = 2.0  # seconds
_PLAIN = re.compile(r"[A-Za-z0-9/._-]+")  # characters that mean themselves in a URL


class PoolServer:
    """The server on `data_dir`. It listens on a unix socket, at `url`.

    `durability`: `everysec` syncs the append-only file each second, `strict` before each reply. `max_bytes`: the bytes
    of requests that the pool may hold, from which the server's `maxmemory` follows.
    """

    def __init__(
        self,
        binary: ServerBinary,
        data_dir: Path,
        durability: Literal["everysec", "strict"] = "everysec",
        max_bytes: int = 1 << 30,
    ) -> None:
        self.binary = binary
        self.data_dir = data_dir.resolve()
        self._appendfsync = "always" if durability == "strict" else "everysec"
        self._max_bytes = max_bytes
        self._max_memory = 0  # bytes; set by `start`
        self._socket = _socket_path(self.data_dir)
        self.url = f"unix://{self._socket}"
        self._child: subprocess.Popen[bytes] | None = None
        self.pid = 0  # of the server; 0 before the first start
        self._supervisor: asyncio.Task[None] | None = None
        self._users = Users(self.data_dir)

    async def join(self, timeout: float = 60.0) -> int:
        """Become a user of the folder, so that no other process stops its server. `start` does this too.

        Returns a file descriptor: a child process that inherits it counts as a user until it ends.
        """
        async with self._users.changing(timeout):
            return self._users.join()

    async def start(self, timeout: float = 60.0) -> str:
        """Find or start the server and return its URL once it has loaded its file and answers.

        From then on the server is restarted when it dies. Raises PoolUnavailable if it does not answer for `timeout`
        seconds.
        """
        await self.join(timeout)
        self._max_memory = max_memory(self._max_bytes)
        await self._ensure(timeout)
        self._supervisor = start(self._supervise(timeout), "the pool server's supervisor")
        return self.url

    async def stop(self) -> bool:
        """Stop using the server. The last user shuts it down, with its file synced. Returns whether this one did."""
        if self._supervisor and not self._supervisor.done():  # it ends with the loop in which `start` ran
            self._supervisor.cancel()
            await asyncio.wait({self._supervisor})
        self._supervisor = None
        async with self._users.changing(2 * STOP_TIMEOUT):
            self._users.join()  # so that a server without users is shut down too
            last = self._users.alone()
            if last:
                await self._shut_down()
            self._users.leave()
        return last

    async def _supervise(self, timeout: float) -> None:
        pause = POLL
        while True:
            started = time.monotonic()
            try:
                await self._wait_for_death()
                log.warning("the pool's server (pid %d) died; starting it again", self.pid)
                pause = POLL if time.monotonic() - started > MAX_PAUSE else min(2 * pause, MAX_PAUSE)
                await asyncio.sleep(pause)
                await self._wait_for_disk_space()
                await self._ensure(timeout)
            except PoolUnavailable as error:
                log.error("the pool's server did not start: %s", error)
            except Exception:
                log.exception("the pool's server did not start; trying again")
                await asyncio.sleep(pause)

    async def _wait_for_disk_space(self) -> None:
        """Wait while the disk is full: a server that cannot sync a write exits, and would do so at each start."""
        if has_disk_space(self.data_dir):
            return
        log.error("the disk of %s is full: the pool's server is started again once it has space", self.data_dir)
        while not has_disk_space(self.data_dir):  # noqa: ASYNC110 - a disk sets no event
            await asyncio.sleep(DISK_PERIOD)
        log.warning("the disk of %s has space again", self.data_dir)

    async def _ensure(self, timeout: float) -> None:
        async with self._users.changing(timeout):
            await self._find_or_start(timeout)

    async def _find_or_start(self, timeout: float) -> None:
        """Find the running server or start one, and wait until it has loaded its file and has our settings."""
        deadline = time.monotonic() + timeout
        child = None
        while True:
            if child is None and (child := self._spawn_if_none()):
                log.info("started %s (pid %d) on %s", self.binary, child.pid, self.data_dir)
            try:
                info = await self._ask("INFO")
            except OSError as error:
                if child and child.poll() is not None:
                    where = f"{self.data_dir}/server.log"
                    raise PoolUnavailable(f"{self.binary} ended with status {child.returncode}; see {where}") from None
                if time.monotonic() > deadline:
                    raise PoolUnavailable(f"the server on {self.data_dir} does not answer: {error}") from None
                await asyncio.sleep(POLL)
                continue
            self.pid = info["process_id"]
            if not info["loading"]:
                break
            deadline = time.monotonic() + timeout  # it refuses other commands, for as long as its file needs
            await asyncio.sleep(POLL)
        if child and child.pid == self.pid:
            return  # its command line has our settings; what another user has set since stays
        alone = self._users.alone()  # what other users rely on is not weakened
        if self._appendfsync == "always" or alone:
            await self._ask("CONFIG", "SET", "appendfsync", self._appendfsync)
        if alone or int((await self._ask("CONFIG", "GET", "maxmemory"))[1]) < self._max_memory:
            await self._ask("CONFIG", "SET", "maxmemory", str(self._max_memory))

    def _spawn_if_none(self) -> subprocess.Popen[bytes] | None:
        """Start a server unless a running one holds the folder's lock, which it keeps until it dies."""
        with open(self.data_dir / "lock", "w") as lock:
            if not try_lock(lock):
                return None
            if self.binary.version < (7,) and (self.data_dir / "appendonlydir").exists():
                raise PoolUnavailable(f"{self.data_dir} was written by a newer server than {self.binary}")
            self._child = subprocess.Popen(
                self._command(),
                env=least(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(lock.fileno(),),
                start_new_session=True,
            )
            self.pid = self._child.pid
        return self._child

    def _command(self) -> list[str]:
        options = {
            "port": "0",
            "unixsocket": str(self._socket),
            "unixsocketperm": "700",
            "dir": str(self.data_dir),
            "logfile": str(self.data_dir / "server.log"),
            "appendonly": "yes",
            "appendfsync": self._appendfsync,
            "save": "",
            "maxmemory": str(self._max_memory),
            "maxmemory-policy": "noeviction",
        }
        return [str(self.binary.path), *(part for name, value in options.items() for part in (f"--{name}", value))]

    async def _ask(self, *command: str) -> Any:
        """Send a command. Raises OSError if the server refuses it or does not answer."""
        import redis.asyncio as redis  # takes a tenth of a second, in which `orca serve` can start the cluster
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        # no timeouts of redis-py: it writes under `asyncio.wait_for`, which before Python 3.12 loses a cancellation
        # that arrives just when the write completes
        client: Any = redis.Redis(
            unix_socket_path=str(self._socket),
            protocol=2,
            socket_timeout=None,
            socket_connect_timeout=None,
            retry=Retry(NoBackoff(), 0),
        )
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT), client:
                return await client.execute_command(*command)
        except TimeoutError as error:
            raise OSError(f"{self._socket}: no answer within {ANSWER_TIMEOUT:.0f} s") from error
        except redis.RedisError as error:
            raise OSError(f"{self._socket}: {error}") from error

    async def _shut_down(self) -> None:
        deadline = time.monotonic() + STOP_TIMEOUT
        while self._alive():
            with contextlib.suppress(OSError):
                await self._ask("SHUTDOWN")
            if time.monotonic() > deadline:
                log.error("the pool's server (pid %d) does not end; killing it", self.pid)
                deadline += STOP_TIMEOUT
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)
            await asyncio.sleep(POLL / 5)

    async def _wait_for_death(self) -> None:
        while self._alive():
            with contextlib.suppress(TimeoutError):  # in another container its process id says nothing
                async with asyncio.timeout(CHECK_PERIOD):  # `wait_for` may lose a cancellation before Python 3.12
                    await until_ended(self.pid)
                await asyncio.sleep(POLL)  # the lock goes last, with the children that the server has forked

    def _alive(self) -> bool:
        """Whether a server holds the folder's lock."""
        if self._child:
            self._child.poll()  # reaps it
        try:
            with open(self.data_dir / "lock", "r+") as lock:
                return not try_lock(lock)
        except FileNotFoundError:
            return False


def _socket_path(data_dir: Path) -> Path:
    """The path of the folder's socket: short enough for the kernel, in a URL as it is, and the same at each start."""
    path = data_dir / "server.sock"
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH and _PLAIN.fullmatch(str(path)):
        return path
    temp = tempfile.gettempdir()
    short = (
        Path(temp if _PLAIN.fullmatch(temp) and len(temp) <= MAX_SOCKET_PATH // 2 else "/tmp") / f"orca-{os.getuid()}"
    )
    short.mkdir(mode=0o700, exist_ok=True)
    if short.stat().st_uid != os.getuid():
        raise PoolUnavailable(f"{short} belongs to another user")
    return short / f"{hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:16]}.sock"
