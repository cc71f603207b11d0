"""Tools: the functions that the model may or must call, in one form for all APIs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

MAX_CALLS = 128  # of one answer, as many as a message of the history may have
NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}
INPUT = "input"  # the only argument of a custom tool


@dataclass(frozen=True, slots=True)
class Tool:
    """A function. `parameters`: the JSON Schema of its arguments, an object; None: it has no arguments. `strict`: calls
    follow the schema also where the model is free to call. `custom`, `pattern`: see `of_text`."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False
    custom: bool = False
    pattern: str = ""

    @classmethod
    def of_text(cls, name: str, description: str | None, pattern: str | None = None) -> Tool:
        """A custom tool: its input is a text, all of which matches `pattern` if there is one. To the model it is a
        function with this text as the only argument."""
        text = {"type": "string"} | ({} if pattern is None else {"pattern": f"^(?:{pattern})$"})
        parameters = {"type": "object", "properties": {INPUT: text}, "required": [INPUT], "additionalProperties": False}
        return cls(name, description, parameters, strict=True, custom=True, pattern=pattern or "")

    def for_template(self) -> dict[str, Any]:
        """The tool as chat templates expect it."""
        described = {} if self.description is None else {"description": self.description}
        function = {"name": self.name, **described, "parameters": self.parameters or NO_PARAMETERS}
        return {"type": "function", "function": function}

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the arguments."""
        if self.parameters is None:
            return NO_PARAMETERS | {"additionalProperties": False}
        return {"type": "object"} | self.parameters


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Which tools the model may call. `names`: only these; None: all. `named`: exactly one call of the only name."""

    mode: Literal["none", "auto", "required"] = "auto"
    names: tuple[str, ...] | None = None
    named: bool = False

    @classmethod
    def of_name(cls, name: str) -> ToolChoice:
        """The choice of the tool `name`, which must be called."""
        return cls("required", (name,), named=True)


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of a request, all of which are in the prompt, and how they may be called. `parallel`: more than one
    call is allowed."""

    tools: Sequence[Tool] = ()
    choice: ToolChoice = ToolChoice()
    parallel: bool = True

    def for_template(self) -> list[dict[str, Any]] | None:
        """The tools as chat templates expect them; None if there are none."""
        return [tool.for_template() for tool in self.tools] or None

    @property
    def calls(self) -> bool:
        """Whether the answer may contain calls."""
        return bool(self.tools) and self.choice.mode != "none"

    @property
    def required(self) -> bool:
        """Whether the answer must be one or more calls."""
        return self.calls and self.choice.mode == "required"

    @property
    def max_calls(self) -> int:
        return 1 if self.choice.named or not self.parallel else MAX_CALLS

    @property
    def callable(self) -> list[Tool]:
        """The tools that may be called."""
        names = self.choice.names
        return [tool for tool in self.tools if names is None or tool.name in names]

    @property
    def custom(self) -> tuple[str, ...]:
        """The names of the custom tools that may be called."""
        return tuple(tool.name for tool in self.callable if tool.custom) if self.calls else ()

    @property
    def constrains(self) -> bool:
        """Whether a grammar has to forbid some calls: the model is free to call, but not any tool or in any way."""
        limited = self.choice.names is not None or any(tool.strict for tool in self.tools)
        return self.calls and not self.required and limited


NO_TOOLS = ToolUse()
