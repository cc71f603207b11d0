"""A response in the pool: what is stored of it besides its tokens, and how any gateway reads it back."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Self

import orjson
from starlette.responses import Response
from starlette.types import Receive

from gateway.answer.items import transcript_of
from gateway.answer.plan import AnswerKind
from gateway.errors import ApiError, GatewayStops, Kind
from gateway.gateway import Gateway, GatewayProcess
from gateway.model import ServedModel
from gateway.pool_client.following import Generation, size_of
from gateway.responses.objects import ResponseHead, output_item, response
from gateway.schemas.chat import Message
from gateway.schemas.response_answers import StoredEcho
from gateway.schemas.responses import InputItem
from services.background import start
from services.errors import PoolUnavailable
from services.messages import TokenEvent
from services.pool.pool import RequestPool

SETTLED = 3.0  # seconds after which a living pool server has written a submission to disk
PAUSE = 1.0  # seconds between lookups in a pool that was unavailable
IMPLIED = {"role", "content", "refusal"}  # fields of a message that are stored as its role and text


@dataclass(frozen=True, slots=True)
class Extra:
    """The data of a response in its plan: the fields that the object echoes, and the conversation without instructions.

    `ids`: parallel to the conversation, the ids that its items have from earlier; None for a new item.
    """

    echo: StoredEcho
    conversation: list[Message]
    ids: list[str | None]

    def pack(self) -> bytes:
        messages = [[m.role, m.text, m.model_dump(exclude=IMPLIED, exclude_none=True)] for m in self.conversation]
        return orjson.dumps({"echo": self.echo, "conversation": messages, "ids": self.ids})

    @classmethod
    def unpack(cls, extra: bytes) -> Self:
        fields = orjson.loads(extra)
        messages = [Message(role=role, content=text, **dict(*more)) for role, text, *more in fields["conversation"]]
        return cls(fields["echo"], messages, fields.get("ids") or [None] * len(messages))  # an older build kept no ids


class StoredResponse:
    """A response and its events so far; a `WholeAnswer`. `generation.plan` must be that of a response."""

    def __init__(self, generation: Generation, model: ServedModel) -> None:
        plan = generation.plan
        assert plan.kind is AnswerKind.RESPONSE, f"{generation.request} is a {plan.kind}"
        self.generation = generation
        self.extra = Extra.unpack(plan.extra)
        name = plan.model or model.name
        self.head = ResponseHead(
            generation.request, name, plan.created, plan.prompt_tokens, plan.service_tier, self.extra.echo
        )
        self.transcript = transcript_of(plan, model)
        self._size = 0  # of the events that `read` added

    def close(self) -> None:
        """Stop following the response."""
        self.generation.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def ended(self) -> bool:
        return self.transcript.end is not None

    @property
    def error(self) -> ApiError | None:
        return self.transcript.error

    @property
    def output(self) -> dict[str, Message]:
        """The output items so far as items of a conversation, by their ids."""
        items = [output_item(self.head, self.transcript, item) for item in self.transcript.items]
        return {item["id"]: InputItem.model_validate(item).as_message() for item in items}

    def add(self, events: list[TokenEvent]) -> None:
        self.transcript.add_all(events)
        self.transcript.take(allow_empty=True)

    def body(self) -> bytes:
        """The response object as it stands, as JSON."""
        return orjson.dumps(response(self.head, self.transcript))

    async def current(self) -> Response:
        """The HTTP response with the events that `read` added."""
        return Response(await self.generation.work(self._size, self.body), media_type="application/json")

    async def read(self, until: float) -> None:
        """Add events until the response ends or the loop's time `until`.

        Raises ClientGone, or ApiError if the response is lost.
        """
        while not self.ended:
            events = await self.generation.take(until)
            if not events:
                return
            self._size += size_of(events)
            await self.generation.work(size_of(events), self.add, events)


async def find_response(
    process: GatewayProcess, id: str, tenant: str, receive: Receive | None = None, param: str | None = None
) -> StoredResponse:
    """The response `id`, followed from its first token; the caller closes it. `param`: the field that names it.

    Raises ApiError if it does not exist, has expired, was deleted, belongs to another tenant or was not to be stored;
    PoolUnavailable.
    """
    kind = Kind.REQUEST_NOT_FOUND if param is None else Kind.PREVIOUS_NOT_FOUND
    missing = ApiError(kind, f"There is no response '{id[:100]}' (any more).", param)
    if not id.startswith(AnswerKind.RESPONSE.prefix):
        raise missing
    try:
        gateway = await process.holding(id)
        generation = await gateway.shards.of(id).generations.follow(id, tenant, receive)
    except ApiError as error:
        raise (missing if error.kind is Kind.REQUEST_NOT_FOUND else error) from None
    stored = await stored_response(gateway, generation, tenant)
    if not stored.head.store:
        stored.close()
        raise missing
    return stored


async def stored_response(gateway: Gateway, generation: Generation, queue: str) -> StoredResponse:
    """The response that `generation` follows. Its conversation may be long, so it is unpacked off the event loop.

    Raises ApiError if too much work waits there; the generation is closed then.
    """
    try:
        size = len(generation.plan.extra)
        return await gateway.executor.run(queue, size, StoredResponse, generation, gateway.model)
    except BaseException:
        generation.close()
        raise


def follow_until_stored(stored: StoredResponse, pool: RequestPool) -> None:
    """Follow a background response until it has ended or the pool has surely stored it; then close it.

    A pool server that syncs its file each second may lose a request that it accepted just before it died. While this
    gateway follows the request, it puts it back then.
    """
    start(_follow(stored, pool), f"following {stored.head.id}")


async def _follow(stored: StoredResponse, pool: RequestPool) -> None:
    now = asyncio.get_running_loop().time
    with stored, contextlib.suppress(ApiError, GatewayStops):
        await stored.read(now() + SETTLED)
        while not (stored.ended or await _holds(pool, stored.head.id)):
            await stored.read(now() + PAUSE)


async def _holds(pool: RequestPool, id: str) -> bool:
    try:
        return await pool.group(id) is not None
    except PoolUnavailable:
        return False
