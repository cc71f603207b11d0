"""FramePublisher: sends what a recorder notes to the gateways, as long as one of them asks for it."""

from __future__ import annotations

import asyncio
import logging

from services import wire
from services.errors import PoolUnavailable
from services.live.frames import FRAMES, WATCH_TTL, WATCHES
from services.live.recorder import Recorder
from services.pool.broadcast import Broadcast

PERIOD = 0.075  # seconds between messages
FIRST_RETRY, LAST_RETRY = 1.0, 30.0  # seconds before it listens again to what gateways ask

log = logging.getLogger(__name__)


class FramePublisher:
    """While nobody watches, it waits for a message and does nothing else. It begins as if somebody had just asked, so
    that the first iterations after a take-over are seen by those who watched the owner before.
    """

    def __init__(self, broadcast: Broadcast, recorder: Recorder) -> None:
        self._broadcast = broadcast
        self._recorder = recorder
        self._until = 0.0  # when to stop, in seconds of the loop's clock
        self._asked = asyncio.Event()

    async def run(self) -> None:
        """Publish until cancelled, through outages of the pool's server."""
        self._ask()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._publish())
                group.create_task(self._listen())
        finally:
            self._recorder.watch(False)
            await self._broadcast.close()

    def _ask(self) -> None:
        self._until = asyncio.get_running_loop().time() + WATCH_TTL
        self._asked.set()

    async def _listen(self) -> None:
        retry = FIRST_RETRY
        while True:
            try:
                async for _ in self._broadcast.listen(WATCHES):
                    retry = FIRST_RETRY
                    self._ask()
            except PoolUnavailable as error:
                (log.warning if retry == FIRST_RETRY else log.debug)("nobody can watch the iterations: %s", error)
                await asyncio.sleep(retry)
                retry = min(2 * retry, LAST_RETRY)

    async def _publish(self) -> None:
        now = asyncio.get_running_loop().time
        while True:
            await self._asked.wait()
            self._recorder.watch(True)
            while now() < self._until:
                await asyncio.sleep(PERIOD)
                if batch := self._recorder.take():
                    await self._send(wire.pack(batch))
            self._recorder.watch(False)
            self._asked.clear()

    async def _send(self, message: bytes) -> None:
        try:
            await self._broadcast.publish(FRAMES, message)
        except PoolUnavailable as error:
            log.debug("frames are lost: %s", error)
