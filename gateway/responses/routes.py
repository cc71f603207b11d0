"""OpenAI's Responses API: the endpoint of responses, and the routes that retrieve, cancel and delete one, list its
input and count its tokens."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from gateway.answer.plan import AnswerKind
from gateway.endpoint import Endpoint
from gateway.errors import ApiError, Kind
from gateway.gateway import Gateway, gateway_of
from gateway.http.body import parse
from gateway.http.headers import Caller, Position
from gateway.http.openapi import (
    BODY_ERRORS,
    LAST_EVENT_ID,
    POOL_ERRORS,
    documented,
    query,
)
from gateway.http.pages import AFTER, ORDER, limit_parameter
from gateway.pool_client.following import Generation
from gateway.responses.events import ResponseEventWriter
from gateway.responses.input_items import DEFAULT_LIMIT, MAX_LIMIT, page_of_items, page_query
from gateway.responses.stored import StoredResponse, find_response, follow_until_stored, stored_response
from gateway.responses.validation import input_token_count, validate_response
from gateway.schemas.response_answers import (
    InputItemList,
    InputTokens,
    ResponseDeleted,
    ResponseEvent,
    ResponseObject,
)
from gateway.schemas.responses import INCLUDABLE, InputTokensRequest, ResponseRequest
from gateway.streaming import EventStream, whole_response
from gateway.validation import ValidatedRequest

CANCEL_WAIT = 10.0  # seconds that a cancel waits for the end of the response
MAX_DIGITS = 10  # of `starting_after`
_BOOLEANS = {"true": True, "false": False}

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
PAGE = (limit_parameter(DEFAULT_LIMIT, MAX_LIMIT), ORDER, AFTER, INCLUDE)

router = APIRouter(prefix="/v1/responses")


class Responses(Endpoint[ResponseRequest]):
    """Answers a text or a conversation: as a whole, as a stream, or in the background."""

    name = "create"
    path = "/v1/responses"
    kind = AnswerKind.RESPONSE
    schema = ResponseRequest
    answer_type, event_type = ResponseObject, ResponseEvent
    stored = True

    def headers(self, request: Request, fields: ResponseRequest) -> tuple[Caller, Position | None]:
        caller, position = Caller.of(request), _position(request, bool(fields.stream))
        return (replace(caller, resumable=True, background=True) if fields.background else caller), position

    async def validate(self, gateway: Gateway, fields: ResponseRequest, caller: Caller) -> ValidatedRequest:
        return await validate_response(gateway, fields, caller)

    async def answer(self, gateway: Gateway, generation: Generation, queue: str) -> StoredResponse:
        return await stored_response(gateway, generation, queue)

    async def stream(
        self, gateway: Gateway, generation: Generation, position: Position | None, with_ids: bool, request: Request
    ) -> Response:
        with gateway.rejections_counted():
            stored = await self.answer(gateway, generation, request.state.tenant)
        return _streaming_response(stored, position.counts[0] if position else -1, with_ids)

    async def whole(self, gateway: Gateway, generation: Generation, caller: Caller) -> Response:
        """In the background: the response as it stands. It is followed until the pool has stored it."""
        with gateway.rejections_counted():
            stored = await self.answer(gateway, generation, caller.work_queue)
        if not caller.background:
            return await whole_response(generation, stored)
        try:
            return await _current(stored)
        finally:
            follow_until_stored(stored, gateway.shards.of(generation.request).pool)


@router.post(
    "/input_tokens",
    **documented(takes=InputTokensRequest, gives=InputTokens, errors=(*BODY_ERRORS, *ERRORS)),
)
async def count_input_tokens(request: Request) -> Response:
    """The number of prompt tokens that a response to the same body would have; nothing is generated."""
    process = gateway_of(request)
    fields = await parse(request, InputTokensRequest, process.limits)
    gateway, caller = await process.called(fields.model, Caller.of(request))
    count = await input_token_count(gateway, fields, caller)
    return _json({"object": "response.input_tokens", "input_tokens": count})


@router.get("/{id}", **documented(gives=ResponseObject, streams=ResponseEvent, parameters=RETRIEVAL, errors=ERRORS))
async def retrieve(request: Request, id: str) -> Response:
    """The response as it stands, or its events after the given one."""
    after = _after(request, id)
    stored = await find_response(gateway_of(request), id, request.state.tenant, request.receive)
    if after is not None:
        return _streaming_response(stored, after, with_ids=True)
    with stored:
        return await _current(stored)


@router.get("/{id}/input_items", **documented(gives=InputItemList, parameters=PAGE, errors=ERRORS))
async def list_input_items(request: Request, id: str) -> Response:
    """The items that the response was made from, including earlier turns; the newest first unless `order=asc`."""
    asked = page_query(request)
    with await find_response(gateway_of(request), id, request.state.tenant) as stored:
        return _json(page_of_items(stored, *asked))


@router.post("/{id}/cancel", **documented(gives=ResponseObject, errors=ERRORS))
async def cancel(request: Request, id: str) -> Response:
    """Cancels a background response and waits some seconds for its end, so that the answer is final."""
    gateway = await gateway_of(request).holding(id)
    with await find_response(gateway.process, id, request.state.tenant, request.receive) as stored:
        if not stored.head.background:
            raise ApiError(Kind.INVALID, f"Response '{id}' is not in the background; only those can be cancelled.")
        await stored.read(_now())
        if not stored.ended:
            await gateway.shards.of(id).pool.cancel(id)
            await stored.read(_now() + CANCEL_WAIT)
        return await stored.current()


@router.delete("/{id}", **documented(gives=ResponseDeleted, errors=ERRORS))
async def delete(request: Request, id: str) -> Response:
    """Deletes the response; if it is running, it is cancelled."""
    gateway = await gateway_of(request).holding(id)
    with await find_response(gateway.process, id, request.state.tenant):
        await gateway.shards.of(id).pool.delete(id)
    return _json({"id": id, "object": "response", "deleted": True})


def _streaming_response(stored: StoredResponse, after: int, with_ids: bool) -> Response:
    writer = ResponseEventWriter(stored.head, stored.transcript, after, with_ids)
    return EventStream(stored.generation, writer, writer.created())


async def _current(stored: StoredResponse) -> Response:
    """The response object as it stands."""
    await stored.read(_now())
    return await stored.current()


def _after(request: Request, id: str) -> int | None:
    """The number of the last event of response `id` that the client has received, -1 for none; None if it requests no
    stream. `starting_after` takes precedence over `Last-Event-ID`. Raises ApiError naming what is wrong."""
    stream, number = request.query_params.get("stream", "false"), request.query_params.get("starting_after")
    if stream not in _BOOLEANS:
        raise ApiError(Kind.INVALID, f"Invalid 'stream': must be true or false (got '{stream[:50]}').", "stream")
    if number is not None and not _BOOLEANS[stream]:
        raise ApiError(Kind.INVALID, "'starting_after' is only allowed when 'stream' is true.", "starting_after")
    position = _position(request, _BOOLEANS[stream])
    if position is not None and position.request != id:
        raise position.wrong(f"is not of response '{id[:100]}'")
    if number is not None:
        return _event_number(number)
    if not _BOOLEANS[stream]:
        return None
    return position.counts[0] if position else -1


def _position(request: Request, stream: bool) -> Position | None:
    """The value of `Last-Event-ID`. Raises ApiError if it is not the id of a response's event, or if no stream is
    requested."""
    position = Position.of_post(request, stream)
    if position is not None and len(position.counts) != 1:
        raise position.wrong("is not the id of a response's event: <response>:<sequence_number>")
    return position


def _event_number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS):
        text = f"Invalid 'starting_after': must be the number of an event (got '{text[:50]}')."
        raise ApiError(Kind.INVALID, text, "starting_after")
    return int(text)


def _json(body: InputTokens | InputItemList | ResponseDeleted) -> Response:
    return Response(orjson.dumps(body), media_type="application/json")


def _now() -> float:
    return asyncio.get_running_loop().time()
