"""A response that can run becomes a `Ticket`: its conversation, earlier turns included, is the prompt."""

from __future__ import annotations

import asyncio

from gateway.caller import Caller
from gateway.door import Ticket, chat_tokens
from gateway.errors import ApiError, Kind
from gateway.gateway import Gateway
from gateway.plan import AnswerKind
from gateway.responses.finding import find
from gateway.responses.stored import Extra
from gateway.schemas.chat import Message
from gateway.schemas.responses import ResponseRequest
from services.requests import FinishReason

PREVIOUS = "previous_response_id"


async def ticket_of(gateway: Gateway, fields: ResponseRequest, caller: Caller) -> Ticket:
    """Raises ApiError naming the field, its value and the limit."""
    gateway.door.check_model(fields.model)
    earlier = await _earlier(gateway, fields.previous_response_id, caller.tenant) if fields.previous_response_id else []
    conversation = [*earlier, *fields.messages]
    told = [] if fields.instructions is None else [Message(role="system", content=fields.instructions)]
    prompt = await chat_tokens(gateway.model, [*told, *conversation], param="input")
    figures, extra = await gateway.figures(), Extra(fields.echo, conversation).pack()
    return await gateway.door.ticket(AnswerKind.RESPONSE, fields, [prompt], "input", figures, caller, extra)


async def _earlier(gateway: Gateway, id: str, tenant: str) -> list[Message]:
    """What was said up to the end of the response `id`; its instructions are not carried over, as OpenAI has it."""
    with await find(gateway, id, tenant, param=PREVIOUS) as stored:
        await stored.read(asyncio.get_running_loop().time())
        end, text = stored.transcript.end, stored.transcript.text
    if end is None:
        raise ApiError(Kind.INVALID, f"Invalid '{PREVIOUS}': response '{id}' has not ended yet.", PREVIOUS)
    if end.reason is FinishReason.ERROR:
        raise ApiError(Kind.INVALID, f"Invalid '{PREVIOUS}': response '{id}' failed.", PREVIOUS)
    return [*stored.extra.conversation, Message(role="assistant", content=text)]
