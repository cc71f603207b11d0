"""Reading: which parsers read the answers of a model, and the answer to one request."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.answer.parsers.registry import marks_of
from gateway.answer.parsers.thinking import BEGIN, END
from gateway.errors import ApiError, Kind
from gateway.tools import ToolUse
from services.errors import ModelError
from services.settings.settings import Settings
from services.text import Tokenizer

AUTO, NONE = "auto", "none"  # of the settings
FALLBACK = "smollm2"  # the parser for templates that do not know tools (see `tool_fallback`)
READ_FALLBACK = (FALLBACK, "hermes")  # which read the same


@dataclass(frozen=True, slots=True)
class Reading:
    """How the text of an answer is read: fields of its `Plan`. `spelled`: a mark of a parser is a special token, so the
    text needs the names of special tokens."""

    tool_parser: str = ""
    reasoning_parser: str = ""
    reasoning_open: bool = False
    parallel_tool_calls: bool = True
    spelled: bool = False


PLAIN = Reading()


class ModelReading:
    """How the answers of a model are read. Parsers are those of the settings; by default, those of the syntax that the
    chat template writes."""

    def __init__(self, tokenizer: Tokenizer, settings: Settings) -> None:
        """Raises ModelError for a parser that does not read the calls that the model is asked for."""
        self._tokenizer = tokenizer
        check_tool_parser(settings.tool_call_parser, tokenizer.template_knows_tools)
        self.tool_parser = _chosen(settings.tool_call_parser, tool_family(tokenizer))
        self.reasoning_parser = _chosen(settings.reasoning_parser, reasoning_family(tokenizer))

    def of(self, use: ToolUse, prompt: list[int]) -> Reading:
        """How the answer to a chat is read. `prompt`: its token ids. Raises ApiError for tools that the model cannot
        call."""
        tool = self.tool_parser if use.calls else ""
        if use.calls and not tool:
            text = "Invalid 'tools': the server does not know how this model writes calls of tools."
            raise ApiError(Kind.INVALID, text, "tools")
        thinking = thinking_of(self._tokenizer, prompt) if self.reasoning_parser else False
        reasoning = "" if thinking is False else self.reasoning_parser
        marks = marks_of(tool, reasoning)
        spelled = any(self._tokenizer.tables.special_id(mark) is not None for mark in marks)
        return Reading(tool, reasoning, bool(thinking), use.parallel, spelled)


def check_tool_parser(setting: str, template_knows_tools: bool) -> None:
    """Raise ModelError if the parser of the setting does not read the calls that the model is asked for."""
    if not template_knows_tools and setting not in (AUTO, NONE, *READ_FALLBACK):
        text = f"tool_call_parser={setting}: the model's chat template does not know tools, and the server describes"
        raise ModelError(f"{text} calls in the syntax that '{FALLBACK}' reads; leave it out, or set it to auto")


def _chosen(setting: str, family: str) -> str:
    return family if setting == AUTO else "" if setting == NONE else setting


def tool_family(tokenizer: Tokenizer) -> str:
    """The parser of the calls that the chat template writes in the history; empty if it is of no known family. A
    template that does not use tools gets text in the syntax of `smollm2`."""
    if not tokenizer.template_knows_tools:
        return FALLBACK
    text = tokenizer.config.tool_template or tokenizer.config.chat_template or ""
    if "[TOOL_CALLS]" in text:
        return "mistral"
    if "<function=" in text:  # Qwen3-Coder
        return ""
    if "<tool_call>" in text:
        return "hermes"
    return "llama3_json" if '"parameters": ' in text else ""


def reasoning_family(tokenizer: Tokenizer) -> str:
    """The parser of the reasoning that the chat template writes or removes; empty if it knows none."""
    return "deepseek_r1" if END in (tokenizer.config.chat_template or "") else ""


def thinking_of(tokenizer: Tokenizer, prompt: list[int]) -> bool | None:
    """Whether the answer to `prompt` begins inside the reasoning; None if it may begin with reasoning.

    Only the text after the prompt's last special token counts, because there the template begins the answer. The last
    mark of reasoning in it says whether the reasoning has begun or ended.
    """
    tables, special = tokenizer.tables.of(skip_special_tokens=False), tokenizer.special_ids
    marks = (BEGIN.encode(), END.encode())
    begin = len(prompt)
    while begin > 0 and (prompt[begin - 1] not in special or tables.bytes_of(prompt[begin - 1]) in marks):
        begin -= 1
    begun = tables.join(prompt[begin:])
    last_begin, last_end = begun.rfind(marks[0]), begun.rfind(marks[1])
    return None if last_begin == last_end else last_begin > last_end
