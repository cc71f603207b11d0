"""Supervisor: one cluster on one port, started anew whenever it dies. It knows no Ray, so that Ray cannot end it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence

from actors.leftovers import processes_of
from actors.listening import ports_of, told
from cli.cluster_child import ClusterChild, make_folder
from cli.port_claim import PortClaim
from services.errors import OrcaError
from services.settings.settings import Settings

READY_TIMEOUT = 900.0  # seconds, for models that load slowly
STOP_MARGIN = 20.0  # seconds beyond `drain_timeout` for Serve, engines and Ray to end
SETTLED = 60.0  # seconds; a cluster that dies sooner is started again after a pause
LONGEST_PAUSE = 30.0


class Supervisor:
    """Starts the first cluster's process at once. `answers` returns when the API does."""

    def __init__(
        self,
        settings: Settings,
        claim: PortClaim,
        keep: Sequence[int],
        answers: Callable[[], Awaitable[None]],
        say: Callable[[str], None],
    ) -> None:
        self._settings, self._claim, self._keep, self._answers, self._say = settings, claim, keep, answers, say
        self._logs = settings.data_dir / f"serve-{settings.port}.logs"
        self._child = self._start()

    def _start(self) -> ClusterChild:
        folder = make_folder()
        self._claim.folder = folder  # before there is a process: whoever comes next finds them all
        return ClusterChild(folder, self._settings, self._keep)

    async def run(self, redis_url: str, model: str, ready: str) -> None:
        """Keep a cluster of the pinned `model` running until cancelled; says when it is `ready`. Raises OrcaError where
        the first fails."""
        was_ready, died, quick_deaths = False, 0.0, 0
        while True:
            began = time.monotonic()
            try:
                await self._until_ready(redis_url, model)
                self._say(f"ready again after {time.monotonic() - died:.1f} s" if was_ready else ready)
                self._say(told(ports_of(processes_of(self._child.folder))))
                was_ready = True
                cause = await self._child.death()
            except OrcaError as error:
                cause = str(error)
            died = time.monotonic()
            self._child.end(self._logs)
            if not was_ready:
                raise OrcaError(f"{cause}; logs are in {self._logs}")
            quick_deaths = quick_deaths + 1 if died - began < SETTLED else 0
            pause = min(2.0 ** (quick_deaths - 2), LONGEST_PAUSE) if quick_deaths > 1 else 0.0
            self._say(
                f"{cause}; starting the cluster anew{f' in {pause:.0f} s' * bool(pause)}, logs are in {self._logs}"
            )
            await asyncio.sleep(pause)
            self._child = self._start()

    async def _until_ready(self, redis_url: str, model: str) -> None:
        starting, dying = asyncio.create_task(self._started(redis_url, model)), asyncio.create_task(self._child.death())
        try:
            done, _ = await asyncio.wait({starting, dying}, timeout=READY_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
            if dying in done:
                await asyncio.wait({starting}, timeout=1.0)  # what it said at last tells more
            if starting.done():
                return starting.result()
            raise OrcaError(dying.result() if dying.done() else f"not ready after {READY_TIMEOUT:.0f} s")
        finally:
            for task in (starting, dying):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, OrcaError):
                    await task

    async def _started(self, redis_url: str, model: str) -> None:
        await self._child.up(redis_url, model, self._say)
        await self._answers()

    async def stop(self) -> None:
        """Let the cluster drain, within `drain_timeout` and a margin."""
        await self._child.stop(self._settings.drain_timeout + STOP_MARGIN)

    def end(self) -> None:
        """Kill what is left of the cluster and remove its files."""
        self._child.end()
        self._claim.folder = None
