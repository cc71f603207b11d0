"""`tools` and `tool_choice` of the three APIs, and the checks that they share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator
from typing_extensions import TypedDict

from gateway.schemas.strict import Strict, by_type, contradiction, only, unsupported, variant
from gateway.tools import Tool, ToolChoice, ToolUse

MAX_TOOLS = 128
MAX_NAME = 128  # characters, Anthropic's and Responses' maximum; chat's is 64
NAME_PATTERN = r"^[a-zA-Z0-9_-]+$"

ToolName = Annotated[str, Field(min_length=1, max_length=MAX_NAME, pattern=NAME_PATTERN)]
ChatToolName = Annotated[str, Field(min_length=1, max_length=64, pattern=NAME_PATTERN)]


def _parameters(value: Any) -> Any:
    """Arguments are an object, so their schema must be one of an object."""
    if isinstance(value, dict) and value.get("type", "object") != "object":
        raise ValueError("must be a JSON Schema of type 'object'")
    return value


Parameters = Annotated[dict[str, Any], BeforeValidator(_parameters, dict[str, Any])]


def _of_type(*known: str) -> BeforeValidator:
    """Tools of the client. The error for a tool of another type names it."""
    takes = " and ".join(f"'{name}'" for name in known)

    def check(value: Any) -> Any:
        for tool in value if isinstance(value, list) else ():
            kind = tool.get("type", known[0]) if isinstance(tool, dict) else known[0]
            if isinstance(kind, str) and kind not in known:
                text = f"has a tool of type '{kind[:64]}'; this server takes tools of type {takes} alone"
                raise unsupported(f"{text}: leave it out, or declare one of these, which the client runs")
        return value

    return BeforeValidator(check)


def _syntax(value: Any) -> Any:
    if value == "lark":
        text = "is 'lark'; models write the input as a string of JSON, in which this server follows a 'regex' alone"
        raise unsupported(f"{text}: leave the 'format' out, and describe it in the tool's 'description'")
    return value


class TextInput(Strict):
    """The input of a custom tool is any text."""

    type: Literal["text"]
    pattern: ClassVar[str | None] = None


class InputGrammar(Strict):
    definition: str
    syntax: Annotated[Literal["regex"], BeforeValidator(_syntax, Literal["lark", "regex"])]


class ChatGrammarInput(Strict):
    type: Literal["grammar"]
    grammar: InputGrammar

    @property
    def pattern(self) -> str:
        return self.grammar.definition


class ResponseGrammarInput(InputGrammar):
    type: Literal["grammar"]

    @property
    def pattern(self) -> str:
        return self.definition


FORMATS = by_type("text", "grammar")
AnyText = Annotated[TextInput, variant("text")]
ChatInputFormat = Annotated[AnyText | Annotated[ChatGrammarInput, variant("grammar")], FORMATS]
ResponseInputFormat = Annotated[AnyText | Annotated[ResponseGrammarInput, variant("grammar")], FORMATS]


class CustomObject(Strict):
    """The custom tool of chat."""

    name: ChatToolName
    description: str | None = None
    format: ChatInputFormat | None = None


class ChatCustomTool(Strict):
    type: Literal["custom"]
    custom: CustomObject

    @property
    def tool(self) -> Tool:
        made = self.custom
        return Tool.of_text(made.name, made.description, made.format.pattern if made.format else None)


class ResponseCustomTool(Strict):
    """A custom tool of Responses."""

    type: Literal["custom"]
    name: ToolName
    description: str | None = None
    format: ResponseInputFormat | None = None
    defer_loading: Annotated[None, only(False)] = None
    allowed_callers: Annotated[None, only(["direct"])] = None

    @property
    def tool(self) -> Tool:
        return Tool.of_text(self.name, self.description, self.format.pattern if self.format else None)

    @property
    def echo(self) -> dict[str, Any]:
        """The tool in the response object."""
        return {"format": {"type": "text"}} | self.model_dump(exclude_none=True)


class FunctionObject(Strict):
    """The function of a tool of chat."""

    name: ChatToolName
    description: str | None = None
    parameters: Parameters | None = None
    strict: bool | None = None


class ChatTool(Strict):
    type: Literal["function"]
    function: FunctionObject
    cache_control: dict[str, Any] | None = None  # no effect

    @property
    def tool(self) -> Tool:
        made = self.function
        return Tool(made.name, made.description, made.parameters, bool(made.strict))


class ResponseTool(Strict):
    """A function tool of Responses. `output_schema` describes results, which are text here."""

    type: Literal["function"]
    name: ToolName
    description: str | None = None
    parameters: Parameters | None = None
    strict: bool | None = None
    output_schema: dict[str, Any] | None = None  # no effect
    defer_loading: Annotated[None, only(False)] = None
    allowed_callers: Annotated[None, only(["direct"])] = None

    @property
    def tool(self) -> Tool:
        return Tool(self.name, self.description, self.parameters, bool(self.strict))

    @property
    def echo(self) -> dict[str, Any]:
        """The tool in the response object."""
        given = self.model_dump(include={"type", "name", "description", "parameters"})
        return given | {"strict": bool(self.strict)}


class MessageTool(Strict):
    """A tool of Anthropic's messages that the client runs."""

    type: Literal["custom"] | None = "custom"
    name: ToolName
    description: str | None = None
    input_schema: Parameters
    input_examples: list[dict[str, Any]] | None = None  # no effect
    strict: bool | None = None
    cache_control: dict[str, Any] | None = None  # no effect
    eager_input_streaming: bool | None = None  # no effect: arguments are always streamed
    defer_loading: Annotated[None, only(False)] = None
    allowed_callers: Annotated[None, only(["direct"])] = None

    @property
    def tool(self) -> Tool:
        return Tool(self.name, self.description, self.input_schema, bool(self.strict))


TOOLS = by_type("function", "custom")
AnyChatTool = Annotated[Annotated[ChatTool, variant("function")] | Annotated[ChatCustomTool, variant("custom")], TOOLS]
AnyResponseTool = Annotated[
    Annotated[ResponseTool, variant("function")] | Annotated[ResponseCustomTool, variant("custom")], TOOLS
]
ChatTools = Annotated[list[AnyChatTool], _of_type("function", "custom"), Field(max_length=MAX_TOOLS)]
ResponseTools = Annotated[list[AnyResponseTool], _of_type("function", "custom"), Field(max_length=MAX_TOOLS)]
MessageTools = Annotated[list[MessageTool], _of_type("custom"), Field(max_length=MAX_TOOLS)]

# --- tool_choice: the types below describe it in the document ------------------------------------------------

Mode = Literal["none", "auto", "required"]


class ToolNamed(TypedDict):
    name: str


class NamedChatTool(TypedDict):
    type: Literal["function"]
    function: ToolNamed


class NamedCustomTool(TypedDict):
    type: Literal["custom"]
    custom: ToolNamed


class AllowedTools(TypedDict):
    mode: Literal["auto", "required"]
    tools: list[dict[str, Any]]


class AllowedChatTools(TypedDict):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


class NamedResponseTool(TypedDict):
    type: Literal["function", "custom"]
    name: str


class AllowedResponseTools(AllowedTools):
    type: Literal["allowed_tools"]


def _chat_choice(value: Any) -> ToolChoice | None:
    match value:
        case None | ToolChoice():
            return value
        case "none" | "auto" | "required":
            return ToolChoice(value)
        case {"type": "function", "function": {"name": str(name), **rest}, **others} | {
            "type": "custom",
            "custom": {"name": str(name), **rest},
            **others,
        } if not rest and not others:
            return ToolChoice.of_name(name)
        case {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools), **rest}, **others} if (
            not rest and not others
        ):
            return _allowed(mode, [_tool_name(tool, nested=True) for tool in tools])
    raise _not_a_choice(value, "{'type': 'function', 'function': {'name': ...}}")


def _response_choice(value: Any) -> ToolChoice | None:
    match value:
        case None | ToolChoice():
            return value
        case "none" | "auto" | "required":
            return ToolChoice(value)
        case {"type": "function" | "custom", "name": str(name), **others} if not others:
            return ToolChoice.of_name(name)
        case {"type": "allowed_tools", "mode": mode, "tools": list(tools), **others} if not others:
            return _allowed(mode, [_tool_name(tool) for tool in tools])
    raise _not_a_choice(value, "{'type': 'function', 'name': ...}")


def _allowed(mode: Any, names: list[str]) -> ToolChoice:
    if mode not in ("auto", "required") or not names:
        raise ValueError("allowed_tools must have a 'mode', which is 'auto' or 'required', and one or more 'tools'")
    return ToolChoice(mode, tuple(dict.fromkeys(names)))


def _tool_name(tool: Any, nested: bool = False) -> str:
    """The name in an allowed tool. `nested`: in an object, under the type of the tool."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    known = kind in ("function", "custom")
    if nested and known:
        tool = tool.get(kind)
    name = tool.get("name") if isinstance(tool, dict) else None
    if not known or not isinstance(name, str):
        raise ValueError("allowed_tools has a tool that is no function or custom tool with a name")
    return name


def _not_a_choice(value: Any, named: str) -> Exception:
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind not in ("function", "custom", "allowed_tools"):
        return unsupported(f"has the type '{kind[:64]}'; this server has function and custom tools alone")
    return ValueError(f"must be 'none', 'auto', 'required', {named} or a choice of type 'allowed_tools'")


ChatToolChoice = Annotated[
    ToolChoice | None,
    BeforeValidator(_chat_choice, Mode | NamedChatTool | NamedCustomTool | AllowedChatTools | None),
]
ResponseToolChoice = Annotated[
    ToolChoice | None, BeforeValidator(_response_choice, Mode | NamedResponseTool | AllowedResponseTools | None)
]


class MessageToolChoice(Strict):
    """`tool_choice` of Anthropic's messages."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _of_its_type(self) -> MessageToolChoice:
        if (self.type == "tool") != (self.name is not None):
            raise contradiction("name", "a choice of type 'tool', and no other, must have the 'name' of the tool")
        return self

    @property
    def choice(self) -> ToolChoice:
        match self.type:
            case "tool":
                return ToolChoice.of_name(self.name or "")
            case "any":
                return ToolChoice("required")
            case _:
                return ToolChoice(self.type)


def use_of(
    tools: Sequence[ChatTool | ChatCustomTool | ResponseTool | ResponseCustomTool] | None,
    choice: ToolChoice | None,
    parallel: bool | None,
) -> ToolUse:
    """What `tools`, `tool_choice` and `parallel_tool_calls` of OpenAI's requests ask for."""
    return ToolUse([tool.tool for tool in tools or ()], choice or ToolChoice(), parallel is not False)


def check_tools(use: ToolUse) -> None:
    """Raises PydanticCustomError for two tools of one name, and a choice that the tools do not have."""
    names, choice = [tool.name for tool in use.tools], use.choice
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise contradiction("tools", f"two tools have the name '{twice}'")
    if not use.tools and (choice.mode == "required" or choice.names is not None):
        raise contradiction("tool_choice", "'tool_choice' is only allowed when 'tools' are given")
    unknown = sorted(set(choice.names or ()) - set(names))
    if unknown:
        raise contradiction("tool_choice", f"'tool_choice' names '{unknown[0][:64]}', which is not one of the tools")


def echo_of_choice(use: ToolUse) -> str | dict[str, Any]:
    """`tool_choice` in the response object."""
    choice = use.choice
    if not choice.names:
        return choice.mode
    tools = [{"type": "custom" if name in use.custom else "function", "name": name} for name in choice.names]
    if choice.named:
        return tools[0]
    return {"type": "allowed_tools", "mode": choice.mode, "tools": tools}
