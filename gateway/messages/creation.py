"""A message that can be answered becomes a `Ticket`: its conversation is the prompt."""

from __future__ import annotations

from gateway.caller import Caller
from gateway.door import Ticket, chat_tokens
from gateway.gateway import Gateway
from gateway.plan import AnswerKind
from gateway.schemas.messages import Conversation, MessageRequest


async def ticket_of(gateway: Gateway, fields: MessageRequest, caller: Caller) -> Ticket:
    """Raises ApiError naming the field, its value and the limit."""
    prompt = await prompt_of(gateway, fields)
    return await gateway.door.ticket(AnswerKind.MESSAGE, fields, [prompt], "messages", await gateway.figures(), caller)


async def prompt_of(gateway: Gateway, fields: Conversation) -> list[int]:
    """Token ids. A last message of the assistant is left open, to be continued. Raises ApiError naming the field."""
    gateway.door.check_model(fields.model)
    turns = fields.turns
    open_end = turns[-1].role == "assistant"
    return await chat_tokens(gateway.model, turns, not open_end, continue_final_message=open_end)
