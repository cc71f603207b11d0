"""How a client comes back to a stream whose connection broke: what to send, after which pause, when to give up.

No sockets: `load/stream_client.py` (asyncio), `load/locustfile.py` (gevent) and `orca chat` (blocking) share it.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable
from typing import Any

import orjson

from load.sse import Answer, StreamError

PATIENCE = 120.0  # seconds without a sign of life
SILENCE = 60.0  # seconds without a byte after which a connection is taken for dead: servers say something each 15 s
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0  # seconds
LONGEST_RETRY_AFTER = 10.0  # of what a server may ask for


class Comeback:
    """One request under one `Idempotency-Key`, over as many connections as it takes.

    Before each: `headers`. After each that gave no whole answer: `broken` or `refused`, which say how long to wait
    before the next, or raise StreamError when there is no point in one.
    """

    def __init__(self, answer: Answer, patience: float = PATIENCE, clock: Callable[[], float] = time.monotonic) -> None:
        self.key = secrets.token_hex(16)
        self.times = 0  # how often the client had to come back
        self._answer = answer
        self._patience, self._clock = patience, clock
        self._since = clock()  # the last sign of life
        self._chunks = 0
        self._pause = FIRST_PAUSE

    def headers(self) -> dict[str, str]:
        """The last event's id, where one came, says from where to go on."""
        last = self._answer.last_id
        return {"Idempotency-Key": self.key} | ({"Last-Event-ID": last} if last else {})

    def broken(self, why: str) -> float:
        """No answer, or one that ended too early."""
        if self._answer.chunks and not self._answer.last_id:
            raise StreamError(f"{why}, and its events have no id to go on from")
        return self._again(why)

    def refused(self, status: int, retry_after: str | None, body: bytes) -> float:
        """A status other than 200."""
        error = _openai_error(body)
        why = f"status {status}: {error.get('message') if error else body[:200].decode(errors='replace')}"
        if error and error.get("code") == "request_not_found" and self._answer.last_id:
            self._answer.restart()  # the same POST without an id gives the same tokens from the first on
            return self._again(why)
        passing = retry_after is not None or status >= 500
        if error and (error.get("code") == "generation_failed" or not passing):
            raise StreamError(why, status)
        # while no route is known: `orca-haproxy` answers 503, Serve's own proxy 404, in plain text
        if not error and status < 500 and status not in (404, 429):
            raise StreamError(why, status)
        return max(self._again(why, status), _seconds(retry_after))

    def _again(self, why: str, status: int = 0) -> float:
        now, self.times = self._clock(), self.times + 1
        if self._answer.chunks > self._chunks:
            self._since, self._pause = now, FIRST_PAUSE
        self._chunks = self._answer.chunks
        if now - self._since > self._patience:
            raise StreamError(f"no sign of life for {now - self._since:.0f} s, at last: {why}", status)
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
        return pause * random.uniform(0.5, 1)


def _openai_error(body: bytes) -> dict[str, Any] | None:
    try:
        error = orjson.loads(body)["error"]
    except (ValueError, TypeError, KeyError):
        return None
    return error if isinstance(error, dict) else None


def _seconds(retry_after: str | None) -> float:
    try:
        return min(float(retry_after or 0), LONGEST_RETRY_AFTER)
    except ValueError:
        return 1.0  # a date: proxies send them
