"""Refuses a request at once that would wait longer than its client is likely to stay.

Where more comes than the engines can do, all that is let in waits longer and longer; clients leave, most of them when
their turn has come, and the engines work for nobody. With a bound on the wait the engines are as busy, and who is
refused learns at once when to come back.
"""

from __future__ import annotations

from gateway.errors import ApiError, Kind
from gateway.heartbeat import Heartbeat
from services.messages import Submission
from services.pool.pool import RequestPool
from services.requests import BATCH_CLASS


class QueueWait:
    """`most`: seconds that a request may expect to wait for its turn; 0: any time."""

    def __init__(self, pool: RequestPool, heartbeat: Heartbeat, most: float) -> None:
        self._pool = pool
        self._heartbeat = heartbeat
        self._most = most

    async def check(self, submission: Submission) -> None:
        """Raises ApiError where the queue is too long, PoolUnavailable.

        Nobody waits for background requests and lines of batches, so they may. Who comes back to a request that the
        pool has waits behind nobody.
        """
        wait = self._heartbeat.drain.wait(self._heartbeat.ahead())
        patient = submission.background or submission.priority >= BATCH_CLASS
        if not self._most or wait is None or wait <= self._most or patient:
            return
        if submission.idempotency_key is not None and await self._pool.group(submission.request) is not None:
            return
        text = f"A request would wait about {wait:.0f} s for its turn, max_queue_wait is {self._most:g} s."
        excess = self._heartbeat.ahead() * (1 - self._most / wait)
        raise ApiError(Kind.QUEUE_TOO_LONG, text, retry_after=self._heartbeat.drain.retry_after(round(excess)))

    def submitted(self, submission: Submission) -> None:
        """The pool has taken it."""
        if submission.priority < BATCH_CLASS:
            self._heartbeat.submitted += len(submission.sequences)
