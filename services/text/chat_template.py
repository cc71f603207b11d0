"""ChatTemplate: renders messages to the text of a prompt, with the model's own Jinja template, as transformers does.

Templates come with models and are not trusted. They run in Jinja's immutable sandbox.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from services.errors import ModelError
from services.text.tokenizer_config import TokenizerConfig

# The mark is appended to the message that is continued, to find its end in the rendered text. It is random, so no
# message contains it. If the space at its end is missing afterwards, the template strips contents.
_MARK = f"<<{secrets.token_hex(16)}>> "


class ChatTemplate:
    """A compiled chat template and the special tokens that it may use (`bos_token`, ...)."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        try:
            self._template = _environment().from_string(source)
        except TemplateError as error:
            raise ModelError(f"the chat template is not valid: {error}") from None
        self._special_tokens = dict(special_tokens)

    @classmethod
    def load(cls, folder: Path) -> ChatTemplate | None:
        """Return the template in chat_template.jinja or in tokenizer_config.json; None if there is neither."""
        config = TokenizerConfig.load(folder)
        return None if config.chat_template is None else cls(config.chat_template, config.named_tokens)

    def apply(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> str:
        """Return the prompt for `messages`. Fields that are None count as absent. With `continue_final_message`, the
        prompt ends with the content of the last message, so that the model continues it.

        Raises ValueError with the template's own message if it refuses the messages (`raise_exception`), or with the
        reason why they cannot be rendered.
        """
        if not messages:
            raise ValueError("a chat needs at least one message")
        given = [{key: value for key, value in message.items() if value is not None} for message in messages]
        if not continue_final_message:
            return self._render(given, add_generation_prompt)
        content = given[-1].get("content")
        if not isinstance(content, str):
            raise ValueError("the last message has no text to continue")
        given[-1]["content"] = content + _MARK
        return _open(self._render(given, add_generation_prompt), content)

    def _render(self, messages: list[dict[str, Any]], add_generation_prompt: bool) -> str:
        try:
            return self._template.render(
                messages=messages,
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
            )
        except _RefusedError as error:
            raise ValueError(str(error)) from None
        except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise ValueError(f"the model's chat template cannot render these messages: {error}") from None


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
    """The template called raise_exception."""


class _Generation(Extension):
    """`{% generation %}` marks what the model wrote, for training. Here it stands for its content."""

    tags = {"generation"}  # noqa: RUF012 (jinja2's own declaration)

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
