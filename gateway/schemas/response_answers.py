"""The Responses API: the types of its answers and events."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from gateway.errors import ErrorObject
from gateway.schemas.answers import Listing, ServiceTier, TokenLogprob

ItemStatus = Literal["in_progress", "completed", "incomplete"]
ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "cancelled", "failed"]


class OutputText(TypedDict):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[TokenLogprob]


class ReasoningText(TypedDict):
    type: Literal["reasoning_text"]
    text: str


class OutputMessage(TypedDict):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    status: ItemStatus
    content: list[OutputText]


class InputText(TypedDict):
    type: Literal["input_text"]
    text: str


class InputMessageItem(TypedDict):
    id: str
    type: Literal["message"]
    role: Literal["user", "system", "developer"]
    status: ItemStatus
    content: list[InputText]


class FunctionCallItem(TypedDict):
    id: str
    type: Literal["function_call"]
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


class CallOutputItem(TypedDict):
    id: str
    type: Literal["function_call_output", "custom_tool_call_output"]
    status: ItemStatus
    call_id: str
    output: str


class CustomCallItem(TypedDict):
    id: str
    type: Literal["custom_tool_call"]
    status: ItemStatus
    call_id: str
    name: str
    input: str


class ReasoningItem(TypedDict):
    id: str
    type: Literal["reasoning"]
    status: ItemStatus
    summary: list[Any]
    content: list[ReasoningText]


ResponseItem = OutputMessage | FunctionCallItem | CustomCallItem | ReasoningItem


InputItem = InputMessageItem | ResponseItem | CallOutputItem


class InputItemList(Listing):
    data: list[InputItem]


class InputTokens(TypedDict):
    object: Literal["response.input_tokens"]
    input_tokens: int


class InputTokensDetails(TypedDict):
    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(TypedDict):
    reasoning_tokens: int


class ResponseUsage(TypedDict):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(TypedDict):
    code: Literal["server_error", "invalid_prompt"]
    message: str


class IncompleteDetails(TypedDict):
    reason: Literal["max_output_tokens"]


class TextFormat(TypedDict):
    type: Literal["text", "json_object", "json_schema"]
    name: NotRequired[str]
    schema: NotRequired[dict[str, Any]]
    strict: NotRequired[bool]
    description: NotRequired[str]


class ResponseText(TypedDict):
    format: TextFormat
    verbosity: NotRequired[Literal["low", "medium", "high"]]


class ResponseEcho(TypedDict):
    """The fields of a response that its request sets."""

    instructions: str | None
    max_output_tokens: int | None
    previous_response_id: str | None
    background: bool
    store: bool
    metadata: dict[str, str]
    temperature: float
    top_p: float
    top_logprobs: int
    parallel_tool_calls: bool
    safety_identifier: str | None
    prompt_cache_key: str | None


class OptionalEcho(TypedDict, total=False):
    """The fields that not every request sets, and those that an older build did not store."""

    user: str
    reasoning: dict[str, Any]
    tools: list[dict[str, Any]]
    tool_choice: str | dict[str, Any]
    text: ResponseText
    presence_penalty: float
    frequency_penalty: float
    max_tool_calls: int | None


class StoredEcho(ResponseEcho, OptionalEcho):
    """The fields of a response that are stored with it."""


class ResponseObject(ResponseEcho):
    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: ResponseStatus
    model: str
    output: list[ResponseItem]
    usage: ResponseUsage | None  # null before the end
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    presence_penalty: float
    frequency_penalty: float
    max_tool_calls: int | None
    text: ResponseText
    tools: list[dict[str, Any]]
    tool_choice: str | dict[str, Any]
    truncation: Literal["disabled"]
    reasoning: dict[str, Any] | None
    service_tier: ServiceTier | None
    user: NotRequired[str]


class ResponseDeleted(TypedDict):
    id: str
    object: Literal["response"]
    deleted: Literal[True]


EndEventType = Literal["response.completed", "response.incomplete", "response.failed"]
ItemEventType = Literal["response.output_item.added", "response.output_item.done"]
PartEventType = Literal["response.content_part.added", "response.content_part.done"]


class ResponseChanged(TypedDict):
    """The response at its creation, its beginning and its end."""

    type: Literal["response.created", "response.in_progress", EndEventType]
    sequence_number: int
    response: ResponseObject


class OutputItemEvent(TypedDict):
    type: ItemEventType
    sequence_number: int
    output_index: int
    item: ResponseItem


class ItemPlace(TypedDict):
    """The item of an event. A call has no content part."""

    item_id: str
    output_index: int


class PartPlace(ItemPlace):
    """The content part of an event."""

    content_index: int


class ContentPartEvent(PartPlace):
    type: PartEventType
    sequence_number: int
    part: OutputText | ReasoningText


class TextDelta(PartPlace):
    type: Literal["response.output_text.delta"]
    sequence_number: int
    delta: str
    logprobs: list[TokenLogprob]


class TextDone(PartPlace):
    type: Literal["response.output_text.done"]
    sequence_number: int
    text: str
    logprobs: list[TokenLogprob]


class ReasoningDelta(PartPlace):
    type: Literal["response.reasoning_text.delta"]
    sequence_number: int
    delta: str


class ReasoningDone(PartPlace):
    type: Literal["response.reasoning_text.done"]
    sequence_number: int
    text: str


class ArgumentsDelta(ItemPlace):
    type: Literal["response.function_call_arguments.delta"]
    sequence_number: int
    delta: str


class ArgumentsDone(ItemPlace):
    type: Literal["response.function_call_arguments.done"]
    sequence_number: int
    name: str
    arguments: str


class InputDelta(ItemPlace):
    type: Literal["response.custom_tool_call_input.delta"]
    sequence_number: int
    delta: str


class InputDone(ItemPlace):
    type: Literal["response.custom_tool_call_input.done"]
    sequence_number: int
    input: str


class ErrorEvent(TypedDict):
    """Ends the stream, but not the response."""

    type: Literal["error"]
    sequence_number: int
    message: str
    code: str | None
    param: str | None
    error: ErrorObject


ResponseEvent = (
    ResponseChanged
    | OutputItemEvent
    | ContentPartEvent
    | TextDelta
    | TextDone
    | ReasoningDelta
    | ReasoningDone
    | ArgumentsDelta
    | ArgumentsDone
    | InputDelta
    | InputDone
    | ErrorEvent
)
