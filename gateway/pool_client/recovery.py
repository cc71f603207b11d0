"""Putting back what the pool lost: a request is submitted again under its id, with the tokens this gateway holds.

An outage can cost the pool's server the last seconds of what it was told. Whoever holds more gives it back.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from gateway.errors import ApiError, Kind
from gateway.pool_client.event_buffer import Inbox
from gateway.pool_client.event_reader import PATIENCE, Reader
from gateway.pool_client.leaving import Leaving
from gateway.refused import refused
from services.errors import PoolUnavailable
from services.messages import NewSequence, Submission
from services.pool.pool import RequestPool

PERIOD = 0.5  # seconds between rounds while something is lost

log = logging.getLogger(__name__)


class PutBack:
    """Looks after the requests that the reader found to be lost.

    One that was submitted here goes back, again and again while the pool is full. One that was submitted elsewhere is
    waited for `PATIENCE` seconds: whoever has its prompt puts it back meanwhile. Then its followers are told, as they
    are at once of one that with all its output is too much for any pool.
    """

    def __init__(self, pool: RequestPool, reader: Reader, leaving: Leaving) -> None:
        self._pool = pool
        self._reader = reader
        self._leaving = leaving

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._reader.anything_lost.wait()
            try:
                await self.round()
            except PoolUnavailable as error:
                log.debug("nothing is put back: %s", error)
            await asyncio.sleep(PERIOD)

    async def round(self) -> None:
        """One try for all that is lost. Raises PoolUnavailable."""
        now = asyncio.get_running_loop().time()
        hopeless = []
        for request, since in list(self._reader.lost.items()):
            ours = [inbox for inbox in self._reader.followers(request) if inbox.submission]
            if ours:
                most = max(ours, key=lambda inbox: sum(map(len, inbox.tokens.values())))
                await self._submit(most, waited=now - min(inbox.since for inbox in ours))
            elif since < now - PATIENCE:
                hopeless.append(request)
        await self._reader.reread_requests(list(self._reader.lost))
        for request in hopeless:
            if request in self._reader.lost:
                self._reader.give_up(request, ApiError(Kind.FAILED, "The pool does not hold this request any more."))

    async def _submit(self, inbox: Inbox, waited: float) -> None:
        """It waits again where it did: the pool takes off the time since its arrival here."""
        assert inbox.submission is not None
        submission = replace(with_output(inbox.submission, inbox), waited=waited)
        reply = await self._pool.submit(submission)
        if reply.request != submission.request:  # its idempotency key names another request by now
            self._leaving.leave(reply.request)
            reply = await self._pool.submit(replace(submission, idempotency_key=None))
        if reply.refused is not None and reply.refused.for_good:
            self._reader.give_up(inbox.request, refused(reply.refused))
        elif reply.refused is None:
            log.warning("the pool had lost %s: put back", inbox.request)


def with_output(submission: Submission, inbox: Inbox) -> Submission:
    """The submission with all that came for it. The end of a choice that has ended is found again in its tokens."""
    return replace(submission, sequences=[_with_output(s, inbox) for s in submission.sequences])


def _with_output(sequence: NewSequence, inbox: Inbox) -> NewSequence:
    logprobs = None if sequence.sampling.logprobs is None else list(inbox.logprobs[sequence.id])
    return replace(sequence, output=list(inbox.tokens[sequence.id]), logprobs=logprobs)
