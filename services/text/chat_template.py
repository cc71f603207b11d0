"""ChatTemplate: messages to prompt text by the model's own Jinja template, rendered as transformers renders it.

Templates come with models and are not trusted: they run in Jinja's immutable sandbox.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from services.errors import ModelError

_MARK = "ContinueFinalMessageHere "  # behind a last message that is to be continued


class ChatTemplate:
    """A compiled chat template and the special tokens it may name (`bos_token`, ...)."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        try:
            self._template = _environment().from_string(source)
        except TemplateError as error:
            raise ModelError(f"the chat template is not valid: {error}") from None
        self._special_tokens = dict(special_tokens)

    @classmethod
    def load(cls, folder: Path) -> ChatTemplate | None:
        """The template in chat_template.jinja, else that in tokenizer_config.json; None if there is neither."""
        config = _read_json(folder / "tokenizer_config.json")
        file = folder / "chat_template.jinja"
        source = file.read_text(encoding="utf-8") if file.exists() else _default_of(config.get("chat_template"))
        if source is None:
            return None
        return cls(source, _special_tokens(_read_json(folder / "special_tokens_map.json") | config))

    def apply(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> str:
        """The prompt for `messages`; fields that are None count as absent.

        `continue_final_message` ends the prompt with the last message's content, so that the model goes on with it;
        `add_generation_prompt` must be false then.

        Raises ValueError with the template's own words where it refuses them (`raise_exception`), and saying what went
        wrong where it cannot render them.
        """
        if not messages:
            raise ValueError("a chat needs at least one message")
        given = [{key: value for key, value in message.items() if value is not None} for message in messages]
        if not continue_final_message:
            return self._render(given, add_generation_prompt)
        if add_generation_prompt:
            raise ValueError("'continue_final_message' and 'add_generation_prompt' exclude each other")
        return self._continued(given)

    def _continued(self, messages: list[dict[str, Any]]) -> str:
        """As transformers does it: the place where the last message ends is found by a mark behind its content. A
        template that strips contents takes the mark's space away, and whatever space the content ended with."""
        content = messages[-1].get("content")
        if not isinstance(content, str):
            raise ValueError("the last message has no text to continue")
        text = self._render([*messages[:-1], {**messages[-1], "content": content + _MARK}], add_generation_prompt=False)
        before, mark, behind = text.rpartition(_MARK.strip())
        if not mark or content.strip() not in before:
            raise ValueError("the model's chat template does not show the last message, so it cannot be continued")
        return before if behind.startswith(" ") else before.rstrip()

    def _render(self, given: list[dict[str, Any]], add_generation_prompt: bool) -> str:
        try:
            return self._template.render(
                messages=given,
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
            )
        except _RefusedError as error:
            raise ValueError(str(error)) from None
        except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise ValueError(f"the model's chat template cannot render these messages: {error}") from None


class _RefusedError(TemplateError):
    """The template called raise_exception."""


class _Generation(Extension):
    """`{% generation %}` marks what the model wrote, for training; here it is only its content."""

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
    """Jinja's own filter escapes HTML, which no model was trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ModelError(f"{path} is not JSON: {error}") from None
    return value if isinstance(value, dict) else {}


def _default_of(template: Any) -> str | None:
    """A template is one string, or a list of named ones of which `default` is meant."""
    if isinstance(template, list):
        return next((t["template"] for t in template if t["name"] == "default"), None)
    return template if isinstance(template, str) else None


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    named = {key: value for key, value in config.items() if key.endswith("_token") and value}
    contents = {key: value.get("content") if isinstance(value, dict) else value for key, value in named.items()}
    return {key: value for key, value in contents.items() if isinstance(value, str)}
