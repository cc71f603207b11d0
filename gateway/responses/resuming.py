"""After which event a stream goes on: `starting_after`, or `Last-Event-ID` as for other streams."""

from __future__ import annotations

from starlette.requests import Request

from gateway.errors import ApiError, Kind
from gateway.position import Position

_SWITCH = {"true": True, "false": False}
MAX_DIGITS = 10


def after_of(request: Request, id: str) -> int | None:
    """The number of the last event that the client of a retrieval has of response `id`, -1 for none; None: it asks
    for no stream. `starting_after` wins over `Last-Event-ID`. Raises ApiError naming what is wrong.
    """
    asked, number = request.query_params.get("stream", "false"), request.query_params.get("starting_after")
    if asked not in _SWITCH:
        raise ApiError(Kind.INVALID, f"Invalid 'stream': must be true or false (got '{asked[:50]}').", "stream")
    if number is not None and not _SWITCH[asked]:
        raise ApiError(Kind.INVALID, "'starting_after' is only allowed when 'stream' is true.", "starting_after")
    position = position_of(request, _SWITCH[asked])
    if position is not None and position.request != id:
        raise position.wrong(f"is not of response '{id[:100]}'")
    if number is not None:
        return _number(number)
    if not _SWITCH[asked]:
        return None
    return position.said[0] if position else -1


def position_of(request: Request, stream: bool) -> Position | None:
    """What `Last-Event-ID` says. Raises ApiError where it is no id of a response's event, or no stream is asked for."""
    position = Position.of_post(request, stream)
    if position is not None and len(position.said) != 1:
        raise position.wrong("is not the id of a response's event: <response>:<sequence_number>")
    return position


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS):
        text = f"Invalid 'starting_after': must be the number of an event (got '{text[:50]}')."
        raise ApiError(Kind.INVALID, text, "starting_after")
    return int(text)
