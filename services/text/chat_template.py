"""ChatTemplate: renders messages to the text of a prompt, with the model's own Jinja template, as transformers does.

Templates come with models and are not trusted. They run in Jinja's immutable sandbox.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, TemplateSyntaxError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from services.errors import ModelError
from services.text.call_history import FUNCTION, SAID, Written, written_by
from services.text.tokenizer_config import TokenizerConfig
from services.text.tool_fallback import has_calls, with_instructions, with_tools_as_text

# The mark is appended to the message that is continued, to find its end in the rendered text. It is random, so no
# message contains it. If the space at its end is missing afterwards, the template strips contents.
_MARK = f"<<{secrets.token_hex(16)}>> "

# a conversation with a text of the system
_SYSTEM = [{"role": "system", "content": SAID[0]}, {"role": "user", "content": "a"}]
# what templates call the reasoning of an answer; the first one that a template names
_REASONING = ("reasoning_content", "thinking", "reasoning", "thought")


class ChatTemplate:
    """A compiled chat template and the special tokens that it may use (`bos_token`, ...).

    `tool_source`: the template for requests with tools, if it is another one. `uses_tools`: whether the template of
    such requests knows tools; otherwise they are described in text (see `tool_fallback`). `call_form`: how the model
    writes a call, for such a text beside a template that writes calls.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str], tool_source: str | None = None) -> None:
        environment = _environment()
        with_tools = source if tool_source is None else tool_source
        try:
            self._template = _Compiled.of(source, environment)
            self._tool_template = _Compiled.of(with_tools, environment)
            self.uses_tools = "tools" in meta.find_undeclared_variables(environment.parse(with_tools))
        except TemplateError as error:
            raise ModelError(f"the chat template is not valid: {_place(error)}") from None
        self._special_tokens = dict(special_tokens)
        self.call_form = ""
        self._calls: dict[tuple[_Compiled, bool], Written | None] = {}

    @classmethod
    def load(cls, folder: Path) -> ChatTemplate | None:
        """Return the template in chat_template.jinja or in tokenizer_config.json; None if there is neither."""
        config = TokenizerConfig.load(folder)
        if config.chat_template is None:
            return None
        try:
            return cls(config.chat_template, config.named_tokens, config.tool_template)
        except ModelError as error:
            raise ModelError(f"{config.template_file}: {error}") from None

    def apply(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt for `messages`. Fields that are None count as absent. With `continue_final_message`, the
        prompt ends with the content of the last message, so that the model continues it. `tools`: in OpenAI's form of
        chat. `kwargs`: further variables of the template.

        Raises ValueError with the template's own message if it refuses the messages (`raise_exception`), or with the
        reason why they cannot be rendered.
        """
        if not messages:
            raise ValueError("a chat needs at least one message")
        given = [{key: value for key, value in message.items() if value is not None} for message in messages]
        variables = {
            **self._special_tokens,
            **(kwargs or {}),
            "tools": [dict(tool) for tool in tools] if tools else None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        template = self._tool_template if tools else self._template
        described = tools if tools and not self.uses_tools else ()
        written = self._written(template, bool(tools)) if any(map(has_calls, given)) else Written(False, True)
        if written is None or (described and not self.call_form):
            given = with_tools_as_text(given, described, self._takes_system)
        elif described:
            given = with_instructions(written.of(given), described, self._takes_system, self.call_form)
        else:
            given = written.of(given)
        content = given[-1].get("content") if continue_final_message else ""
        if not isinstance(content, str):
            raise ValueError("the last message has no text to continue")
        if continue_final_message:
            given[-1]["content"] = content + _MARK
        try:
            text = template.render(given, variables)
        except ValueError:
            whole = [_described(tool) for tool in tools or ()]
            if whole == variables["tools"] or not whole:
                raise
            text = template.render(given, variables | {"tools": whole})  # some, as GPT-OSS's, need each description
        return _open(text, content) if continue_final_message else text

    @property
    def writes_calls(self) -> bool:
        """Whether the template writes calls of the history, with or without tools."""
        return self._written(self._template, False) is not None

    @cached_property
    def _takes_system(self) -> bool:
        """Whether the template writes messages of the system."""
        try:
            return SAID[0] in self._template.render(_SYSTEM, self._special_tokens | {"tools": None})
        except ValueError:
            return False

    def _written(self, template: _Compiled, tools: bool) -> Written | None:
        """How the template writes calls of the history; None if it does not. `tools`: whether the request has some."""
        if (template, tools) not in self._calls:
            described = [{"type": "function", "function": FUNCTION}] if tools else None
            variables = self._special_tokens | {"tools": described, "add_generation_prompt": True}
            found = written_by(lambda chat: template.render(chat, variables)) if template.names_calls else None
            self._calls[template, tools] = found
        return self._calls[template, tools]


@dataclass(frozen=True, slots=True, eq=False)
class _Compiled:
    """A template in compiled form. `names_calls`: it has the name of the calls of a message. `reads_parts`: see
    `_reads_parts`. `reasoning`: what it calls the reasoning of a message."""

    template: Template
    names_calls: bool
    reads_parts: bool
    reasoning: str

    @classmethod
    def of(cls, source: str, environment: ImmutableSandboxedEnvironment) -> _Compiled:
        reasoning = next((name for name in _REASONING if re.search(rf"""[.'"]{name}\b""", source)), _REASONING[0])
        reads_parts = _reads_parts(environment.parse(source))
        return cls(environment.from_string(source), "tool_calls" in source, reads_parts, reasoning)

    def render(self, messages: list[dict[str, Any]], variables: Mapping[str, Any]) -> str:
        """Return the text of the messages. Raises ValueError for messages that the template refuses."""
        named = [_with_reasoning(message, self.reasoning) for message in messages]
        try:
            return self._rendered(named, variables)
        except ValueError:
            joined = [_with_thoughts_alone(message, self.reasoning) for message in named]
            if joined == named:
                raise
            return self._rendered(joined, variables)

    def _rendered(self, messages: list[dict[str, Any]], variables: Mapping[str, Any]) -> str:
        if self.reads_parts:
            messages = [_with_parts(message) for message in messages]
        try:
            return self.template.render({**variables, "messages": messages})
        except _RefusedError as error:
            raise ValueError(str(error)) from None
        except Exception as error:  # templates are not trusted: one may recurse, or ask for more memory than there is
            raise ValueError(f"the model's chat template cannot render these messages: {error}") from None


def _with_reasoning(message: dict[str, Any], name: str) -> dict[str, Any]:
    """The message with its reasoning under this name."""
    if _REASONING[0] not in message:
        return message
    made = dict(message)
    return made | {name: made.pop(_REASONING[0])}


def _with_thoughts_alone(message: dict[str, Any], name: str) -> dict[str, Any]:
    """The message with the content before its calls as the end of its reasoning: GPT-OSS's template takes one of both,
    and writes either on the channel of the reasoning."""
    if not (message.get("tool_calls") and message.get("content") and message.get(name)):
        return message
    return message | {name: f"{message[name]}\n\n{message['content']}", "content": ""}


def _described(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the tool, with an empty description if it has none."""
    return {**tool, "function": {"description": "", **tool["function"]}}


def fault_of(source: str) -> str:
    """Why `source` is no valid template, with the line; empty if it is one."""
    try:
        _environment().from_string(source)
    except TemplateError as error:
        return _place(error)
    return ""


def _place(error: TemplateError) -> str:
    return f"line {error.lineno}: {error}" if isinstance(error, TemplateSyntaxError) else str(error)


def _reads_parts(tree: nodes.Template) -> bool:
    """Return whether a template iterates over the parts of a content and never tests whether a content is a string, as
    templates of models that read pictures do."""

    def is_content(node: nodes.Node) -> bool:
        while isinstance(node, nodes.Filter) and node.name in ("selectattr", "rejectattr") and node.node:
            node = node.node
        if isinstance(node, nodes.Getitem):
            return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
        return "content" in (getattr(node, "attr", ""), getattr(node, "name", ""))

    asks = any(test.name == "string" for test in tree.find_all(nodes.Test))
    return not asks and any(is_content(loop.iter) for loop in tree.find_all(nodes.For))


def _with_parts(message: dict[str, Any]) -> dict[str, Any]:
    """Return `message` with its text as the only part of its content."""
    content = message.get("content")
    return message | {"content": [{"type": "text", "text": content}]} if isinstance(content, str) else message


def _open(text: str, content: str) -> str:
    """Return the rendered `text` up to the end of its last message. Its `content` was rendered with `_MARK`
    appended.
    """
    mark = _MARK.rstrip()
    if content.strip() not in text or mark not in text:
        raise ValueError("the model's chat template leaves out the last message, or changes it: it cannot be continued")
    end = text.rindex(mark)
    before = text[:end].replace(_MARK, "").replace(mark, "")  # a template may write the content twice
    # a template that strips contents would also have stripped the end of the content, but for the mark
    return before if text.startswith(_MARK, end) else before.rstrip()


class _RefusedError(TemplateError):
    """Raised where a template calls `raise_exception`, with the template's message."""


class _Generation(Extension):
    """`{% generation %}` marks what the model wrote, for training. Here it stands for its content."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it without ClassVar

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _raise_exception(message: str) -> NoReturn:
    raise _RefusedError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Dump JSON without the HTML escapes of Jinja's own filter, which no model was trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
