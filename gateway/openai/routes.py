"""OpenAI's routes: completions, chats, models; and `/v1/streams/{request}`, which resumes or cancels a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from fastapi import APIRouter, Request
from starlette.responses import Response

from gateway.answer.plan import AnswerKind
from gateway.anthropic.events import message_event_writer
from gateway.errors import Kind
from gateway.gateway import gateway_of
from gateway.http.body import parse
from gateway.http.documented import (
    ENDS_WITHOUT_ANSWER,
    GENERATION_ERRORS,
    GENERATION_HEADERS,
    LAST_EVENT_ID,
    POOL_ERRORS,
    documented,
)
from gateway.http.headers import Caller, Position
from gateway.openai.answer import Answer
from gateway.openai.events import chunk_writer
from gateway.schemas.answers import Model, ModelList
from gateway.schemas.chat import ChatCompletion, ChatCompletionChunk, ChatRequest
from gateway.schemas.completions import Completion, CompletionChunk, CompletionRequest
from gateway.streaming import streaming_response, whole_response
from gateway.validation import ValidatedRequest

F = TypeVar("F", CompletionRequest, ChatRequest)

router = APIRouter(prefix="/v1")


@router.post(
    "/completions",
    **documented(
        takes=CompletionRequest,
        gives=Completion,
        streams=CompletionChunk,
        parameters=GENERATION_HEADERS,
        errors=GENERATION_ERRORS,
    ),
)
async def completions(request: Request) -> Response:
    """Completes texts or token ids."""
    return await _answer(request, CompletionRequest, gateway_of(request).validator.completion)


@router.post(
    "/chat/completions",
    **documented(
        takes=ChatRequest,
        gives=ChatCompletion,
        streams=ChatCompletionChunk,
        parameters=GENERATION_HEADERS,
        errors=GENERATION_ERRORS,
    ),
)
async def chat_completions(request: Request) -> Response:
    """Answers a conversation."""
    return await _answer(request, ChatRequest, gateway_of(request).validator.chat)


@router.get("/models", **documented(gives=ModelList))
async def models(request: Request) -> dict[str, object]:
    """The served model under each of its names. `has_more`, `first_id` and `last_id` are for Anthropic's clients."""
    gateway = gateway_of(request)
    names = gateway.model.names
    cards = [gateway.model_card(name) for name in names]
    return {"object": "list", "data": cards, "has_more": False, "first_id": names[0], "last_id": names[-1]}


@router.get("/models/{name:path}", **documented(gives=Model, errors=(Kind.MODEL_NOT_FOUND,)))
async def model(request: Request, name: str) -> dict[str, object]:
    """The model, if it is the served one."""
    gateway = gateway_of(request)
    gateway.validator.check_model(name)
    return gateway.model_card(name)


@router.get(
    "/streams/{name}",
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
    gateway, position = gateway_of(request), Position.of(request)
    if position is not None and position.request != name:
        raise position.wrong(f"is not of request '{name[:100]}'")
    generation = await gateway.shards.follow(name, request.state.tenant, request.receive)
    if generation.plan.kind is AnswerKind.MESSAGE:
        return await streaming_response(
            generation, lambda: message_event_writer(generation, gateway.model, position, request, with_ids=True)
        )
    return await streaming_response(
        generation, lambda: chunk_writer(generation, gateway.model, position, with_ids=True)
    )


@router.delete("/streams/{name}", **documented(errors=(*POOL_ERRORS, Kind.REQUEST_NOT_FOUND)))
async def cancel(request: Request, name: str) -> Response:
    """Cancels a request, which otherwise continues for its grace period without a client if it is resumable."""
    await gateway_of(request).shards.cancel(name, request.state.tenant)
    return Response()


async def _answer(
    request: Request, schema: type[F], validate: Callable[[F, Caller], Awaitable[ValidatedRequest]]
) -> Response:
    """Answer a completion or chat completion, as a whole or as a stream."""
    gateway, received = gateway_of(request), asyncio.get_running_loop().time()
    with gateway.rejections_counted():
        fields = await parse(request, schema, gateway.limits)
        validated = await validate(fields, Caller.of(request))
        position = Position.of_post(request, validated.stream)
        generation = await gateway.shards.open(validated, position, request.receive, received)
    if validated.stream:
        with_ids = validated.submission.resumable or position is not None
        return await streaming_response(generation, lambda: chunk_writer(generation, gateway.model, position, with_ids))
    return await whole_response(generation, Answer(generation.plan, gateway.model, generation.request))
