"""`POST /v1/messages` and `/v1/messages/count_tokens`: their requests and answers. The content of a message consists of
blocks: text, thinking, uses of tools and their results."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Annotated, Any, Literal, NotRequired

from pydantic import BeforeValidator, Field, model_validator
from typing_extensions import TypedDict

from gateway.schemas.chat import FunctionCall, Message, ToolCall
from gateway.schemas.generation import (
    Count,
    Effort,
    GenerationFields,
    TemplateKwargs,
    ThinkingConfig,
    stop_strings,
    template_variables,
)
from gateway.schemas.strict import Strict, TextParts, by_type, contradiction, no_options, only, unsupported, variant
from gateway.schemas.structured import Constraint, ConstraintKind, OutputFormat
from gateway.schemas.tools import MessageToolChoice, MessageTools, check_tools
from gateway.tools import ToolUse

SEPARATOR = "\n\n"  # between consecutive messages of one role, which form one turn
TEXT_BLOCKS = TextParts(
    {"text": "text"},
    ignored=frozenset({"cache_control", "citations"}),
    noun="block",
    unsupported="has a block of type '{kind}'; this server takes text, thinking, and tools of the client",
)
ANY = "any"
BLOCKS = {  # the role whose messages may have it, by type
    "text": ANY,
    "thinking": "assistant",
    "redacted_thinking": "assistant",
    "tool_use": "assistant",
    "tool_result": "user",
}


class InputTextBlock(Strict):
    type: Literal["text"]
    text: str


class InputThinking(Strict):
    """Reasoning of an earlier answer. `signature`: of another server, no effect."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class InputRedactedThinking(Strict):
    """Encrypted reasoning of another server, no effect."""

    type: Literal["redacted_thinking"]
    data: str


class InputToolUse(Strict):
    """A call in an answer of the model."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    cache_control: dict[str, Any] | None = None
    caller: dict[str, Any] | None = None  # of an answer, no effect

    @property
    def call(self) -> ToolCall:
        return ToolCall(id=self.id, function=FunctionCall(name=self.name, arguments=self.input))


class InputToolResult(Strict):
    """What a called tool returned. `is_error` has no effect: chat templates have no place for it."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: Annotated[str | None, BeforeValidator(TEXT_BLOCKS.optional_text)] = None
    is_error: bool | None = None
    cache_control: dict[str, Any] | None = None

    @property
    def message(self) -> Message:
        return Message(role="tool", content=self.content or "", tool_call_id=self.tool_use_id)


InputBlock = Annotated[
    Annotated[InputTextBlock, variant("text")]
    | Annotated[InputThinking, variant("thinking")]
    | Annotated[InputRedactedThinking, variant("redacted_thinking")]
    | Annotated[InputToolUse, variant("tool_use")]
    | Annotated[InputToolResult, variant("tool_result")],
    by_type("text", "thinking", "redacted_thinking", "tool_use", "tool_result"),
]


def _blocks(content: Any) -> list[Any]:
    """A string becomes a block of text. Blocks of text are read here, the others by their schemas."""
    if not isinstance(content, list):
        return [{"type": "text", "text": TEXT_BLOCKS.text(content)}]
    return [_block(block) for block in content]


def _block(block: Any) -> Any:
    kind = block.get("type") if isinstance(block, dict) else None
    if isinstance(kind, str) and kind in BLOCKS and kind != "text":
        return block
    return {"type": "text", "text": TEXT_BLOCKS.text([block])}


class InputMessage(Strict):
    """One message of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[list[InputBlock], BeforeValidator(_blocks, str | list[InputBlock])]

    @model_validator(mode="after")
    def _of_its_role(self) -> InputMessage:
        if not self.content and self.role != "assistant":
            raise contradiction("content", f"a message of role '{self.role}' must have content; it is an empty list")
        for block in self.content:
            if BLOCKS[block.type] not in (self.role, ANY):
                text = f"a message of role '{self.role}' cannot have a block of type '{block.type}'"
                raise contradiction("content", text)
        return self


def turn(role: Literal["user", "assistant", "system"], messages: Sequence[InputMessage]) -> list[Message]:
    """Consecutive messages of one role as messages of a chat. Results of tools come first, each as a message."""
    results = [block.message for message in messages for block in message.content if block.type == "tool_result"]
    text = SEPARATOR.join(
        "".join(b.text for b in message.content if b.type == "text")
        for message in messages
        if any(b.type == "text" for b in message.content)
    )
    if role != "assistant":
        return [*results, Message(role=role, content=text)] if text or not results else results
    blocks = [block for message in messages for block in message.content]
    calls = [block.call for block in blocks if block.type == "tool_use"]
    reasoning = "".join(block.thinking for block in blocks if block.type == "thinking")
    return [Message(role=role, content=text, tool_calls=calls or None, reasoning_content=reasoning or None)]


TIERS = {"auto": "auto", "standard_only": "default"}


def _metadata(value: Any) -> dict[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, dict) or set(value) - {"user_id"}:
        raise ValueError("must be an object with 'user_id' alone")
    return {name: id for name, id in value.items() if id is not None}


def _tier(value: Any) -> Any:
    """The tier as the other routes name it."""
    if value is not None and not (isinstance(value, str) and value in TIERS):
        raise ValueError("must be 'auto' or 'standard_only'")
    return value and TIERS[value]


def _kept_context(value: Any) -> None:
    """Edits of the conversation before it reaches the model. Only those that keep all of it are accepted."""
    edits = value.get("edits") if isinstance(value, dict) else None
    for edit in edits if isinstance(edits, list) else ():
        if edit != {"type": "clear_thinking_20251015", "keep": "all"}:
            kind = edit.get("type") if isinstance(edit, dict) else edit
            text = f"has the edit '{str(kind)[:64]}'; this server keeps the conversation as it is"
            raise unsupported(f"{text}: leave the edit out, or send the conversation without what it removes")
    no_options(None if isinstance(edits, list) and set(value) == {"edits"} else value)


class OutputConfig(Strict):
    format: OutputFormat | None = None
    effort: Effort | None = None


class Conversation(Strict):
    """The fields that determine the prompt, and those that would if they were supported.

    `cache_control` has no effect, because the prefix cache works without it.
    """

    model: str | None = None  # the served model by default
    messages: Annotated[list[InputMessage], Field(min_length=1, max_length=4096)]
    system: Annotated[str | None, BeforeValidator(TEXT_BLOCKS.optional_text)] = None
    tools: MessageTools | None = None
    tool_choice: MessageToolChoice | None = None
    mcp_servers: Annotated[None, only([])] = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    output_format: Annotated[None, only(instead="output_config")] = None  # its older name
    context_management: Annotated[None, BeforeValidator(_kept_context)] = None
    speed: Annotated[None, only("standard")] = None
    cache_control: dict[str, Any] | None = None
    chat_template_kwargs: TemplateKwargs | None = None

    @model_validator(mode="after")
    def _known_tools(self) -> Conversation:
        check_tools(self.tool_use)
        return self

    @property
    def tool_use(self) -> ToolUse:
        tools, asked = [tool.tool for tool in self.tools or ()], self.tool_choice
        if asked is None:
            return ToolUse(tools)
        return ToolUse(tools, asked.choice, not asked.disable_parallel_tool_use)

    @property
    def effort(self) -> Effort | None:
        return self.output_config.effort if self.output_config else None

    @property
    def template_variables(self) -> dict[str, Any]:
        """The variables that the request gives to the chat template."""
        asked = self.thinking.variables if self.thinking else {}
        return template_variables(asked | (self.chat_template_kwargs or {}), self.effort)

    @property
    def turns(self) -> list[Message]:
        """The conversation as a chat: the system prompt first, consecutive messages of one role merged as in
        Anthropic's API. An empty last message of the assistant is dropped, because there is nothing to continue."""
        system = [InputMessage.model_validate({"role": "system", "content": self.system})] if self.system else []
        groups = groupby([*system, *self.messages], key=lambda message: message.role)
        turns = [made for role, group in groups for made in turn(role, list(group))]
        last = turns[-1]
        empty = last.role == "assistant" and not last.text.strip() and not last.tool_calls and len(turns) > 1
        return turns[:-1] if empty else turns


class CountTokensRequest(Conversation):
    """The fields of a message that determine its prompt."""


class MessageRequest(Conversation, GenerationFields):
    """Anthropic's fields, and those that Orca adds to chat except for several choices, log probabilities and token
    ids."""

    effort_field = "output_config"

    max_tokens: Count
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    stop: Annotated[tuple[str, ...], BeforeValidator(stop_strings)] = Field((), validation_alias="stop_sequences")
    metadata: Annotated[dict[str, str] | None, BeforeValidator(_metadata)] = None
    service_tier: Annotated[Literal["auto", "default"] | None, BeforeValidator(_tier)] = None
    reasoning: Annotated[None, BeforeValidator(no_options)] = None
    container: Annotated[None, only()] = None
    inference_geo: Annotated[None, only()] = None
    diagnostics: dict[str, Any] | None = None
    n: Annotated[None, only(1)] = None
    stream_options: Annotated[None, only()] = None  # the usage is always included
    return_token_ids: Annotated[None, only(False)] = None

    @property
    def format_constraint(self) -> Constraint | None:
        if self.output_config is None or self.output_config.format is None:
            return None
        return Constraint("output_config.format", ConstraintKind.JSON, self.output_config.format.schema_)

    @property
    def reasoning_field(self) -> str | None:
        return "thinking" if self._thinks else super().reasoning_field

    @property
    def _thinks(self) -> bool:
        return self.thinking is not None and self.thinking.type == "enabled"

    @property
    def thinking_budget(self) -> int | None:
        if self.thinking is None or not self._thinks or self.thinking_token_budget is not None:
            return super().thinking_budget
        return self.thinking.budget_tokens

    @property
    def budget_field(self) -> str:
        return super().budget_field if self.thinking_token_budget is not None else "thinking"

    @property
    def shows_reasoning(self) -> bool:
        omitted = self.thinking is not None and self.thinking.display == "omitted"
        return super().shows_reasoning and not omitted

    @property
    def requested_logprobs(self) -> int | None:
        return None

    @property
    def include_usage(self) -> bool:
        return True


class TextBlock(TypedDict):
    type: Literal["text"]
    text: str
    citations: None


class ThinkingBlock(TypedDict):
    type: Literal["thinking"]
    thinking: str
    signature: str


class ToolUseBlock(TypedDict):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


Block = TextBlock | ThinkingBlock | ToolUseBlock
MessageTier = Literal["standard", "priority"]


class ThinkingTokens(TypedDict):
    thinking_tokens: int


class CountedTokens(TypedDict):
    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: NotRequired[ThinkingTokens]  # of a model that reasons


class MessageUsage(CountedTokens):
    service_tier: MessageTier


class MessageStop(TypedDict):
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"] | None
    stop_sequence: str | None


class MessageObject(MessageStop):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Block]
    usage: MessageUsage


class TokenCount(TypedDict):
    input_tokens: int


MessageEvent = dict[str, Any]
