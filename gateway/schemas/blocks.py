"""The content of Anthropic's messages: text, thinking, uses of tools and their results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from gateway.schemas.chat import FunctionCall, Message, ToolCall
from gateway.schemas.strict import Strict, contradiction
from gateway.schemas.text_parts import TextParts

SEPARATOR = "\n\n"  # between consecutive messages of one role, which form one turn
TEXT_BLOCKS = TextParts(
    {"text": "text"},
    ignored=frozenset({"cache_control"}),
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


Block = Annotated[
    InputTextBlock | InputThinking | InputRedactedThinking | InputToolUse | InputToolResult, Field(discriminator="type")
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
    content: Annotated[list[Block], BeforeValidator(_blocks, str | list[Block])]

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
