"""A response when all of it is there."""

from __future__ import annotations

from typing import Any

from gateway.errors import ApiError, Kind
from gateway.responses import objects
from gateway.responses.stored import StoredResponse
from services.requests import FinishReason


async def whole(stored: StoredResponse) -> dict[str, Any]:
    """OpenAI's response object. Raises ApiError where there is no answer."""
    await stored.read(None)
    end = stored.transcript.end
    assert end is not None
    if end.reason is FinishReason.ERROR:
        raise ApiError(Kind.FAILED, objects.failure(end))
    if end.reason is FinishReason.CANCELLED:
        raise ApiError(Kind.CANCELLED, "The request was cancelled.")
    return objects.response(stored.asked, stored.transcript)
