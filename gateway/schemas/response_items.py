"""The items that `input` of `POST /v1/responses` takes: messages, calls of functions with their outputs, reasoning.

Whatever `output` of an earlier response holds is taken as it is.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import BeforeValidator, model_validator
from typing_extensions import TypedDict

from gateway.schemas.chat import FunctionCall, Message, ToolCall
from gateway.schemas.strict import Strict, contradiction, unsupported

# The field that holds the text of a part, by the part's type, and the fields that say nothing to a model.
PART_TEXT = {
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "reasoning_text": "text",
    "summary_text": "text",
    "refusal": "refusal",
}
PART_EXTRAS = {"type", "prompt_cache_breakpoint", "cache_control", "annotations", "logprobs"}
KINDS = ("message", "function_call", "function_call_output", "reasoning")
REQUIRED = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "reasoning": (),
}


def _text(value: Any) -> str | None:
    """The text of parts, joined; a string is itself."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError("must be a string or a list of text parts")
    return "".join(map(_part, value))


def _part(part: Any) -> str:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise ValueError("has a part that is not an object with a type")
    kind = part["type"]
    name = PART_TEXT.get(kind)
    if name is None:
        raise unsupported("has a part that is not text; this server takes text alone")
    text = part.get(name)
    unknown = {key for key, value in part.items() if value is not None} - PART_EXTRAS - {name}
    if unknown or not isinstance(text, str):
        raise ValueError(f"has a part that is not {{'type': '{kind}', '{name}': string}}")
    return text


def _kind(value: Any) -> Any:
    if isinstance(value, str) and value not in KINDS:
        raise unsupported(f"must be one of {', '.join(KINDS)}; this server takes no other items")
    return value


class ResponseTextPart(TypedDict):
    """What the document says of a part; `_part` reads it."""

    type: Literal["input_text", "output_text", "reasoning_text", "summary_text", "refusal"]
    text: NotRequired[str]
    refusal: NotRequired[str]
    annotations: NotRequired[list[Any]]
    logprobs: NotRequired[list[Any] | None]


Text = Annotated[str, BeforeValidator(_text, str | list[ResponseTextPart])]


class InputItem(Strict):
    """One item; `type` says which of the fields it has, and a message may leave it out."""

    type: Annotated[
        Literal["message", "function_call", "function_call_output", "reasoning"], BeforeValidator(_kind)
    ] = "message"
    id: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: Text | None = None
    phase: Literal["commentary", "final_answer"] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: Text | None = None
    summary: Text | None = None
    encrypted_content: str | None = None  # another server's: nothing here can read it
    parsed_arguments: Any = None  # as the openai package dumps a call that it has parsed

    @model_validator(mode="after")
    def _whole(self) -> InputItem:
        for name in REQUIRED[self.type]:
            if getattr(self, name) is None:
                raise contradiction(name, f"an input item of type '{self.type}' must have '{name}'")
        if self.type == "message" and self.content == "" and self.role != "assistant":
            raise contradiction("content", f"a message of role '{self.role}' must have text")
        return self

    def as_message(self) -> Message:
        """The item as a message of a chat: one that calls a function, brings its output, or only reasons."""
        match self.type:
            case "function_call":
                assert self.name is not None
                function = FunctionCall(name=self.name, arguments=self.arguments or "")
                return Message(role="assistant", tool_calls=[ToolCall(id=self.call_id, function=function)])
            case "function_call_output":
                return Message(role="tool", content=self.output, tool_call_id=self.call_id)
            case "reasoning":
                return Message(role="assistant", reasoning_content=self.content or self.summary or "")
            case _:
                assert self.role is not None
                return Message(role=self.role, content=self.content)
