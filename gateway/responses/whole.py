"""A response when all of it is there."""

from __future__ import annotations

from gateway.choice import failure
from gateway.responses.stored import StoredResponse


async def whole(stored: StoredResponse) -> bytes:
    """JSON of OpenAI's response object. Raises ApiError where there is no answer."""
    await stored.read(None)
    end = stored.transcript.end
    assert end is not None
    error = failure(end)
    if error is not None:
        raise error
    return await stored.body()
