"""A response that can run becomes a `Ticket`: its conversation, earlier turns included, is the prompt."""

from __future__ import annotations

import asyncio

from gateway.answer.plan import AnswerKind
from gateway.errors import ApiError, Kind
from gateway.gateway import Gateway
from gateway.http.headers import Caller
from gateway.prompts import chat_tokens, size_of
from gateway.responses.conversation import turns
from gateway.responses.finding import find
from gateway.responses.input_items import ids_of
from gateway.responses.stored import Extra
from gateway.schemas.chat import Message
from gateway.schemas.responses import ResponseRequest
from gateway.validation import Ticket
from services.requests import FinishReason

PREVIOUS = "previous_response_id"


async def ticket_of(gateway: Gateway, fields: ResponseRequest, caller: Caller) -> Ticket:
    """Raises ApiError naming the field, its value and the limit; PoolUnavailable."""
    conversation, ids = await _conversation(gateway, fields, caller.tenant)
    figures = await gateway.figures()

    def made() -> Ticket:
        prompt = _prompt(gateway, fields, conversation)
        extra = Extra(fields.echo, conversation, ids).pack()
        return gateway.door.ticket(AnswerKind.RESPONSE, fields, [prompt], "input", figures, caller, extra)

    return await gateway.desk.do(caller.at_desk, caller.size + size_of(conversation), made)


async def input_tokens(gateway: Gateway, fields: ResponseRequest, caller: Caller) -> int:
    """How many tokens the prompt of such a response has. Raises ApiError as `ticket_of` does."""
    conversation, _ = await _conversation(gateway, fields, caller.tenant)
    size = caller.size + size_of(conversation)
    prompt = await gateway.desk.do(caller.at_desk, size, _prompt, gateway, fields, conversation)
    if fields.truncate_prompt_tokens is not None:
        prompt = gateway.door.kept(AnswerKind.RESPONSE, fields, prompt, await gateway.figures())
    return len(prompt)


async def _conversation(
    gateway: Gateway, fields: ResponseRequest, tenant: str
) -> tuple[list[Message], list[str | None]]:
    """What was said, earlier responses included, and the ids of these items."""
    gateway.door.check_model(fields.model)
    conversation, ids = fields.messages, fields.item_ids
    if fields.previous_response_id:
        earlier, earlier_ids = await _earlier(gateway, fields.previous_response_id, tenant)
        conversation, ids = [*earlier, *conversation], [*earlier_ids, *ids]
    return conversation, ids


def _prompt(gateway: Gateway, fields: ResponseRequest, conversation: list[Message]) -> list[int]:
    told = [] if fields.instructions is None else [Message(role="system", content=fields.instructions)]
    return chat_tokens(gateway.model, [*told, *turns(conversation)], param="input")


async def _earlier(gateway: Gateway, id: str, tenant: str) -> tuple[list[Message], list[str]]:
    """What was said up to the end of the response `id`, and the ids of these items; its instructions are not carried
    over, as OpenAI has it."""
    with await find(gateway, id, tenant, param=PREVIOUS) as stored:
        await stored.read(asyncio.get_running_loop().time())
        end, text = stored.transcript.end, stored.transcript.text
    if end is None:
        raise ApiError(Kind.INVALID, f"Invalid '{PREVIOUS}': response '{id}' has not ended yet.", PREVIOUS)
    if end.reason is FinishReason.ERROR:
        raise ApiError(Kind.INVALID, f"Invalid '{PREVIOUS}': response '{id}' failed.", PREVIOUS)
    said = [*stored.extra.conversation, Message(role="assistant", content=text)]
    return said, [*ids_of(stored.asked, stored.extra.ids), stored.asked.item_id]
