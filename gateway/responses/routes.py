"""OpenAI's routes for responses: create, retrieve, cancel, delete, their input and its tokens."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from gateway.body import parse
from gateway.caller import Caller
from gateway.documented import (
    BODY_ERRORS,
    GENERATION_ERRORS,
    GENERATION_HEADERS,
    LAST_EVENT_ID,
    POOL_ERRORS,
    documented,
    query,
)
from gateway.errors import ApiError, Kind
from gateway.gateway import Gateway, of
from gateway.position import Position
from gateway.responses import objects
from gateway.responses.creation import input_tokens, ticket_of
from gateway.responses.events import EventWriter
from gateway.responses.finding import find, opened
from gateway.responses.items import DEFAULT_LIMIT, MAX_LIMIT, Page, input_items
from gateway.responses.resuming import after_of, position_of
from gateway.responses.settling import settle
from gateway.responses.stored import StoredResponse
from gateway.responses.whole import whole
from gateway.schemas.response_answers import (
    InputItemList,
    InputTokens,
    ResponseDeleted,
    ResponseEvent,
    ResponseObject,
)
from gateway.schemas.responses import INCLUDABLE, InputTokensRequest, ResponseRequest
from gateway.streams import EventStream

CANCEL_WAIT = 10.0  # seconds that a cancel waits for the scheduler's word

ERRORS = (*POOL_ERRORS, Kind.INVALID, Kind.REQUEST_NOT_FOUND)
INCLUDE = query(
    "include",
    {"type": "array", "items": {"type": "string", "enum": sorted(INCLUDABLE)}},
    "Accepted, without an effect: an answer of text has nothing more to include.",
)
RETRIEVAL = (
    query("stream", {"type": "boolean", "default": False}, "true: the events of the response."),
    query("starting_after", {"type": "integer", "minimum": 0}, "The number of the event before the first one."),
    LAST_EVENT_ID,
    INCLUDE,
)
PAGE = (
    query("limit", {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT}, "Items at most."),
    query("order", {"type": "string", "enum": ["asc", "desc"], "default": "desc"}, "desc: the newest first."),
    query("after", {"type": "string"}, "The id of the item before the first one."),
    INCLUDE,
)

router = APIRouter(prefix="/v1/responses")


@router.post(
    "",
    **documented(
        takes=ResponseRequest,
        gives=ResponseObject,
        streams=ResponseEvent,
        parameters=GENERATION_HEADERS,
        errors=GENERATION_ERRORS,
    ),
)
async def create(request: Request) -> Response:
    """Answers a text or a conversation; whole, as a stream, or in the background."""
    gateway, received = of(request), _now()
    try:
        fields = await parse(request, ResponseRequest)
        caller, position = _caller(request, fields), position_of(request, bool(fields.stream))
        stored = await _created(gateway, request, fields, caller, position, received)
    except ApiError as error:
        gateway.counters.inc("vllm:admission_rejections", reason=error.kind.name.lower())
        raise
    if fields.stream:
        after = position.said[0] if position else -1
        return _streamed(stored, after, with_ids=caller.resumable or position is not None)
    if stored.asked.background:
        try:
            return await _as_it_stands(stored)
        finally:
            settle(stored, gateway.pool)
    with stored:
        return await _whole(stored)


@router.post(
    "/input_tokens",
    **documented(takes=InputTokensRequest, gives=InputTokens, errors=(*BODY_ERRORS, *ERRORS)),
)
async def count_input_tokens(request: Request) -> Response:
    """The number of prompt tokens that a response to the same body would have; nothing is generated."""
    gateway = of(request)
    fields = await parse(request, InputTokensRequest)
    return _json(objects.counted(await input_tokens(gateway, fields, Caller.of(request))))


@router.get("/{id}", **documented(gives=ResponseObject, streams=ResponseEvent, parameters=RETRIEVAL, errors=ERRORS))
async def retrieve(request: Request, id: str) -> Response:
    """The response as it stands, or its events from any of them on."""
    after = after_of(request, id)
    stored = await find(of(request), id, request.state.tenant, request.receive)
    if after is not None:
        return _streamed(stored, after, with_ids=True)
    with stored:
        return await _as_it_stands(stored)


@router.get("/{id}/input_items", **documented(gives=InputItemList, parameters=PAGE, errors=ERRORS))
async def list_input_items(request: Request, id: str) -> Response:
    """What the response was made from, the newest item first unless `order=asc`; earlier turns are in it."""
    page = Page.of(request)
    with await find(of(request), id, request.state.tenant) as stored:
        return _json(input_items(stored, page))


@router.post("/{id}/cancel", **documented(gives=ResponseObject, errors=ERRORS))
async def cancel(request: Request, id: str) -> Response:
    """Waits for the end, so that what the client hears is final; where no scheduler says it, for some seconds."""
    gateway = of(request)
    with await find(gateway, id, request.state.tenant, request.receive) as stored:
        if not stored.asked.background:
            raise ApiError(Kind.INVALID, f"Response '{id}' is not in the background; only those can be cancelled.")
        await stored.read(_now())
        if not stored.ended:
            await gateway.pool.cancel(id)
            await stored.read(_now() + CANCEL_WAIT)
        return _response(await stored.body())


@router.delete("/{id}", **documented(gives=ResponseDeleted, errors=ERRORS))
async def delete(request: Request, id: str) -> Response:
    """Forgets the response; one that runs is cancelled."""
    gateway = of(request)
    with await find(gateway, id, request.state.tenant):
        await gateway.pool.delete(id)
    return _json(objects.deleted(id))


def _caller(request: Request, fields: ResponseRequest) -> Caller:
    caller = Caller.of(request)
    return replace(caller, resumable=True, background=True) if fields.background else caller


async def _created(
    gateway: Gateway,
    request: Request,
    fields: ResponseRequest,
    caller: Caller,
    position: Position | None,
    received: float,
) -> StoredResponse:
    """Submitted, or found where the client comes back to a stream or repeats an idempotency key."""
    ticket = await ticket_of(gateway, fields, caller)
    receive = request.receive if fields.stream or not fields.background else None
    if position is None:
        generation = await gateway.generations.open(ticket, receive, received)
    else:
        generation = await gateway.generations.resume(ticket, position, receive, received)
    return await opened(gateway, generation, caller.at_desk)


def _streamed(stored: StoredResponse, after: int, with_ids: bool) -> Response:
    writer = EventWriter(stored.asked, stored.transcript, after, with_ids)
    return EventStream(stored.generation, writer, writer.created())


async def _as_it_stands(stored: StoredResponse) -> Response:
    await stored.read(_now())
    return _response(await stored.body())


async def _whole(stored: StoredResponse) -> Response:
    """Raises ApiError where there is no answer."""
    return _response(await whole(stored))


def _json(body: dict[str, object]) -> Response:
    return _response(orjson.dumps(body))


def _response(body: bytes) -> Response:
    return Response(body, media_type="application/json")


def _now() -> float:
    return asyncio.get_running_loop().time()
