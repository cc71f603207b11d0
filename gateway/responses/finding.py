"""Responses by their ids, at whatever gateway."""

from __future__ import annotations

from starlette.types import Receive

from gateway.answer.plan import AnswerKind
from gateway.errors import ApiError, Kind
from gateway.gateway import Gateway
from gateway.pool_client.generation import Generation
from gateway.responses.stored import StoredResponse


async def find(
    gateway: Gateway, id: str, tenant: str, receive: Receive | None = None, param: str | None = None
) -> StoredResponse:
    """The response `id`, followed from its first token; the caller closes it. `param` is the field that named it.

    Raises ApiError where it never was, has expired, was deleted, is another tenant's or was not to be stored;
    PoolUnavailable.
    """
    missing = ApiError(Kind.REQUEST_NOT_FOUND, f"There is no response '{id[:100]}' (any more).", param)
    if not id.startswith(AnswerKind.RESPONSE.prefix):
        raise missing
    try:
        generation = await gateway.generations.follow(id, tenant, receive)
    except ApiError as error:
        raise (missing if error.kind is Kind.REQUEST_NOT_FOUND else error) from None
    stored = await opened(gateway, generation, tenant)
    if not stored.asked.store:
        stored.close()
        raise missing
    return stored


async def opened(gateway: Gateway, generation: Generation, line: str) -> StoredResponse:
    """The response that `generation` follows; its conversation may be long, so it is read at the desk.

    Raises ApiError where too much is under way there; the generation is closed then.
    """
    try:
        size = len(generation.plan.extra)
        return await gateway.desk.do(line, size, StoredResponse, generation, gateway.model)
    except BaseException:
        generation.close()
        raise
