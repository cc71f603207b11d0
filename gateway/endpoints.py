"""The endpoints that generate tokens or make vectors, and their routes; `/v1/streams/{request}`, which resumes or
cancels a stream."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from gateway.answer.plan import AnswerKind
from gateway.anthropic.routes import Messages
from gateway.endpoint import Endpoint
from gateway.errors import ApiError, Kind
from gateway.gateway import gateway_of
from gateway.http.headers import Position
from gateway.http.openapi import ENDS_WITHOUT_ANSWER, LAST_EVENT_ID, POOL_ERRORS, documented
from gateway.openai.endpoints import ChatCompletions, Completions
from gateway.responses.routes import Responses
from gateway.schemas.chat import ChatCompletionChunk
from gateway.schemas.completions import CompletionChunk
from gateway.vectors.endpoints import Classify, Embeddings, Rerank, Score

ALL: tuple[Endpoint[Any], ...] = (
    ChatCompletions(),
    Completions(),
    Responses(),
    Messages(),
    Embeddings(),
    Score(),
    Rerank(),
    Classify(),
)
ENDPOINTS = {endpoint.path: endpoint for endpoint in ALL}
BATCHED = tuple(endpoint.path for endpoint in ALL if endpoint.batched)
_BY_KIND = {endpoint.kind: endpoint for endpoint in ALL}
assert len(_BY_KIND) == len(ALL), "two endpoints have one kind of answer, and `stream` would resume both as one of them"

router = APIRouter()
for _endpoint in ALL:
    for _path in (_endpoint.path, *_endpoint.aliases):
        router.add_api_route(
            _path,
            _endpoint.handle,
            methods=["POST"],
            name=_endpoint.name,
            description=_endpoint.__doc__,
            **_endpoint.document(),
        )


@router.get(
    "/v1/streams/{name}",
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
    """The events after the given position of a request that was made on any connection, at any gateway."""
    gateway, position = await gateway_of(request).holding(name), Position.of(request)
    if position is not None and position.request != name:
        raise position.wrong(f"is not of request '{name[:100]}'")
    generation = await gateway.shards.of(name).generations.follow(name, request.state.tenant, request.receive)
    if generation.plan.kind is AnswerKind.RESPONSE:
        generation.close()
        raise ApiError(Kind.INVALID, f"'{name}' is read with GET /v1/responses/{name}?stream=true.")
    return await _BY_KIND[generation.plan.kind].stream(gateway, generation, position, True, request)


@router.delete("/v1/streams/{name}", **documented(errors=(*POOL_ERRORS, Kind.REQUEST_NOT_FOUND)))
async def cancel(request: Request, name: str) -> Response:
    """Cancels a request, which otherwise continues for its grace period without a client if it is resumable."""
    gateway = await gateway_of(request).holding(name)
    await gateway.shards.of(name).generations.cancel(name, request.state.tenant)
    return Response()
