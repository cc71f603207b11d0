"""What a client reads when the pool does not take its request."""

from __future__ import annotations

from gateway.errors import ApiError, Kind
from services.refusals import Refusal

WHAT = {
    "waiting": "waiting choices",
    "waiting_tokens": "prompt tokens of waiting choices",
    "streams": "open requests",
    "bytes": "bytes of open requests",
    "message": "bytes in which a request is told to the pool",
}


def refused(refusal: Refusal) -> ApiError:
    """The error: a 400 for what an empty pool would not take either, else a 429 with the time to wait."""
    if refusal.bound == "queue_wait":
        text = (
            f"A request of this API key would wait {refusal.held} s for an engine now, the most is {refusal.limit} s; "
            f"try again in {refusal.retry_after} s."
        )
        return ApiError(Kind.POOL_FULL, text, retry_after=refusal.retry_after)
    whose = "API key" if refusal.own else "server"
    what = WHAT[refusal.bound]
    if refusal.for_good:
        text = f"This request needs {refusal.asked} {what}, this {whose} has a limit of {refusal.limit}."
        return ApiError(Kind.INVALID, text)
    text = (
        f"This {whose} has {refusal.held} {what} of at most {refusal.limit}, this request needs {refusal.asked} more; "
        f"try again in {refusal.retry_after} s."
    )
    return ApiError(Kind.POOL_FULL, text, retry_after=refusal.retry_after)
