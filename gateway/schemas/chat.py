"""`POST /v1/chat/completions`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from gateway.schemas.common import NOT_IN_STREAMS, Count, GenerationFields, Strict, contradiction, only, unsupported


def _content(value: Any) -> str:
    """The text of a message: a string, or text parts joined."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise ValueError("must be a string or a list of text parts")
    texts = []
    for part in value:
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise ValueError("has a part that is not an object with a type")
        if part["type"] != "text":
            raise unsupported("has a part that is not text; this server takes text alone")
        if set(part) - {"type", "text", "prompt_cache_breakpoint"} or not isinstance(part.get("text"), str):
            raise ValueError("has a text part that is not {'type': 'text', 'text': string}")
        texts.append(part["text"])
    return "".join(texts)


class Message(Strict):
    """One message, its content as one text."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, BeforeValidator(_content)]
    name: str | None = None
    refusal: Annotated[None, only()] = None
    audio: Annotated[None, only()] = None
    tool_calls: Annotated[None, only([])] = None
    function_call: Annotated[None, only()] = None

    def for_template(self) -> dict[str, str]:
        """As chat templates know it; they call a developer `system`."""
        role = "system" if self.role == "developer" else self.role
        message = {"role": role, "content": self.content}
        return message if self.name is None else {**message, "name": self.name}


class ChatRequest(GenerationFields):
    messages: Annotated[list[Message], Field(min_length=1, max_length=4096)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: Annotated[None, only({"type": "text"})] = None
    tools: Annotated[None, only([])] = None
    tool_choice: Annotated[None, only("none")] = None
    parallel_tool_calls: bool | None = None  # without tools it says nothing
    functions: Annotated[None, only([])] = None
    function_call: Annotated[None, only("none")] = None
    modalities: Annotated[None, only(["text"])] = None
    audio: Annotated[None, only()] = None
    prediction: Annotated[None, only()] = None
    moderation: Annotated[None, only()] = None
    reasoning_effort: Annotated[None, only("none")] = None
    verbosity: Annotated[None, only("medium")] = None
    web_search_options: Annotated[None, only()] = None

    @model_validator(mode="after")
    def _consistent(self) -> ChatRequest:
        both = (self.max_tokens, self.max_completion_tokens)
        if None not in both and both[0] != both[1]:
            text = f"'max_tokens' {both[0]} and 'max_completion_tokens' {both[1]} contradict each other"
            raise contradiction("max_completion_tokens", text)
        if self.top_logprobs is not None and not self.logprobs:
            raise contradiction("top_logprobs", "'top_logprobs' is only allowed when 'logprobs' is true")
        if self.prompt_logprobs is not None and self.stream:
            raise contradiction("prompt_logprobs", NOT_IN_STREAMS)
        return self

    @property
    def asked_max_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def asked_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def asked_prompt_logprobs(self) -> int | None:
        return self.prompt_logprobs
