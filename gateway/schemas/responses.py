"""`POST /v1/responses`: its request. `input` accepts the `output` of an earlier response as it is."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator
from typing_extensions import TypedDict

from gateway.schemas.chat import FunctionCall, Message, ToolCall
from gateway.schemas.generation import NO_DEFAULTS, Count, Effort, GenerationFields, Reasoning, StreamOptions, Verbosity
from gateway.schemas.response_answers import ItemStatus, OptionalEcho, ResponseText, StoredEcho
from gateway.schemas.strict import Strict, TextParts, contradiction, only, unsupported
from gateway.schemas.structured import Constraint, ResponseTextFormat
from gateway.schemas.tools import ResponseToolChoice, ResponseTools, check_tools, echo_of_choice, use_of
from gateway.tools import ToolUse
from services.models.generation import SamplingDefaults

TEXT_PARTS = TextParts(
    {
        "input_text": "text",
        "output_text": "text",
        "text": "text",
        "reasoning_text": "text",
        "summary_text": "text",
        "refusal": "refusal",
    },
    ignored=frozenset({"prompt_cache_breakpoint", "cache_control", "annotations", "logprobs"}),
)
REQUIRED = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "custom_tool_call": ("call_id", "name", "input"),
    "custom_tool_call_output": ("call_id", "output"),
    "reasoning": (),
}
LOGPROBS = "message.output_text.logprobs"
INCLUDABLE = frozenset(  # only LOGPROBS adds something to an answer of text
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
Name = Annotated[str, Field(max_length=64)]  # the pool stores what the object echoes
Word = Annotated[str, Field(max_length=512)]
Included = Annotated[list[str], WithJsonSchema({"type": "array", "items": {"enum": sorted(INCLUDABLE)}})]
MAX_ITEM_ID = 64  # characters, the maximum of OpenAI's ids of items


def _kind(value: Any) -> Any:
    if isinstance(value, str) and value not in REQUIRED:
        text = f"is '{value[:64]}'; this server takes {', '.join(REQUIRED)} alone"
        raise unsupported(f"{text}: leave the item out, or write it as one of these")
    return value


class ResponseTextPart(TypedDict):
    """The description of a part for the document; `TEXT_PARTS` reads it."""

    type: Literal["input_text", "output_text", "reasoning_text", "summary_text", "refusal"]
    text: NotRequired[str]
    refusal: NotRequired[str]
    annotations: NotRequired[list[Any]]
    logprobs: NotRequired[list[Any] | None]


Text = Annotated[str, BeforeValidator(TEXT_PARTS.optional_text, str | list[ResponseTextPart])]


class InputItem(Strict):
    """One item. `type` determines its fields; it is optional for a message."""

    type: Annotated[Literal[tuple(REQUIRED)], BeforeValidator(_kind)] = "message"  # type: ignore[valid-type]
    id: str | None = None
    status: ItemStatus | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: Text | None = None
    phase: Literal["commentary", "final_answer"] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: Text | None = None
    summary: Text | None = None
    encrypted_content: str | None = None  # of another server, which Orca cannot read
    caller: dict[str, Any] | None = None  # of a call, no effect
    parsed_arguments: Any = None  # the openai package adds it when it dumps a call

    @model_validator(mode="after")
    def _whole(self) -> InputItem:
        for name in REQUIRED[self.type]:
            if getattr(self, name) is None:
                raise contradiction(name, f"an input item of type '{self.type}' must have '{name}'")
        if self.type == "message" and self.content == "" and self.role != "assistant":
            raise contradiction("content", f"a message of role '{self.role}' must have text; its content is empty")
        return self

    def as_message(self) -> Message:
        """The item as a chat message: text, a function call, the output of a function, or reasoning."""
        match self.type:
            case "function_call":
                assert self.name is not None
                function = FunctionCall(name=self.name, arguments=self.arguments or "")
                return Message(role="assistant", tool_calls=[ToolCall(id=self.call_id, function=function)])
            case "custom_tool_call":
                assert self.name is not None
                call = ToolCall.of_input(self.call_id, self.name, self.input or "")
                return Message(role="assistant", tool_calls=[call])
            case "function_call_output" | "custom_tool_call_output":
                return Message(role="tool", content=self.output, tool_call_id=self.call_id)
            case "reasoning":
                return Message(role="assistant", reasoning_content=self.content or self.summary or "")
            case _:
                assert self.role is not None
                return Message(role=self.role, content=self.content)


def _items(value: Any) -> Any:
    """A string becomes one message of the user."""
    if value == "":
        raise ValueError("is an empty string; it must have text, or be a list of items")
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


def _included(value: Any) -> bool:
    """Whether log probabilities are requested."""
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError("must be a list of strings")
    unknown = sorted(set(value) - INCLUDABLE)
    if unknown:
        raise unsupported(f"has '{unknown[0][:64]}', which is not one of {', '.join(sorted(INCLUDABLE))}")
    return LOGPROBS in value


class TextOptions(Strict):
    format: ResponseTextFormat | None = None
    verbosity: Verbosity | None = None

    def echo(self) -> ResponseText:
        """The options as the response object has them."""
        made: ResponseText = {"format": self.format.echo() if self.format else {"type": "text"}}
        if self.verbosity is not None:
            made["verbosity"] = self.verbosity
        return made


class ResponseStreamOptions(StreamOptions):
    include_usage: bool | None = None  # the usage is always included


class ResponseRequest(GenerationFields):
    """OpenAI's fields, and those that Orca adds to chat except for several choices and token ids."""

    effort_field = "reasoning"

    input: Annotated[
        list[InputItem],
        BeforeValidator(_items, str | Annotated[list[InputItem], Field(min_length=1, max_length=4096)]),
        Field(min_length=1, max_length=4096),
    ]
    instructions: str | None = None
    max_output_tokens: Count | None = None
    previous_response_id: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    background: bool | None = None
    include: Annotated[bool, BeforeValidator(_included, Included)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    text: TextOptions | None = None
    truncation: Annotated[None, only("disabled")] = None
    stream_options: ResponseStreamOptions | None = None
    tools: ResponseTools | None = None
    tool_choice: ResponseToolChoice = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Count | None = None  # no effect: it limits calls of tools that the server runs
    conversation: Annotated[None, only()] = None
    context_management: Annotated[None, only([])] = None
    prompt: Annotated[None, only()] = None
    moderation: Annotated[None, only()] = None
    metadata: Annotated[dict[Name, Word], Field(max_length=16)] | None = None
    user: Word | None = None
    safety_identifier: Name | None = None
    prompt_cache_key: Word | None = None
    client_metadata: dict[str, Any] | None = None  # what agents say of themselves, no effect
    n: Annotated[None, only(1)] = None
    max_tokens: Annotated[None, only()] = None
    return_token_ids: Annotated[None, only(False)] = None
    reasoning: Reasoning | None = None

    @model_validator(mode="after")
    def _consistent(self) -> ResponseRequest:
        if self.background and self.store is False:
            raise contradiction("background", "'background' needs 'store', which is false")
        check_tools(self.tool_use)
        if self.top_logprobs and not self.include:
            raise contradiction("top_logprobs", f"'top_logprobs' is only allowed when 'include' has '{LOGPROBS}'")
        return self

    @property
    def tool_use(self) -> ToolUse:
        return use_of(self.tools, self.tool_choice, self.parallel_tool_calls)

    @property
    def format_constraint(self) -> Constraint | None:
        return self.text.format.constraint("text.format") if self.text and self.text.format else None

    @property
    def effort(self) -> Effort | None:
        return self.reasoning.effort if self.reasoning else None

    @property
    def requested_verbosity(self) -> Verbosity | None:
        return self.text.verbosity if self.text else None

    @property
    def requested_max_tokens(self) -> int | None:
        return self.max_output_tokens

    @property
    def requested_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.include else None

    @property
    def include_usage(self) -> bool:
        return True

    @property
    def messages(self) -> list[Message]:
        """The input as chat messages, one per item."""
        return [item.as_message() for item in self.input]

    @property
    def item_ids(self) -> list[str | None]:
        """Parallel to `messages`: the client's ids of the items, None if missing or too long to store."""
        return [item.id if item.id and len(item.id) <= MAX_ITEM_ID else None for item in self.input]

    def echo(self, defaults: SamplingDefaults = NO_DEFAULTS) -> StoredEcho:
        """The fields of the response object that the request sets; for some that it left out, `defaults`."""
        sampling = self.sampling(1, 0, defaults=defaults)
        optional: OptionalEcho = {"user": self.user} if self.user is not None else {}
        if self.reasoning:
            optional["reasoning"] = self.reasoning.model_dump(exclude_none=True)
        if self.tools:
            optional["tools"] = [tool.echo for tool in self.tools]
            optional["tool_choice"] = echo_of_choice(self.tool_use)
        return {
            **optional,
            "instructions": self.instructions,
            "text": (self.text or TextOptions()).echo(),
            "max_output_tokens": self.max_output_tokens,
            "previous_response_id": self.previous_response_id,
            "background": bool(self.background),
            "store": self.store is not False,
            "metadata": self.metadata or {},
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_logprobs": self.top_logprobs or 0,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "max_tool_calls": self.max_tool_calls,
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "safety_identifier": self.safety_identifier,
            "prompt_cache_key": self.prompt_cache_key,
        }


class InputTokensRequest(ResponseRequest):
    """`POST /v1/responses/input_tokens`: the fields of `POST /v1/responses`, and `personality`, which only it has."""

    personality: Annotated[None, only()] = None
