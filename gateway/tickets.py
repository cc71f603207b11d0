"""Bodies become tickets at the desk."""

from __future__ import annotations

from gateway.gateway import Gateway
from gateway.http.headers import Caller
from gateway.schemas.chat import ChatRequest
from gateway.schemas.completions import CompletionRequest
from gateway.validation import Ticket

SEQUENCE = 64  # what a choice counts for beside the bytes of the body


async def completion_ticket(gateway: Gateway, fields: CompletionRequest, caller: Caller) -> Ticket:
    """Raises ApiError naming the field, its value and the limit; PoolUnavailable."""
    figures = await gateway.figures()
    size = caller.size + SEQUENCE * fields.choices * len(fields.prompt)
    return await gateway.desk.do(caller.at_desk, size, gateway.door.completion, fields, figures, caller)


async def chat_ticket(gateway: Gateway, fields: ChatRequest, caller: Caller) -> Ticket:
    """Raises ApiError naming the field, its value and the limit; PoolUnavailable."""
    figures = await gateway.figures()
    size = caller.size + SEQUENCE * fields.choices
    return await gateway.desk.do(caller.at_desk, size, gateway.door.chat, fields, figures, caller)
