"""Anthropic's Messages API: the endpoint of messages, and the route that counts the tokens of a prompt."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from gateway.answer.plan import AnswerKind
from gateway.anthropic.events import message_event_writer
from gateway.anthropic.objects import MessageAnswer
from gateway.endpoint import Endpoint
from gateway.errors import MESSAGES_PATH, OVERLOADED, Kind, MessageError
from gateway.gateway import Gateway, gateway_of
from gateway.http.body import parse
from gateway.http.headers import Caller, Position
from gateway.http.openapi import BODY_ERRORS, GENERATION_ERRORS, documented
from gateway.model import chat_tokens
from gateway.pool_client.following import Generation
from gateway.schemas.messages import (
    Conversation,
    CountTokensRequest,
    MessageEvent,
    MessageObject,
    MessageRequest,
    TokenCount,
)
from gateway.streaming import streaming_response
from gateway.validation import ValidatedRequest
from services.messages import EngineFigures

router = APIRouter(prefix=MESSAGES_PATH)
STATUSES = {503: OVERLOADED}


class Messages(Endpoint[MessageRequest]):
    """Answers a conversation, as a whole or as a stream."""

    name = "create"
    path = MESSAGES_PATH
    kind = AnswerKind.MESSAGE
    schema = MessageRequest
    answer_type, event_type = MessageObject, MessageEvent
    errors = (*GENERATION_ERRORS, Kind.INVALID_KEY, Kind.UNKNOWN_HOST)
    error_type, statuses = MessageError, STATUSES
    batched = False

    async def validate(self, gateway: Gateway, fields: MessageRequest, caller: Caller) -> ValidatedRequest:
        def work(figures: EngineFigures) -> ValidatedRequest:
            prompt = _prompt(gateway, fields)
            return gateway.validator.request(AnswerKind.MESSAGE, fields, [prompt], "messages", figures, caller)

        return await gateway.validator.validate(caller, caller.size, fields, work)

    async def answer(self, gateway: Gateway, generation: Generation, queue: str) -> MessageAnswer:
        return MessageAnswer(generation, gateway.model)

    async def stream(
        self, gateway: Gateway, generation: Generation, position: Position | None, with_ids: bool, request: Request
    ) -> Response:
        return await streaming_response(
            generation, lambda: message_event_writer(generation, gateway.model, position, request, with_ids)
        )


@router.post(
    "/count_tokens",
    **documented(
        takes=CountTokensRequest,
        gives=TokenCount,
        errors=(*BODY_ERRORS, Kind.INVALID_KEY, Kind.UNKNOWN_HOST),
        error=MessageError,
        statuses=STATUSES,
    ),
)
async def count_tokens(request: Request) -> TokenCount:
    """The number of prompt tokens that the same message would have."""
    process = gateway_of(request)
    fields = await parse(request, CountTokensRequest, process.limits)
    gateway, caller = await process.called(fields.model, Caller(request.state.tenant))
    prompt = await gateway.executor.run(caller.work_queue, request.state.size, _prompt, gateway, fields)
    return {"input_tokens": len(prompt)}


def _prompt(gateway: Gateway, fields: Conversation) -> list[int]:
    """The token ids of the prompt. The answer continues a last message of the assistant. Raises ApiError."""
    gateway.validator.check_generates()
    turns = fields.turns
    continues = turns[-1].role == "assistant"
    return chat_tokens(
        gateway.model,
        turns,
        gateway.validator.reading.own_marks,
        not continues,
        continue_final_message=continues,
        tools=fields.tool_use.for_template(),
        kwargs=fields.template_variables,
    )
