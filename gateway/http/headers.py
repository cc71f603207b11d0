"""Who asks, and whether it may come back: what the headers of a request say."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from math import nan

from starlette.requests import Request

from gateway.errors import ApiError, Kind

MAX_KEY_CHARS = 255
MIN_TIMEOUT, MAX_TIMEOUT = 0.001, 86_400
_SWITCH = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Caller:
    """`resumable`: the request goes on for the pool's grace when nobody follows it; `background`: to its end.

    `queue_timeout`: seconds within which it must begin; None: as the settings say. `size`: bytes of the body. `line`:
    behind whom it is worked on at the desk; the tenant, unless said.
    """

    tenant: str = "default"
    idempotency_key: str | None = None
    resumable: bool = False
    background: bool = False
    queue_timeout: float | None = None
    size: int = 0
    line: str = ""

    @classmethod
    def of(cls, request: Request) -> Caller:
        """Raises ApiError naming the header that is wrong."""
        key = request.headers.get("idempotency-key")
        if key is not None and not 1 <= len(key) <= MAX_KEY_CHARS:
            text = f"'Idempotency-Key' has {len(key)} characters, 1 to {MAX_KEY_CHARS} are taken."
            raise ApiError(Kind.INVALID, text)
        asked = request.headers.get("orca-resumable", "false")
        if asked.lower() not in _SWITCH:
            raise ApiError(Kind.INVALID, f"'Orca-Resumable' must be true or false, got '{asked[:50]}'.")
        resumable = key is not None or _SWITCH[asked.lower()]
        seconds, size = _seconds(request, "X-Queue-Timeout"), getattr(request.state, "size", 0)
        return cls(request.state.tenant, key, resumable, queue_timeout=seconds, size=size)

    def name(self, digest: str) -> str:
        """32 hexadecimal digits that name a request with this digest. With an idempotency key they are a function of
        both: a request that the pool lost has the same name when it is posted again."""
        return secrets.token_hex(16) if self.idempotency_key is None else self._hash(digest)[:32]

    @property
    def at_desk(self) -> str:
        """In whose line its work is."""
        return self.line or self.tenant

    def seed(self) -> int:
        """For a request that has none, 64 bits; with an idempotency key a function of it, for the same reason."""
        return secrets.randbits(64) if self.idempotency_key is None else int(self._hash("seed")[:16], 16)

    def _hash(self, of: str) -> str:
        return hashlib.sha256(f"{self.tenant}\0{self.idempotency_key}\0{of}".encode()).hexdigest()


def _seconds(request: Request, name: str) -> float | None:
    """What the header says; None where there is none. Raises ApiError."""
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
