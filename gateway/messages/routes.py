"""Anthropic's routes for messages: create, and count the tokens of a prompt."""

from __future__ import annotations

import asyncio

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from gateway.body import parse
from gateway.caller import Caller
from gateway.choice import failure
from gateway.documented import BODY_ERRORS, GENERATION_ERRORS, GENERATION_HEADERS, documented
from gateway.door import Ticket
from gateway.errors import ApiError, Kind
from gateway.gateway import Gateway, of
from gateway.generation import Generation, size_of
from gateway.messages.errors import OVERLOADED, PATH
from gateway.messages.events import writer
from gateway.messages.objects import Asked, message, transcript_of
from gateway.model import ServedModel
from gateway.plan import AnswerKind
from gateway.position import Position
from gateway.prompts import chat_tokens
from gateway.schemas.message_answers import MessageError, MessageEvent, MessageObject, TokenCount
from gateway.schemas.messages import Conversation, CountTokensRequest, MessageRequest
from gateway.streams import streamed

router = APIRouter(prefix=PATH)
STATUSES = {503: OVERLOADED}


@router.post(
    "",
    **documented(
        takes=MessageRequest,
        gives=MessageObject,
        streams=MessageEvent,
        parameters=GENERATION_HEADERS,
        errors=(*GENERATION_ERRORS, Kind.INVALID_KEY, Kind.UNKNOWN_HOST),
        error=MessageError,
        statuses=STATUSES,
    ),
)
async def create(request: Request) -> Response:
    """Answers a conversation; whole or as a stream."""
    gateway, received = of(request), asyncio.get_running_loop().time()
    try:
        fields = await parse(request, MessageRequest)
        caller, position = Caller.of(request), Position.of_post(request, bool(fields.stream))
        ticket = await _ticket(gateway, fields, caller)
        if position is None:
            generation = await gateway.generations.open(ticket, request.receive, received)
        else:
            generation = await gateway.generations.resume(ticket, position, request.receive, received)
    except ApiError as error:
        gateway.counters.inc("vllm:admission_rejections", reason=error.kind.name.lower())
        raise
    if not fields.stream:
        return await _whole(generation, gateway.model)
    with_ids = caller.resumable or position is not None
    return await streamed(generation, writer(generation, gateway.model, position, request, with_ids))


@router.post(
    "/count_tokens",
    **documented(
        takes=CountTokensRequest,
        gives=TokenCount,
        errors=(*BODY_ERRORS, Kind.INVALID_KEY, Kind.UNKNOWN_HOST),
        error=MessageError,
        statuses=STATUSES,
    ),
)
async def count_tokens(request: Request) -> dict[str, int]:
    """The number of prompt tokens that the same message would have."""
    gateway = of(request)
    fields = await parse(request, CountTokensRequest)
    prompt = await gateway.desk.do(request.state.tenant, request.state.size, _prompt, gateway, fields)
    return {"input_tokens": len(prompt)}


async def _whole(generation: Generation, model: ServedModel) -> Response:
    """Raises ApiError where there is no answer."""
    with generation:
        transcript = transcript_of(generation, model)
        while transcript.end is None:
            events = await generation.take()
            await generation.work(size_of(events), transcript.add_all, events)
    error = failure(transcript.end)
    if error is not None:
        raise error
    transcript.take()
    return Response(orjson.dumps(message(Asked.of(generation, model), transcript)), media_type="application/json")


async def _ticket(gateway: Gateway, fields: MessageRequest, caller: Caller) -> Ticket:
    """Raises ApiError naming the field, its value and the limit."""
    figures = await gateway.figures()

    def made() -> Ticket:
        prompt = _prompt(gateway, fields)
        return gateway.door.ticket(AnswerKind.MESSAGE, fields, [prompt], "messages", figures, caller)

    return await gateway.desk.do(caller.at_desk, caller.size, made)


def _prompt(gateway: Gateway, fields: Conversation) -> list[int]:
    """Token ids. A last message of the assistant is left open, to be continued. Raises ApiError naming the field."""
    gateway.door.check_model(fields.model)
    turns = fields.turns
    open_end = turns[-1].role == "assistant"
    return chat_tokens(gateway.model, turns, not open_end, continue_final_message=open_end)
