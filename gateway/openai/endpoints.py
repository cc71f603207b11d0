"""The endpoints of OpenAI's completions and chat completions."""

from __future__ import annotations

from typing import TypeVar

from fastapi import Request
from starlette.responses import Response

from gateway.answer.plan import AnswerKind
from gateway.endpoint import Endpoint
from gateway.gateway import Gateway
from gateway.http.headers import Caller, Position
from gateway.openai.answer import Answer
from gateway.openai.events import chunk_writer
from gateway.pool_client.following import Generation
from gateway.schemas.chat import ChatCompletion, ChatCompletionChunk, ChatRequest
from gateway.schemas.completions import Completion, CompletionChunk, CompletionRequest
from gateway.streaming import streaming_response
from gateway.validation import ValidatedRequest

F = TypeVar("F", CompletionRequest, ChatRequest)


class _Chunked(Endpoint[F]):
    """An endpoint whose stream consists of chunks."""

    async def answer(self, gateway: Gateway, generation: Generation, queue: str) -> Answer:
        return Answer(generation.plan, gateway.model, generation.request)

    async def stream(
        self, gateway: Gateway, generation: Generation, position: Position | None, with_ids: bool, request: Request
    ) -> Response:
        return await streaming_response(generation, lambda: chunk_writer(generation, gateway.model, position, with_ids))


class Completions(_Chunked[CompletionRequest]):
    """Completes texts or token ids."""

    name = "completions"
    path = "/v1/completions"
    kind = AnswerKind.COMPLETION
    schema = CompletionRequest
    answer_type, event_type = Completion, CompletionChunk

    async def validate(self, gateway: Gateway, fields: CompletionRequest, caller: Caller) -> ValidatedRequest:
        return await gateway.validator.completion(fields, caller)


class ChatCompletions(_Chunked[ChatRequest]):
    """Answers a conversation."""

    name = "chat_completions"
    path = "/v1/chat/completions"
    kind = AnswerKind.CHAT
    schema = ChatRequest
    answer_type, event_type = ChatCompletion, ChatCompletionChunk

    async def validate(self, gateway: Gateway, fields: ChatRequest, caller: Caller) -> ValidatedRequest:
        return await gateway.validator.chat(fields, caller)
