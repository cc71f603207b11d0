"""The faults of a pool's server: it dies, it is full, its clock jumps."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from services.errors import PoolUnavailable
from services.pool.pool import RequestPool
from services.pool.server.pool_server import PoolServer

T = TypeVar("T")
PATIENCE = 10.0  # seconds in which a server that died must answer again


class FaultyServer(RuleBasedStateMachine):
    """The faults, and calls that are repeated until they are answered. Derived classes set `server`, `loop`, `pool`."""

    server: PoolServer
    loop: asyncio.AbstractEventLoop
    pool: RequestPool
    full = False
    doomed = False  # the next call is to kill the server

    def run(self, coroutine: Awaitable[T]) -> T:
        return self.loop.run_until_complete(coroutine)

    def ask(self, call: Callable[[], Awaitable[T]]) -> T:
        """The answer, however often it must be asked; where a kill is due, the server dies under the first try."""

        async def asked() -> T:
            if self.doomed:
                self.doomed = self.full = False  # a server that starts has the memory it was given at its first start
                os.kill(self.server.pid, signal.SIGKILL)
            async with asyncio.timeout(PATIENCE):
                while True:
                    try:
                        return await call()
                    except PoolUnavailable:
                        await asyncio.sleep(0.01)

        return self.run(asked())

    @rule()
    def kill(self) -> None:
        """The server dies while the next call is under way, or before."""
        self.doomed = True

    @rule(seconds=st.sampled_from([-3600, -30, -1, 1, 10, 3600]))
    def jump(self, seconds: int) -> None:
        """The clock jumps, compared with the pool's last stamp. A full server would not let the stamp be written."""
        full = self.full
        if full:
            self.fill(False)
        self.ask(
            lambda: self.pool._server.command("HINCRBY", f"{self.pool._prefix}meta", "stamp", -seconds * 1_000_000)
        )
        if full:
            self.fill(True)

    @rule(full=st.booleans())
    def fill(self, full: bool) -> None:
        self.ask(lambda: self.pool._server.command("CONFIG", "SET", "maxmemory", "1" if full else "0"))
        self.full = full
