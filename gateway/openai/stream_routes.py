"""Coming back to a stream: `GET /v1/streams/{request}`, with or without `Last-Event-ID`."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from gateway.answer.plan import AnswerKind
from gateway.answer.streaming import streamed
from gateway.anthropic.events import writer as message_writer
from gateway.errors import ApiError, Kind
from gateway.gateway import of
from gateway.http.documented import ENDS_WITHOUT_ANSWER, LAST_EVENT_ID, POOL_ERRORS, documented
from gateway.model import ServedModel
from gateway.openai.answer import Answer
from gateway.openai.events import SseWriter
from gateway.pool_client.generation import Generation
from gateway.position import Position
from gateway.schemas.answers import ChatCompletionChunk, CompletionChunk

router = APIRouter(prefix="/v1/streams")


@router.get(
    "/{name}",
    **documented(
        streams=ChatCompletionChunk | CompletionChunk,
        parameters=[LAST_EVENT_ID],
        errors=(
            *POOL_ERRORS,
            Kind.INVALID,
            Kind.REQUEST_NOT_FOUND,
            Kind.TOO_MANY_FOLLOWERS,
            Kind.SLOW_READER,
            *ENDS_WITHOUT_ANSWER,
        ),
    ),
)
async def stream(request: Request, name: str) -> Response:
    """The events of a request that was made on any connection, at any gateway, behind the position given."""
    gateway, position = of(request), Position.of(request)
    if position is not None and position.request != name:
        raise position.wrong(f"is not of request '{name[:100]}'")
    generation = await gateway.generations.follow(name, request.state.tenant, request.receive)
    if generation.plan.kind is AnswerKind.MESSAGE:
        return await streamed(generation, message_writer(generation, gateway.model, position, request, with_ids=True))
    return await streamed(generation, writer(generation, gateway.model, position, with_ids=True))


def writer(generation: Generation, model: ServedModel, position: Position | None, with_ids: bool) -> SseWriter:
    """What writes the events behind `position`. Closes the generation and raises ApiError where there is no such
    position."""
    try:
        if generation.plan.kind is AnswerKind.RESPONSE:
            text = f"'{generation.request}' is read with GET /v1/responses/{generation.request}?stream=true."
            raise ApiError(Kind.INVALID, text)
        if position is not None:
            position.check(generation.plan)
    except ApiError:
        generation.close()
        raise
    said = position.said if position else ()
    return SseWriter(Answer(generation.plan, model, generation.request, said), len(said), with_ids)
