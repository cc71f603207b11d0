"""What the routes of messages answer, for `/openapi.json`."""

from __future__ import annotations

from typing import Any, Literal

from typing_extensions import TypedDict


class TextBlock(TypedDict):
    type: Literal["text"]
    text: str
    citations: None


class MessageUsage(TypedDict):
    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    service_tier: Literal["standard", "priority"]


class MessageObject(TypedDict):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[TextBlock]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence"] | None
    stop_sequence: str | None
    usage: MessageUsage


class MessageErrorDetail(TypedDict):
    type: str
    message: str


class MessageError(TypedDict):
    type: Literal["error"]
    error: MessageErrorDetail
    request_id: str | None


class TokenCount(TypedDict):
    input_tokens: int


MessageEvent = dict[str, Any]
