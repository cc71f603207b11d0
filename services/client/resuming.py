"""How a client resumes a stream whose connection broke: what it sends, how long it waits, and when it gives up.

There are no sockets here: `services/client/streaming.py` (asyncio), `load/users/openai_user.py` (gevent) and
`orca chat` (blocking) share this.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable
from typing import Any

import orjson

from services.client.sse import StreamedAnswer, StreamError

PATIENCE = 120.0  # seconds without a sign of life
SILENCE = 60.0  # seconds without a byte after which a connection counts as dead; a server sends something each 15 s
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0  # seconds
LONGEST_RETRY_AFTER = 10.0  # seconds; a server may ask for more


class ResumableRequest:
    """One request under one `Idempotency-Key`, over any number of connections.

    Each connection sends `headers`. After a connection that ended without a whole answer the caller calls `broken` or
    `refused`, which return the seconds to wait before the next one, or raise StreamError if another attempt is useless.
    """

    def __init__(
        self, answer: StreamedAnswer, patience: float = PATIENCE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.key = secrets.token_hex(16)
        self.reconnects = 0  # how often the client has reconnected
        self._answer = answer
        self._patience, self._clock = patience, clock
        self._since = clock()  # the last sign of life
        self._chunks = 0
        self._pause = FIRST_PAUSE

    def headers(self) -> dict[str, str]:
        """The headers of the next connection; the id of the last event tells the server where to continue."""
        last = self._answer.last_id
        return {"Idempotency-Key": self.key} | ({"Last-Event-ID": last} if last else {})

    def broken(self, why: str) -> float:
        """Note that the connection broke or the stream ended too early; return the seconds to wait."""
        if self._answer.chunks and not self._answer.last_id:
            raise StreamError(f"{why}, and its events have no id to go on from")
        return self._again(why)

    def refused(self, status: int, retry_after: str | None, body: bytes) -> float:
        """Note that the server answered with a status other than 200; return the seconds to wait."""
        error = _openai_error(body)
        why = f"status {status}: {error.get('message') if error else body[:200].decode(errors='replace')}"
        if error and error.get("code") == "request_not_found" and self._answer.last_id:
            self._answer.restart()  # the same POST without an id returns the same tokens from the first one on
            return self._again(why)
        passing = retry_after is not None or status >= 500
        if error and (error.get("code") == "generation_failed" or not passing):
            raise StreamError(why, status)
        # while it knows no route `orca-haproxy` answers 503, but Serve's own proxy 404 in plain text
        if not error and status < 500 and status not in (404, 429):
            raise StreamError(why, status)
        return max(self._again(why, status), _seconds(retry_after))

    def _again(self, why: str, status: int = 0) -> float:
        now, self.reconnects = self._clock(), self.reconnects + 1
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
        return 1.0  # an HTTP date, which proxies send
