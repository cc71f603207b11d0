"""`POST /v1/responses`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from gateway.schemas.chat import Message
from gateway.schemas.generation import Count, GenerationFields, StreamOptions
from gateway.schemas.response_items import InputItem
from gateway.schemas.strict import Strict, contradiction, only, unsupported

LOGPROBS = "message.output_text.logprobs"
INCLUDABLE = frozenset(  # of these only LOGPROBS adds something to an answer of text
    {
        LOGPROBS,
        "message.input_image.image_url",
        "reasoning.encrypted_content",
        "file_search_call.results",
        "web_search_call.results",
        "web_search_call.action.sources",
        "computer_call_output.output.image_url",
        "code_interpreter_call.outputs",
    }
)
Name = Annotated[str, Field(max_length=64)]  # what the object echoes is bounded: the pool keeps it
Word = Annotated[str, Field(max_length=512)]
Included = Annotated[list[str], WithJsonSchema({"type": "array", "items": {"enum": sorted(INCLUDABLE)}})]
MAX_ITEM_ID = 64  # characters; OpenAI's ids of items are as long at most


def _items(value: Any) -> Any:
    """A string is one message of the user."""
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


def _included(value: Any) -> bool:
    """Whether log probabilities are wanted."""
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError("must be a list of strings")
    unknown = sorted(set(value) - INCLUDABLE)
    if unknown:
        raise unsupported(f"has '{unknown[0][:64]}', which is not one of {', '.join(sorted(INCLUDABLE))}")
    return LOGPROBS in value


class TextOptions(Strict):
    format: Annotated[None, only({"type": "text"})] = None
    verbosity: Annotated[None, only("medium")] = None


class ResponseStreamOptions(StreamOptions):
    include_usage: bool | None = None  # usage is always there


class ResponseRequest(GenerationFields):
    """OpenAI's fields, and of ours those that chat has too, but for several choices and token ids."""

    input: Annotated[
        list[InputItem],
        BeforeValidator(_items, str | Annotated[list[InputItem], Field(min_length=1, max_length=4096)]),
        Field(min_length=1, max_length=4096),
    ]
    instructions: str | None = None
    max_output_tokens: Count | None = None
    previous_response_id: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    background: bool | None = None
    store: bool | None = None
    include: Annotated[bool, BeforeValidator(_included, Included)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    text: TextOptions | None = None
    truncation: Annotated[None, only("disabled")] = None
    stream_options: ResponseStreamOptions | None = None
    tools: Annotated[None, only([])] = None
    tool_choice: Annotated[None, only("none", "auto")] = None  # without tools they say the same
    parallel_tool_calls: bool | None = None  # without tools it says nothing
    max_tool_calls: Count | None = None  # likewise
    conversation: Annotated[None, only()] = None
    context_management: Annotated[None, only([])] = None
    prompt: Annotated[None, only()] = None
    moderation: Annotated[None, only()] = None
    metadata: Annotated[dict[Name, Word], Field(max_length=16)] | None = None
    user: Word | None = None
    safety_identifier: Name | None = None
    prompt_cache_key: Word | None = None
    n: Annotated[None, only(1)] = None
    max_tokens: Annotated[None, only()] = None
    return_token_ids: Annotated[None, only(False)] = None

    @model_validator(mode="after")
    def _consistent(self) -> ResponseRequest:
        if self.background and self.store is False:
            raise contradiction("background", "'background' needs 'store', which is false")
        if self.top_logprobs and not self.include:
            raise contradiction("top_logprobs", f"'top_logprobs' is only allowed when 'include' has '{LOGPROBS}'")
        return self

    @property
    def asked_max_tokens(self) -> int | None:
        return self.max_output_tokens

    @property
    def asked_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.include else None

    @property
    def include_usage(self) -> bool:
        return True

    @property
    def messages(self) -> list[Message]:
        """The input as messages of a chat, one for each item."""
        return [item.as_message() for item in self.input]

    @property
    def item_ids(self) -> list[str | None]:
        """Parallel to `messages`: the ids that the client gave them, where the pool keeps ids of that length."""
        return [item.id if item.id and len(item.id) <= MAX_ITEM_ID else None for item in self.input]

    @property
    def echo(self) -> dict[str, Any]:
        """The fields of the response object that the request decides."""
        optional = {"user": self.user} if self.user is not None else {}
        return optional | {
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "previous_response_id": self.previous_response_id,
            "background": bool(self.background),
            "store": self.store is not False,
            "metadata": self.metadata or {},
            "temperature": 1.0 if self.temperature is None else self.temperature,
            "top_p": 1.0 if self.top_p is None else self.top_p,
            "top_logprobs": self.top_logprobs or 0,
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "safety_identifier": self.safety_identifier,
            "prompt_cache_key": self.prompt_cache_key,
        }


class InputTokensRequest(ResponseRequest):
    """`POST /v1/responses/input_tokens`: the fields of a create, and `personality`, which OpenAI has only here."""

    personality: Annotated[None, only()] = None
