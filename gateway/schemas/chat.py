"""`POST /v1/chat/completions`: its request and its answers."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, NotRequired

from pydantic import BeforeValidator, ConfigDict, Field, model_validator
from typing_extensions import TypedDict

from gateway.schemas.answers import ChatFinishReason, ChatLogprobs, ScoredPrompt, ServiceTier, Usage
from gateway.schemas.generation import NOT_IN_STREAMS, Count, Effort, GenerationFields, Verbosity
from gateway.schemas.json_size import too_many
from gateway.schemas.strict import Strict, TextParts, contradiction, no_options, only, too_deep
from gateway.schemas.structured import Constraint, ResponseFormat
from gateway.schemas.tools import ChatToolChoice, ChatTools, check_tools, use_of
from gateway.tools import INPUT, ToolUse

TEXT_PARTS = TextParts(
    {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal", "thinking": "thinking"},
    ignored=frozenset({"prompt_cache_breakpoint", "cache_control", "annotations", "logprobs", "signature", "closed"}),
)
TEMPLATE_ROLES = {"developer": "system", "function": "tool"}  # others are the same in templates
OPEN = "'continue_final_message' and 'add_generation_prompt' cannot both be true"


def _content(value: Any) -> str | None:
    """The text of a message; None if there is none."""
    if value == []:
        raise ValueError("is an empty list; it must be a string or a list of one or more text parts")
    return TEXT_PARTS.optional_text(value)


class TextPart(TypedDict):
    """The description of a part for the document; `TEXT_PARTS` reads it."""

    type: Literal["text", "input_text", "output_text", "refusal", "thinking"]
    text: NotRequired[str]
    refusal: NotRequired[str]
    thinking: NotRequired[str]


class FunctionCall(Strict):
    """The function that a model called. As of a `Message`, fields that are not known have no effect: other servers add
    some to their answers, and the openai package `parsed_arguments`."""

    model_config = ConfigDict(extra="ignore")

    name: str
    arguments: str | dict[str, Any] = ""
    parsed_arguments: Any = None

    def for_template(self) -> dict[str, Any]:
        """Chat templates expect the arguments as an object and write them as JSON themselves. Arguments that they could
        not write, which a model may have made, are text. So are those with more values than a body may have."""
        arguments = self.arguments
        if isinstance(arguments, str) and too_many(arguments.encode()) is None:
            try:
                parsed = json.loads(arguments)
                json.dumps(parsed, ensure_ascii=False).encode()  # raises for half of a surrogate pair
            except (ValueError, RecursionError):
                parsed = None
            arguments = parsed if isinstance(parsed, dict) and not too_deep(parsed) else arguments
        return {"name": self.name, "arguments": arguments}


class ToolCall(Strict):
    """A call in the history of a conversation. The arguments of a custom tool are its input, as it is. Fields that are
    not known have no effect, as of a `FunctionCall`."""

    model_config = ConfigDict(extra="ignore")

    function: FunctionCall
    id: str | None = None
    type: Literal["function", "custom"] = "function"
    index: int | None = None  # of a stream

    @classmethod
    def of_input(cls, id: str | None, name: str, input: str) -> ToolCall:
        """The call of a custom tool."""
        return cls(id=id, type="custom", function=FunctionCall(name=name, arguments=input))

    def for_template(self) -> dict[str, Any]:
        named = {} if self.id is None else {"id": self.id}
        function = self.function.for_template()
        if self.type == "custom":
            function["arguments"] = {INPUT: self.function.arguments}
        return {**named, "type": "function", "function": function}


class CustomCall(Strict):
    name: str
    input: str


class CustomToolCall(Strict):
    """The call of a custom tool, as clients write it."""

    custom: CustomCall
    id: str | None = None
    type: Literal["custom"]
    index: int | None = None  # of a stream


def _call(value: Any) -> Any:
    if isinstance(value, dict) and value.get("custom") is not None:
        made = CustomToolCall.model_validate(value)
        return ToolCall.of_input(made.id, made.custom.name, made.custom.input)
    return value


AnyCall = Annotated[ToolCall, BeforeValidator(_call, ToolCall | CustomToolCall)]


class Message(Strict):
    """One message, its content as one text.

    `function_call` and the role `function` are OpenAI's older form of `tool_calls` and the role `tool`, which alone
    templates know. Fields that are not known have no effect, as in vLLM: clients send back what other servers put into
    an answer. `ipython` and `observation` are the roles of results in templates of Llama and GLM.
    """

    model_config = ConfigDict(extra="ignore")

    role: Literal["system", "developer", "user", "assistant", "tool", "function", "ipython", "observation"]
    content: Annotated[str | None, BeforeValidator(_content, str | list[TextPart] | None)] = None
    name: str | None = None
    tool_calls: Annotated[list[AnyCall], Field(max_length=128)] | None = None
    tool_call_id: str | None = None
    function_call: FunctionCall | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # vLLM's newer name for it
    refusal: str | None = None
    audio: Annotated[None, only()] = None
    prefix: Annotated[None, only(False, instead="continue_final_message")] = None  # other servers continue the text

    @model_validator(mode="after")
    def _has_content(self) -> Message:
        if self.content is None and self.role not in ("assistant", "function"):
            raise contradiction("content", f"a message of role '{self.role}' must have a 'content'")
        if self.role != "assistant" and self.calls:
            raise contradiction("tool_calls", f"a message of role '{self.role}' cannot call tools")
        return self

    @property
    def text(self) -> str:
        """The content, or the refusal of an answer without content."""
        return self.content if self.content is not None else self.refusal or ""

    @property
    def calls(self) -> list[ToolCall]:
        """The calls in either form."""
        older = [] if self.function_call is None else [ToolCall(function=self.function_call)]
        return [*(self.tool_calls or ()), *older]

    @property
    def size(self) -> int:
        """The approximate number of characters."""
        calls = sum(len(str(call.function.arguments)) for call in self.calls)
        return len(self.text) + len(self.reasoning_content or self.reasoning or "") + calls

    def for_template(self) -> dict[str, Any]:
        """The message as chat templates expect it: the role `developer` is `system`."""
        optional = {
            "name": self.name,
            "tool_calls": [call.for_template() for call in self.calls] or None,
            "tool_call_id": self.tool_call_id,
            "reasoning_content": self.reasoning_content or self.reasoning,
        }
        role = TEMPLATE_ROLES.get(self.role, self.role)
        known = {name: value for name, value in optional.items() if value is not None}
        return {"role": role, "content": self.text, **known}


class ChatRequest(GenerationFields):
    messages: Annotated[list[Message], Field(min_length=1, max_length=4096)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    add_special_tokens: bool | None = None  # false by default: templates write them
    add_generation_prompt: bool | None = None  # true by default unless the final message is continued
    continue_final_message: bool | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    tools: ChatTools | None = None
    tool_choice: ChatToolChoice = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[None, only([], instead="tools")] = None
    function_call: Annotated[None, only("none", "auto", instead="tool_choice")] = None
    modalities: Annotated[None, only(["text"])] = None
    audio: Annotated[None, only()] = None
    prediction: Annotated[None, only()] = None
    moderation: Annotated[None, only()] = None
    cache_control: dict[str, Any] | None = None  # no effect
    thinking: Annotated[None, only(instead="chat_template_kwargs")] = None
    enable_thinking: Annotated[None, only(instead="chat_template_kwargs")] = None
    reasoning_effort: Effort | None = None
    reasoning: Annotated[None, BeforeValidator(no_options)] = None
    verbosity: Verbosity | None = None
    web_search_options: Annotated[None, only()] = None

    @model_validator(mode="after")
    def _consistent(self) -> ChatRequest:
        both = (self.max_tokens, self.max_completion_tokens)
        if None not in both and both[0] != both[1]:
            text = f"'max_tokens' {both[0]} and 'max_completion_tokens' {both[1]} contradict each other"
            raise contradiction("max_completion_tokens", text)
        if self.top_logprobs and not self.logprobs:
            raise contradiction("top_logprobs", "'top_logprobs' is only allowed when 'logprobs' is true")
        if self.continue_final_message and self.add_generation_prompt:
            raise contradiction("continue_final_message", OPEN)
        if self.prompt_logprobs is not None and self.stream:
            raise contradiction("prompt_logprobs", NOT_IN_STREAMS)
        check_tools(self.tool_use)
        return self

    @property
    def tool_use(self) -> ToolUse:
        return use_of(self.tools, self.tool_choice, self.parallel_tool_calls)

    @property
    def format_constraint(self) -> Constraint | None:
        return self.response_format.constraint("response_format") if self.response_format else None

    @property
    def effort(self) -> Effort | None:
        return self.reasoning_effort

    @property
    def requested_verbosity(self) -> Verbosity | None:
        return self.verbosity

    @property
    def requested_max_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def requested_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def requested_prompt_logprobs(self) -> int | None:
        return self.prompt_logprobs


class AnswerFunction(TypedDict):
    name: str
    arguments: str  # JSON, as the model wrote it


class AnswerCall(TypedDict):
    id: str
    type: Literal["function"]
    function: AnswerFunction


class AnswerInput(TypedDict):
    name: str
    input: str  # as it is


class AnswerCustomCall(TypedDict):
    id: str
    type: Literal["custom"]
    custom: AnswerInput


class ChatAnswerMessage(TypedDict):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: NotRequired[str]
    reasoning: NotRequired[str]  # the same
    tool_calls: NotRequired[list[AnswerCall | AnswerCustomCall]]


class ChatChoice(TypedDict):
    index: int
    message: ChatAnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason
    stop_reason: str | int | None  # vLLM's fields
    token_ids: list[int] | None


class Served(TypedDict):
    service_tier: NotRequired[ServiceTier]


class ChatCompletion(Served):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] | None
    prompt_logprobs: ScoredPrompt | None


class FunctionDelta(TypedDict):
    name: NotRequired[str]
    arguments: str


class CustomDelta(TypedDict):
    name: NotRequired[str]
    input: str


class CustomCallDelta(TypedDict):
    """The first one of a call of a custom tool has all fields; the input of further ones continues it."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["custom"]]
    custom: CustomDelta


class CallDelta(TypedDict):
    """The first one of a call has all fields; the arguments of further ones continue it."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: FunctionDelta


class ChatDelta(TypedDict):
    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str]
    reasoning_content: NotRequired[str]
    reasoning: NotRequired[str]  # the same
    tool_calls: NotRequired[list[CallDelta | CustomCallDelta]]


class ChatChunkChoice(TypedDict):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason | None
    stop_reason: NotRequired[str | int | None]  # in the last chunk of the choice
    token_ids: NotRequired[list[int]]


class ChatCompletionChunk(Served):
    """The data of an event; the last event of a stream has the data `[DONE]`."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: NotRequired[Usage | None]
    prompt_token_ids: NotRequired[list[int]]
