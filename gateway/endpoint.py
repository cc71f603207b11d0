"""Endpoint: a route that generates tokens or makes vectors, from its body to its answer.

Each API declares its endpoints, and `gateway.endpoints` registers them. Routes, lines of batches and the OpenAPI
document are made of these declarations.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from fastapi import Request
from starlette.responses import Response

from gateway.answer.plan import AnswerKind
from gateway.errors import ErrorResponse, Kind
from gateway.gateway import Gateway, gateway_of
from gateway.http.body import parse
from gateway.http.headers import Caller, Position
from gateway.http.openapi import GENERATION_ERRORS, GENERATION_HEADERS, documented
from gateway.pool_client.following import Generation
from gateway.schemas.generation import GenerationFields
from gateway.schemas.vectors import VectorFields
from gateway.streaming import WholeAnswer, whole_response
from gateway.validation import ValidatedRequest

F = TypeVar("F", bound=GenerationFields | VectorFields)


class Endpoint(ABC, Generic[F]):
    """A route that generates tokens or makes vectors. The docstring of each subclass describes its operation in the
    document.

    `name`: of the operation; `schema`: of the body; `aliases`: further paths of the route. `answer_type`, `event_type`:
    what the document says of the whole answer and of the data of an event; `errors`, `error_type` and `statuses`: see
    `documented`. `batched`: a line of a batch can ask it; OpenAI's document names the endpoints that a line can ask.
    `stored`: the answer can be read by its id after it has ended.
    """

    name: str
    path: str
    kind: AnswerKind
    schema: type[F]
    answer_type: Any
    event_type: Any
    errors: Sequence[Kind] = GENERATION_ERRORS
    error_type: Any = ErrorResponse
    statuses: Mapping[int, int] = MappingProxyType({})
    aliases: Sequence[str] = ()
    batched = True
    stored = False

    @abstractmethod
    async def validate(self, gateway: Gateway, fields: F, caller: Caller) -> ValidatedRequest:
        """The request that `fields` make. Raises ApiError naming the field, its value and the limit;
        PoolUnavailable."""

    @abstractmethod
    async def answer(self, gateway: Gateway, generation: Generation, queue: str) -> WholeAnswer:
        """The answer that collects the events of `generation`. `queue`: the queue for work off the event loop. Raises
        ApiError; the generation is closed then."""

    @abstractmethod
    async def stream(
        self, gateway: Gateway, generation: Generation, position: Position | None, with_ids: bool, request: Request
    ) -> Response:
        """The events after `position` as a stream, which closes the generation. `with_ids`: each event has an `id`.
        Raises ApiError; the generation is closed then."""

    def headers(self, request: Request, fields: F) -> tuple[Caller, Position | None]:
        """What the headers say. Raises ApiError naming the header that is wrong."""
        return Caller.of(request), Position.of_post(request, bool(fields.stream))

    async def handle(self, request: Request) -> Response:
        """Answer a POST, as a whole or as a stream."""
        process, arrived_at = gateway_of(request), asyncio.get_running_loop().time()
        with process.first.rejections_counted():
            fields = await parse(request, self.schema, process.limits)
            caller, position = self.headers(request, fields)
            gateway, caller = await process.called(fields.model, caller, position.request if position else "")
        with gateway.rejections_counted():
            validated = await self.validate(gateway, fields, caller)
            receive = request.receive if fields.stream or not caller.background else None
            generation = await gateway.shards.open(validated, position, receive, arrived_at)
        if fields.stream:
            with_ids = caller.resumable or position is not None
            return await self.stream(gateway, generation, position, with_ids, request)
        return await self.whole(gateway, generation, caller)

    async def whole(self, gateway: Gateway, generation: Generation, caller: Caller) -> Response:
        """The whole answer as a response, which closes the generation. Raises ApiError if there is no answer."""
        return await whole_response(generation, await self.answer(gateway, generation, caller.work_queue))

    def document(self) -> dict[str, Any]:
        """The description of the route for the document."""
        return documented(
            takes=self.schema,
            gives=self.answer_type,
            streams=self.event_type,
            parameters=GENERATION_HEADERS,
            errors=self.errors,
            error=self.error_type,
            statuses=self.statuses,
        )
