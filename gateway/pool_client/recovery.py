"""Putting back what the pool lost: a request is submitted again under its id, with the tokens this gateway holds.

In a crash the pool's server can lose the writes of its last seconds. A gateway that holds more puts it back.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from gateway.errors import ApiError, Kind, pool_refusal
from gateway.pool_client.event_reader import PATIENCE, EventBuffer, EventReader
from gateway.pool_client.following import AbandonedRequests
from services.errors import PoolUnavailable
from services.logs import about
from services.messages import NewSequence, Submission
from services.pool.pool import RequestPool

PERIOD = 0.5  # seconds between rounds while requests are lost

log = logging.getLogger(__name__)


class Recovery:
    """Puts back the requests that the reader found to be lost.

    A request that was submitted here is submitted again, repeatedly while the pool is full. For a request that was
    submitted elsewhere, the gateway with its prompt has `PATIENCE` seconds to put it back; then its followers here
    fail. The followers of a request that with its output exceeds the limits of any pool fail at once.
    """

    def __init__(self, pool: RequestPool, reader: EventReader, abandoned: AbandonedRequests) -> None:
        self._pool = pool
        self._reader = reader
        self._abandoned = abandoned

    async def run(self) -> None:
        """Put back lost requests until cancelled."""
        while True:
            await self._reader.anything_lost.wait()
            try:
                await self.round()
            except PoolUnavailable as error:
                log.debug("no request can be put back: %s", error)
            await asyncio.sleep(PERIOD)

    async def round(self) -> None:
        """One try for every lost request. Raises PoolUnavailable."""
        now = asyncio.get_running_loop().time()
        hopeless = []
        for request, since in list(self._reader.lost.items()):
            ours = [buffer for buffer in self._reader.followers(request) if buffer.submission]
            if ours:
                most = max(ours, key=lambda buffer: sum(map(len, buffer.tokens.values())))
                await self._submit(most, waited=now - min(buffer.since for buffer in ours))
            elif since < now - PATIENCE:
                hopeless.append(request)
        await self._reader.reread_requests(list(self._reader.lost))
        for request in hopeless:
            if request in self._reader.lost:
                self._reader.give_up(request, ApiError(Kind.FAILED, "The pool does not hold this request any more."))

    async def _submit(self, buffer: EventBuffer, waited: float) -> None:
        """Submit the request again. It keeps its place in the queue: the pool subtracts `waited` from its arrival."""
        assert buffer.submission is not None
        submission = replace(with_output(buffer.submission, buffer), waited=waited)
        reply = await self._pool.submit(submission)
        if reply.request != submission.request:  # its idempotency key now names another request
            self._abandoned.add(reply.request)
            reply = await self._pool.submit(replace(submission, idempotency_key=None))
        if reply.refused is not None and reply.refused.for_good:
            self._reader.give_up(buffer.request, pool_refusal(reply.refused))
        elif reply.refused is None:
            text = "request %s, which the pool had lost, was put back"
            log.warning(text, buffer.request, extra=about(buffer.request))


def with_output(submission: Submission, buffer: EventBuffer) -> Submission:
    """The submission with the output that has arrived. The end of a finished choice is found again from its tokens."""
    return replace(submission, sequences=[_with_output(s, buffer) for s in submission.sequences])


def _with_output(sequence: NewSequence, buffer: EventBuffer) -> NewSequence:
    logprobs = None if sequence.sampling.logprobs is None else list(buffer.logprobs[sequence.id])
    return replace(sequence, output=list(buffer.tokens[sequence.id]), logprobs=logprobs)
