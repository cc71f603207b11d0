"""A line of a batch becomes the request that it would be over HTTP, and its answer an entry of the batch's files."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import orjson

from gateway.answer import Answer
from gateway.batches.record import BatchRecord
from gateway.batches.segments import Answered
from gateway.batches.work import entry_id
from gateway.body import loads, validate
from gateway.caller import Caller
from gateway.door import Ticket, digest_of
from gateway.errors import ApiError, GatewayStops, Kind
from gateway.gateway import Gateway
from gateway.generation import Generation
from gateway.plan import AnswerKind
from gateway.responses.creation import ticket_of as response_ticket
from gateway.responses.finding import opened
from gateway.responses.whole import whole as whole_response
from gateway.schemas.chat import ChatRequest
from gateway.schemas.common import GenerationFields
from gateway.schemas.completions import CompletionRequest
from gateway.schemas.responses import ResponseRequest
from gateway.streams import whole
from gateway.tickets import chat_ticket, completion_ticket
from gateway.values import most_values
from services.errors import PoolUnavailable
from services.requests import BATCH_CLASS

F = TypeVar("F", bound=GenerationFields)

# errors that say something about the moment, not about the line: it is tried again
PASSING = {
    Kind.TOO_MANY_LONG,
    Kind.TOO_MANY_FOLLOWERS,
    Kind.POOL_FULL,
    Kind.NO_ENGINE,
    Kind.POOL_UNAVAILABLE,
    Kind.STOPPING,
}
# the request under the line's name was ended from outside, or came back as another: it is asked for anew
BROKEN = {Kind.CANCELLED, Kind.DIVERGED}
_KINDS: dict[str, tuple[AnswerKind, type[GenerationFields]]] = {
    "/v1/chat/completions": (AnswerKind.CHAT, ChatRequest),
    "/v1/completions": (AnswerKind.COMPLETION, CompletionRequest),
    "/v1/responses": (AnswerKind.RESPONSE, ResponseRequest),
}
PAUSE = 1.0  # seconds between tries
RENEWALS = 3  # of a broken request, before that is the line's answer

log = logging.getLogger(__name__)


class LineAnswerer:
    """Answers lines of one batch. `asked` is told the request that a line has become."""

    def __init__(self, gateway: Gateway, record: BatchRecord, asked: Callable[[int, str], None]) -> None:
        self._gateway = gateway
        self._record = record
        self._asked = asked
        self._line = f"{record.tenant}\0batches"  # at the desk: behind each other, not before the tenant's own requests

    async def answer(self, number: int, line: bytes) -> Answered:
        """The entry of line `number`. Waits until there is one: for an engine, for the pool, for a place in it.

        The request's name and seed are functions of batch and line. So a line that is asked for again finds the request
        of the first time, or makes one whose tokens are the same.
        """
        value = await self._read(line)
        broken = 0
        while True:
            try:
                request, body = await self._ask(number, len(line), value["body"])
                return self._entry(number, value["custom_id"], 200, request, body)
            except ApiError as error:
                if error.kind in BROKEN and broken < RENEWALS:
                    broken += 1
                elif error.kind not in PASSING:
                    status, body = error.kind.status, orjson.dumps(error.body())
                    return self._entry(number, value["custom_id"], status, entry_id(self._record.id, number), body)
            except (PoolUnavailable, GatewayStops) as error:
                log.debug("line %d of %s waits: %r", number, self._record.id, error)
            except Exception:
                log.exception("line %d of %s failed", number, self._record.id)
                body = orjson.dumps(ApiError(Kind.INTERNAL, "Internal error; the server's log says more.").body())
                return self._entry(number, value["custom_id"], 500, entry_id(self._record.id, number), body)
            await asyncio.sleep(PAUSE)

    async def name(self, number: int, line: bytes) -> None:
        """Tell `asked` which request this line becomes, or has become, if it is one that can be asked for."""
        value = await self._read(line)
        caller = self._caller(number, len(line))
        kind, schema = _KINDS[self._record.endpoint]
        with contextlib.suppress(ApiError):
            fields = await self._fields(schema, value["body"], caller)
            self._asked(number, kind.prefix + caller.name(digest_of(fields)))

    async def _read(self, line: bytes) -> dict[str, Any]:
        """The line, which was checked with all others. Waits for its turn at the desk."""
        desk, most = self._gateway.desk, most_values(self._gateway.model.info.max_model_len)
        while True:
            try:
                return await desk.do(self._line, len(line), loads, line, most)
            except ApiError as error:
                if error.kind is not Kind.TOO_MANY_LONG:
                    raise
            await asyncio.sleep(PAUSE)

    async def _ask(self, number: int, size: int, body: dict[str, Any]) -> tuple[str, bytes]:
        """The id of the request and its answer's JSON; `size` is the line's. Raises ApiError, PoolUnavailable."""
        gateway, limit = self._gateway, self._gateway.settings.max_body_bytes
        if size > limit:
            raise ApiError(Kind.BODY_TOO_LARGE, f"The line is longer than the {limit} bytes this server takes.")
        caller = self._caller(number, size)
        ticket = await self._ticket(body, caller)
        # a line waits for as long as others go first: the batch's window is its only deadline
        submission = replace(ticket.submission, priority=BATCH_CLASS, idempotency_key=None, queue_timeout=0.0)
        ticket, request = replace(ticket, submission=submission), submission.request
        self._asked(number, request)
        try:
            generation = await gateway.generations.open(ticket, None, None, caller.at_desk)
            return request, await self._whole(generation, caller)
        except ApiError as error:
            if error.kind in BROKEN:
                await gateway.pool.delete(request)
            if error.kind is Kind.REQUEST_NOT_FOUND:
                raise PoolUnavailable(f"the pool lost {request} between two calls") from error
            raise

    def _caller(self, number: int, size: int) -> Caller:
        # the key makes the request's name and seed, and no client has it: headers hold no NUL
        key = f"\0{self._record.id}\0{number}"
        return Caller(self._record.tenant, key, resumable=True, background=True, size=size, line=self._line)

    async def _ticket(self, body: dict[str, Any], caller: Caller) -> Ticket:
        gateway, endpoint = self._gateway, self._record.endpoint
        if endpoint == "/v1/chat/completions":
            return await chat_ticket(gateway, await self._fields(ChatRequest, body, caller), caller)
        if endpoint == "/v1/completions":
            return await completion_ticket(gateway, await self._fields(CompletionRequest, body, caller), caller)
        return await response_ticket(gateway, await self._fields(ResponseRequest, body, caller), caller)

    async def _fields(self, model: type[F], body: dict[str, Any], caller: Caller) -> F:
        return await self._gateway.desk.do(caller.at_desk, caller.size, self._parsed, model, body)

    def _parsed(self, model: type[F], body: dict[str, Any]) -> F:
        fields = validate(model, body, ignore_unknown=self._gateway.settings.unknown_fields == "ignore")
        if fields.stream:
            raise ApiError(Kind.INVALID, "Invalid 'stream': a line of a batch is answered as a whole.", "stream")
        return fields

    async def _whole(self, generation: Generation, caller: Caller) -> bytes:
        if self._record.endpoint == "/v1/responses":
            with await opened(self._gateway, generation, caller.at_desk) as stored:
                return await whole_response(stored)
        response = await whole(generation, Answer(generation.plan, self._gateway.model, generation.request))
        return bytes(response.body)

    def _entry(self, number: int, custom_id: str, status: int, request: str, body: bytes) -> Answered:
        response = {"status_code": status, "request_id": request, "body": orjson.Fragment(body)}
        id = entry_id(self._record.id, number)
        entry = {"id": id, "custom_id": custom_id, "response": response, "error": None}
        return Answered(number, status == 200, orjson.dumps(entry))
