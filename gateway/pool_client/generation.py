"""One request as a handler sees it that answers a client: events until all its choices have ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Self

from starlette.types import Receive

from gateway.answer.plan import Plan
from gateway.errors import ClientGone
from gateway.pool_client.event_buffer import Inbox
from gateway.pool_client.timing import Timing
from services.messages import TokenEvent

log = logging.getLogger(__name__)


class Generation:
    """A follower of a request; `with generation:` closes it. `request` and `plan` are the ones the pool has.

    `receive` tells when the client goes; without it, whoever opened the generation closes it.
    """

    def __init__(
        self,
        plan: Plan,
        inbox: Inbox,
        on_close: Callable[[Inbox], None],
        receive: Receive | None,
        timing: Timing | None = None,
    ) -> None:
        self.request = inbox.request
        self.plan = plan
        self._inbox = inbox
        self._on_close = on_close
        self._timing = timing
        self._watcher = asyncio.create_task(_watch(receive, inbox)) if receive else None

    async def take(self, until: float | None = None) -> list[TokenEvent]:
        """What has come: events in order for each sequence, from index 0 on, none twice. At least one, or none at the
        loop's time `until`. Raises ClientGone, GatewayStops, or ApiError when the request is lost."""
        events = await self._inbox.take(until)
        if self._timing:
            self._timing.observe(events, self._inbox.arrived)
        return events

    def close(self) -> None:
        """This follower wants no more. When it was the last of an open request, the request ends, now or later."""
        if self._watcher:
            self._watcher.cancel()
        self._on_close(self._inbox)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def _watch(receive: Receive, inbox: Inbox) -> None:
    """Until the client goes. A server that can no longer say so (Serve's proxy died) has lost it too."""
    try:
        while (await receive())["type"] != "http.disconnect":
            pass
    except Exception as error:
        log.debug("no more word of the client: %r", error)
    inbox.fail(ClientGone())
