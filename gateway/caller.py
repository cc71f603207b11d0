"""Who asks, and whether it may come back: what the headers of a request say."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

from starlette.requests import Request

from gateway.errors import ApiError, Kind

MAX_KEY_CHARS = 255
_SWITCH = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Caller:
    """`resumable`: the request goes on for the pool's grace when nobody follows it; `background`: to its end."""

    tenant: str = "default"
    idempotency_key: str | None = None
    resumable: bool = False
    background: bool = False

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
        return cls(idempotency_key=key, resumable=key is not None or _SWITCH[asked.lower()])

    def seed(self) -> int:
        """For a request without one, 64 bits. A function of the idempotency key, so that a request which the pool lost
        gives the same tokens when it is posted again; else drawn."""
        if self.idempotency_key is None:
            return secrets.randbits(64)
        named = hashlib.sha256(f"{self.tenant}\0{self.idempotency_key}".encode()).digest()
        return int.from_bytes(named[:8], "big")
