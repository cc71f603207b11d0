"""OpenAI's routes: completions, chat completions, models."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import Response

from gateway.answer.streaming import streamed, whole
from gateway.body import parse
from gateway.errors import ApiError, Kind
from gateway.gateway import Gateway, of
from gateway.http.documented import GENERATION_ERRORS, GENERATION_HEADERS, documented
from gateway.http.headers import Caller
from gateway.openai.answer import Answer
from gateway.openai.stream_routes import writer
from gateway.position import Position
from gateway.schemas.answers import (
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    CompletionChunk,
    Model,
    ModelList,
)
from gateway.schemas.chat import ChatRequest
from gateway.schemas.completions import CompletionRequest
from gateway.tickets import chat_ticket, completion_ticket
from gateway.validation import Ticket

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
    return await _answered(request, chat=False)


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
    return await _answered(request, chat=True)


@router.get("/models", **documented(gives=ModelList))
async def models(request: Request) -> dict[str, object]:
    """The one model. `has_more`, `first_id` and `last_id` are for Anthropic's clients."""
    card = of(request).model.card()
    return {"object": "list", "data": [card], "has_more": False, "first_id": card["id"], "last_id": card["id"]}


@router.get("/models/{name:path}", **documented(gives=Model, errors=(Kind.MODEL_NOT_FOUND,)))
async def model(request: Request, name: str) -> dict[str, object]:
    """The model, if it is the one that is served."""
    gateway = of(request)
    gateway.door.check_model(name)
    return gateway.model.card()


async def _answered(request: Request, chat: bool) -> Response:
    gateway = of(request)
    received = asyncio.get_running_loop().time()
    try:
        ticket = await _ticket(gateway, request, chat)
        position = Position.of_post(request, ticket.stream)
        if position is None:
            generation = await gateway.generations.open(ticket, request.receive, received)
        else:
            generation = await gateway.generations.resume(ticket, position, request.receive, received)
    except ApiError as error:
        gateway.counters.inc("vllm:admission_rejections", reason=error.kind.name.lower())
        raise
    if ticket.stream:
        with_ids = ticket.submission.resumable or position is not None
        return await streamed(generation, writer(generation, gateway.model, position, with_ids))
    return await whole(generation, Answer(generation.plan, gateway.model, generation.request))


async def _ticket(gateway: Gateway, request: Request, chat: bool) -> Ticket:
    if chat:
        return await chat_ticket(gateway, await parse(request, ChatRequest), Caller.of(request))
    return await completion_ticket(gateway, await parse(request, CompletionRequest), Caller.of(request))
