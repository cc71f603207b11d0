"""`POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's fields."""

from __future__ import annotations

from itertools import groupby
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from gateway.schemas.chat import Message
from gateway.schemas.generation import Count, GenerationFields, stop_strings
from gateway.schemas.strict import Strict, nothing_asked, only, unsupported

TURN = "\n\n"  # between messages of one role in a row, which are one turn
TIERS = {"auto": "auto", "standard_only": "default"}


def _content(value: Any) -> str:
    """The text of a message: a string, or its text blocks joined."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError("must be a string or a list of text blocks")
    return "".join(map(_block, value))


def _block(block: Any) -> str:
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        raise ValueError("has a block that is not an object with a type")
    if block["type"] != "text":
        raise unsupported(f"has a block of type '{block['type'][:64]}'; this server takes text alone, and no tools yet")
    given = {name for name, value in block.items() if value is not None}
    if given - {"type", "text", "cache_control"} or not isinstance(block.get("text"), str):
        raise ValueError("has a text block that is not {'type': 'text', 'text': string}")
    text: str = block["text"]
    return text


def _system(value: Any) -> str | None:
    return None if value is None else _content(value)


def _metadata(value: Any) -> dict[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, dict) or set(value) - {"user_id"}:
        raise ValueError("must be an object with 'user_id' alone")
    return {name: id for name, id in value.items() if id is not None}


def _tier(value: Any) -> Any:
    """As the other routes name it."""
    if value is not None and not (isinstance(value, str) and value in TIERS):
        raise ValueError("must be 'auto' or 'standard_only'")
    return value and TIERS[value]


class InputMessage(Strict):
    """One message, its content as one text."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[str, BeforeValidator(_content)]


class Conversation(Strict):
    """What the prompt is made of, and fields that could change it in a way not served here.

    `cache_control` has no effect, because the prefix cache works without it.
    """

    model: str | None = None  # absent: the one there is
    messages: Annotated[list[InputMessage], Field(min_length=1, max_length=4096)]
    system: Annotated[str | None, BeforeValidator(_system)] = None
    tools: Annotated[None, only([])] = None
    tool_choice: Annotated[None, only({"type": "none"}, {"type": "auto"})] = None  # without tools they say the same
    mcp_servers: Annotated[None, only([])] = None
    thinking: Annotated[None, only({"type": "disabled"})] = None
    output_config: Annotated[None, BeforeValidator(nothing_asked)] = None
    context_management: Annotated[None, BeforeValidator(nothing_asked)] = None
    speed: Annotated[None, only("standard")] = None
    cache_control: dict[str, Any] | None = None

    @property
    def turns(self) -> list[Message]:
        """The conversation as a chat: the system prompt first, and messages of one role in a row as one, as Anthropic
        has it. An assistant's last message that is empty is left out: there is nothing to continue."""
        told = [InputMessage(role="system", content=self.system)] if self.system else []
        groups = groupby([*told, *self.messages], key=lambda message: message.role)
        turns = [Message(role=role, content=TURN.join(m.content for m in group)) for role, group in groups]
        empty = turns[-1].role == "assistant" and not turns[-1].text.strip() and len(turns) > 1
        return turns[:-1] if empty else turns


class CountTokensRequest(Conversation):
    """The fields of a message that its prompt depends on."""


class MessageRequest(Conversation, GenerationFields):
    """Anthropic's fields, and of ours those that chat has too, but for several choices, log probabilities and token
    ids."""

    max_tokens: Count
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    stop: Annotated[tuple[str, ...], BeforeValidator(stop_strings)] = Field((), validation_alias="stop_sequences")
    metadata: Annotated[dict[str, str] | None, BeforeValidator(_metadata)] = None
    service_tier: Annotated[Literal["auto", "default"] | None, BeforeValidator(_tier)] = None
    container: Annotated[None, only()] = None
    inference_geo: Annotated[None, only()] = None
    diagnostics: dict[str, Any] | None = None
    n: Annotated[None, only(1)] = None
    stream_options: Annotated[None, only()] = None  # usage is always there
    return_token_ids: Annotated[None, only(False)] = None

    @property
    def asked_logprobs(self) -> int | None:
        return None

    @property
    def include_usage(self) -> bool:
        return True
