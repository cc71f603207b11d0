"""A response when all of it is there."""

from __future__ import annotations

from typing import Any

from gateway.answer.choice import failure
from gateway.responses import objects
from gateway.responses.stored import StoredResponse


async def whole(stored: StoredResponse) -> dict[str, Any]:
    """OpenAI's response object. Raises ApiError where there is no answer."""
    await stored.read(None)
    end = stored.transcript.end
    assert end is not None
    error = failure(end)
    if error is not None:
        raise error
    return objects.response(stored.asked, stored.transcript)
