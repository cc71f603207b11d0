"""After which event of a message a stream goes on."""

from __future__ import annotations

from starlette.requests import Request

from gateway.errors import ApiError
from gateway.generation import Generation
from gateway.messages.events import CLOSING, LAST_OPENING, EventWriter
from gateway.messages.objects import Asked, transcript_of
from gateway.model import ServedModel
from gateway.position import Position


def writer(
    generation: Generation, model: ServedModel, position: Position | None, request: Request, with_ids: bool
) -> EventWriter:
    """What writes the events of a message behind `position`. Closes the generation and raises ApiError where no event
    of this message can have that number."""
    plan = generation.plan
    try:
        if position is not None:
            most = LAST_OPENING + plan.max_new_tokens + 1 + CLOSING
            if len(position.said) != 1 or position.said[0] > most:
                raise position.wrong(f"is not the id of an event of this message: <message>:<n>, n at most {most}")
    except ApiError:
        generation.close()
        raise
    after = -1 if position is None else position.said[0]
    asked, name = Asked.of(generation, model), getattr(request.state, "request_id", None)
    return EventWriter(asked, transcript_of(generation, model), after, with_ids, name)
