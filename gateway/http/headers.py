"""The headers of a request: its caller (`Caller`), and the position of its client in a stream (`Position`)."""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass
from math import nan
from typing import Self

from starlette.datastructures import Headers
from starlette.requests import Request

from gateway.errors import ApiError, Kind
from services.adapters.registry import Adapter
from services.pool.shards import ID_SUFFIX, slot_of

MAX_KEY_CHARS = 255
MIN_TIMEOUT, MAX_TIMEOUT = 0.001, 86_400  # seconds
MAX_LENGTH_DIGITS = 20
_BOOLEANS = {"true": True, "false": False}
_REQUEST = rf"[A-Za-z]{{1,16}}[-_][0-9a-f]{{32}}{ID_SUFFIX}"
_EVENT_ID = re.compile(rf"(?P<request>{_REQUEST}):(?P<counts>[0-9]{{1,10}}(?:\.[0-9]{{1,10}})*)")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and how the request is to be treated. `resumable`: without followers it continues for the pool's grace
    period; `background`: to its end.

    `queue_timeout`: seconds within which an engine must begin the request; None: the setting. `size`: bytes of the
    body. `queue`: the queue for work off the event loop; by default the tenant's. `named_by_fields`: with a key, the id
    of the request depends on its fields alone, not on what they become. `adapter`: the one that the request names as
    its model.
    """

    tenant: str = "default"
    idempotency_key: str | None = None
    resumable: bool = False
    background: bool = False
    queue_timeout: float | None = None
    size: int = 0
    queue: str = ""
    named_by_fields: bool = False
    adapter: Adapter | None = None

    @classmethod
    def of(cls, request: Request) -> Caller:
        """Raises ApiError naming the header that is wrong."""
        key = request.headers.get("idempotency-key")
        if key is not None and not 1 <= len(key) <= MAX_KEY_CHARS:
            text = f"'Idempotency-Key' has {len(key)} characters, 1 to {MAX_KEY_CHARS} are accepted."
            raise ApiError(Kind.INVALID, text)
        resumable = request.headers.get("orca-resumable", "false")
        if resumable.lower() not in _BOOLEANS:
            raise ApiError(Kind.INVALID, f"'Orca-Resumable' must be true or false, got '{resumable[:50]}'.")
        return cls(
            request.state.tenant,
            key,
            resumable=key is not None or _BOOLEANS[resumable.lower()],
            queue_timeout=_seconds(request, "X-Queue-Timeout"),
            size=getattr(request.state, "size", 0),
        )

    def request_name(self, digest: str, inputs: str = "") -> str:
        """32 hexadecimal digits for the id of a request with this digest. With an idempotency key they are a function
        of both, so a request that the pool lost gets the same id when it is posted again.

        `inputs`: the digest of its prompts and sampling. They may have become others, as the prompt depends on the date
        with some chat templates; the request then gets another id, so that it does not continue an earlier stream."""
        return secrets.token_hex(16) if self.idempotency_key is None else self._hash(digest + inputs)[:32]

    @property
    def slot(self) -> int | None:
        """The slot of the idempotency key, which leads to its shard; None without a key."""
        return None if self.idempotency_key is None else slot_of(self.tenant, self.idempotency_key)

    @property
    def work_queue(self) -> str:
        """The queue for work off the event loop."""
        return self.queue or self.tenant

    def seed(self) -> int:
        """A seed of 64 bits for a request without one. With an idempotency key it is a function of the key."""
        return secrets.randbits(64) if self.idempotency_key is None else int(self._hash("seed")[:16], 16)

    def _hash(self, of: str) -> str:
        return hashlib.sha256(f"{self.tenant}\0{self.idempotency_key}\0{of}".encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Position:
    """The `id` of the last event that a client has received (see `openai.events`).

    `counts`: for each choice that has been opened, the number of its events that the client has received.
    """

    request: str
    counts: tuple[int, ...]

    @classmethod
    def of(cls, request: Request) -> Self | None:
        """The value of `Last-Event-ID`; None without the header. Raises ApiError."""
        id = request.headers.get("last-event-id")
        return cls.parse(id) if id else None

    @classmethod
    def of_post(cls, request: Request, stream: bool) -> Self | None:
        """The value of `Last-Event-ID` in a POST; None without the header. Raises ApiError, also if the header is
        present and no stream is requested."""
        position = cls.of(request)
        if position is not None and not stream:
            raise ApiError(Kind.INVALID, "'Last-Event-ID' is for streams: set 'stream' to true.", "Last-Event-ID")
        return position

    @classmethod
    def parse(cls, id: str) -> Self:
        """Raises ApiError if `id` is not the id of an event."""
        match = _EVENT_ID.fullmatch(id)
        if match is None:
            raise _wrong(id, "is not the id of an event of this server: <request>:<i0>.<i1>...")
        return cls(match["request"], tuple(map(int, match["counts"].split("."))))

    def wrong(self, text: str) -> ApiError:
        """The error of this position; `text` says what is wrong."""
        return _wrong(str(self), text)

    def __str__(self) -> str:
        return f"{self.request}:{'.'.join(map(str, self.counts))}"


def check_encoding(headers: Headers) -> None:
    """Raises ApiError for a body with a Content-Encoding: a compressed one could grow without a bound."""
    given = headers.get("content-encoding", "").strip()
    if given and given.lower() != "identity":
        text = f"The body's Content-Encoding is '{given[:100]}'; send it without compression."
        raise ApiError(Kind.COMPRESSED, text, "Content-Encoding")


def content_length(request: Request) -> int:
    """The value of `Content-Length`; 0 without one. The server that parses HTTP has refused what is not a length of 64
    bits, but its digits may begin with thousands of zeros, which Python does not read."""
    digits = request.headers.get("content-length", "").lstrip("0")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= MAX_LENGTH_DIGITS else 0


def _wrong(id: str, text: str) -> ApiError:
    return ApiError(Kind.INVALID, f"'Last-Event-ID' {id[:200]} {text}.", "Last-Event-ID")


def _seconds(request: Request, name: str) -> float | None:
    """The value of the header; None without it. Raises ApiError."""
    text = request.headers.get(name)
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = nan
    if not MIN_TIMEOUT <= seconds <= MAX_TIMEOUT:
        wanted = f"a number of seconds from {MIN_TIMEOUT} to {MAX_TIMEOUT}"
        raise ApiError(Kind.INVALID, f"'{name}' must be {wanted}, got '{text[:50]}'.")
    return seconds
