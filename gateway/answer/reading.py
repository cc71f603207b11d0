"""Reading: which parsers read the answers of a model, and the answer to one request."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import cached_property

from gateway.answer.own_marks import own_marks
from gateway.answer.parameter_types import types_of
from gateway.answer.parsers.call_format import CALL_ID, INDEX, NAME, NamedJson, Xml
from gateway.answer.parsers.formats import (
    CALL_FORMATS,
    REASONING_FORMATS,
    REASONING_SIGNS,
    SIGNS,
    THINK,
    recognized,
)
from gateway.answer.parsers.harmony import ANALYSIS, CHANNEL, COMMENTARY, END, FINAL, MESSAGE, START
from gateway.answer.parsers.registry import is_harmony, marks_of
from gateway.answer.parsers.thinking import ReasoningFormat
from gateway.errors import ApiError, Kind
from gateway.tools import ToolUse
from services.errors import ModelError
from services.requests import ThinkingBudget
from services.settings.settings import Settings
from services.text import Tokenizer, tool_fallback

AUTO, NONE = "auto", "none"  # of the settings
FALLBACK = "smollm2"  # the parser for templates that do not know tools (see `tool_fallback`)
READ_FALLBACK = (FALLBACK, "hermes")  # which read the same
HARMONY = ReasoningFormat(f"{CHANNEL}{ANALYSIS}{MESSAGE}", END)
THOUGHT, ANSWER = "a0thought", "a0answer"  # texts that no template writes


@dataclass(frozen=True, slots=True)
class Reading:
    """How the text of an answer is read: fields of its `Plan`. `spelled`: a mark of a parser is a special token, so the
    text needs the names of special tokens."""

    tool_parser: str = ""
    reasoning_parser: str = ""
    reasoning_open: bool = False
    parallel_tool_calls: bool = True
    spelled: bool = False
    types: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def reasoning(self) -> ReasoningFormat | None:
        """The marks of the reasoning; None if the answer has none."""
        return HARMONY if self.harmony else REASONING_FORMATS.get(self.reasoning_parser)

    @property
    def harmony(self) -> bool:
        """Whether the answer is in messages on channels."""
        return is_harmony(self.tool_parser, self.reasoning_parser)


PLAIN = Reading()


class ModelReading:
    """How the answers of a model are read. Parsers are those of the settings; by default, those of the syntax that the
    chat template writes."""

    def __init__(self, tokenizer: Tokenizer, settings: Settings) -> None:
        """Raises ModelError for a parser that does not read the calls that the model is asked for."""
        self._tokenizer = tokenizer
        check_tool_parser(settings.tool_call_parser, tokenizer.template_knows_tools)
        family = tool_family(tokenizer)
        self.tool_parser = _of_template(_chosen(settings.tool_call_parser, family), family)
        if not tokenizer.template_knows_tools and self.tool_parser == family != FALLBACK:
            tokenizer.describe_calls(form_of(family))
        self.reasoning_parser = _chosen(settings.reasoning_parser, reasoning_family(tokenizer))
        self._closings: dict[ReasoningFormat, str] = {}

    @cached_property
    def _opens(self) -> bool:
        """Whether the chat template begins the reasoning of an answer."""
        form = self._reasoning_format("")
        try:
            text = self._tokenizer.apply_chat_template([{"role": "user", "content": "a"}])
        except ValueError:
            return False
        return form is not None and bool(thinking_of(self._tokenizer, self._tokenizer.encode(text, False), form))

    def own_marks(self, text: str) -> list[range]:
        """The places of the marks in an assistant's text that are read as reasoning or calls; see `own_marks`."""
        return own_marks(text, self.tool_parser, self.reasoning_parser, self._opens)

    def of(self, use: ToolUse, prompt: list[int]) -> Reading:
        """How the answer to a chat is read. `prompt`: its token ids. Raises ApiError for tools that the model cannot
        call."""
        tool = self.tool_parser if use.calls else ""
        if use.calls and not tool:
            text = "Invalid 'tools': the server does not know how this model writes calls of tools."
            raise ApiError(Kind.INVALID, text, "tools")
        form = self._reasoning_format(tool)
        thinking = thinking_of(self._tokenizer, prompt, form) if form else False
        kept = form is not None and (form is HARMONY or form.answer_begin)  # it reads more than the reasoning
        reasoning = "" if thinking is False and not kept else self.reasoning_parser
        marks = marks_of(tool, reasoning)
        spelled = any(self._tokenizer.tables.special_id(mark) is not None for mark in marks)
        typed = tool in CALL_FORMATS and isinstance(CALL_FORMATS[tool].call, Xml)
        types = types_of(use.callable) if typed else {}
        return Reading(tool, reasoning, bool(thinking), use.parallel, spelled, types)

    def budget_of(
        self, tokens: int, use: ToolUse, prompt: list[int], max_new_tokens: int, param: str
    ) -> ThinkingBudget | None:
        """What ends the reasoning after `tokens` tokens, those in the prompt included; None if there is nothing to end.
        Raises ApiError naming `param` if the end of the reasoning cannot be forced."""
        form = self._reasoning_format(self.tool_parser if use.calls else "")
        assert form, "this model does not reason"
        opened = thinking_of(self._tokenizer, prompt, form)
        left = max(0, tokens - _tokens_inside(self._tokenizer, prompt, form)) if opened else tokens
        if (opened is False and form is not HARMONY) or left >= max_new_tokens:
            return None
        if form not in self._closings:
            self._closings[form] = closing_of(self._tokenizer, form)
        closing = fixed_tokens(self._tokenizer, self._closings[form]) or fixed_tokens(self._tokenizer, form.end)
        if not closing:
            text = f"'{form.end}', the end of this model's reasoning, is no sequence of tokens that can be forced"
            raise ApiError(Kind.INVALID, f"Invalid '{param}': {text}; leave it out.", param)
        again: tuple[int, ...] = ()
        if form is HARMONY:  # to the call or the answer, since the model could begin one analysis after another
            channel = COMMENTARY if use.required else f"{FINAL}{MESSAGE}"
            again = fixed_tokens(self._tokenizer, f"{self._closings[form]}{CHANNEL}{channel}")
        return ThinkingBudget(left, form.begin, form.end, closing, bool(opened), again)

    def _reasoning_format(self, tool: str) -> ReasoningFormat | None:
        if is_harmony(tool, self.reasoning_parser):
            return HARMONY
        return REASONING_FORMATS[self.reasoning_parser] if self.reasoning_parser else None


def check_tool_parser(setting: str, template_knows_tools: bool) -> None:
    """Raise ModelError if the parser of the setting does not read the calls that the model is asked for."""
    if not template_knows_tools and setting not in (AUTO, NONE, *READ_FALLBACK):
        text = f"tool_call_parser={setting}: the model's chat template does not know tools, and the server describes"
        raise ModelError(f"{text} calls in the syntax that '{FALLBACK}' reads; leave it out, or set it to auto")


def _chosen(setting: str, family: str) -> str:
    return family if setting == AUTO else "" if setting == NONE else setting


def _of_template(name: str, family: str) -> str:
    """The format with which answers are read and forced: of the formats that have one name in vLLM, that of the
    template."""
    return family if family.startswith(f"{name}_") and name == "mistral" else name


def tool_family(tokenizer: Tokenizer) -> str:
    """The parser of the calls that the chat template writes in the history; empty if it is of no known family. A
    template that does not use tools gets text: with calls in this form if it writes calls, as DeepSeek's do, otherwise
    in the syntax of `smollm2`."""
    family = recognized(tokenizer.config.tool_template or tokenizer.config.chat_template or "", SIGNS)
    if tokenizer.template_knows_tools or (tokenizer.template_writes_calls and form_of(family)):
        return family
    return FALLBACK


def form_of(family: str) -> str:
    """How a call is written, as an example without values; empty if a description would need more than that."""
    form = CALL_FORMATS.get(family)
    if form is None or not isinstance(form.call, NamedJson):
        return ""
    head = form.call.head.replace(NAME, tool_fallback.NAME).replace(INDEX, "0").replace(CALL_ID, "")
    call = f"{head}{json.dumps(tool_fallback.ARGUMENTS)}{form.call.close}"
    return f"{form.begin}{form.before}{call}{form.after}{form.end}"


def reasoning_family(tokenizer: Tokenizer) -> str:
    """The parser of the reasoning that the chat template writes or removes; empty if it knows none."""
    return recognized(tokenizer.config.chat_template or "", REASONING_SIGNS)


def thinking_of(tokenizer: Tokenizer, prompt: list[int], form: ReasoningFormat = THINK) -> bool | None:
    """Whether the answer to `prompt` begins inside the reasoning; None if it may begin with reasoning.

    Only the text after the prompt's last special token counts, because there the template begins the answer. The last
    mark of reasoning in it says whether the reasoning has begun or ended.
    """
    tables, special = tokenizer.tables.of(skip_special_tokens=False), tokenizer.special_ids
    marks = (form.begin.encode(), form.end.encode())
    begin = len(prompt)
    while begin > 0 and (
        prompt[begin - 1] not in special or any(tables.bytes_of(prompt[begin - 1]) in m for m in marks)
    ):
        begin -= 1
    begun = tables.join(prompt[begin:])
    last_begin, last_end = begun.rfind(marks[0]), begun.rfind(marks[1])
    return None if last_begin == last_end else last_begin > last_end


def fixed_tokens(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """The tokens of `text` in the middle of another one; empty if the tokenizer adds something to it."""
    spelled = tokenizer.tables.of(skip_special_tokens=False)
    for before in ("", "a"):  # some tokenizers write a space before the first word
        ids, begin = tokenizer.encode_batch([before + text, before], add_special_tokens=False)
        if ids[: len(begin)] == begin and spelled.join(ids[len(begin) :]) == text.encode():
            return tuple(ids[len(begin) :])
    return ()


def closing_of(tokenizer: Tokenizer, form: ReasoningFormat) -> str:
    """What ends the reasoning in a text of the chat template: the mark with the whitespace beside it; the mark alone if
    the template writes no reasoning."""
    if form is HARMONY:
        return f"{END}{START}assistant"
    answer = {"role": "assistant", "content": ANSWER, "reasoning_content": THOUGHT}
    try:
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": "a"}, answer],
            add_generation_prompt=False,
            kwargs={"enable_thinking": True, "thinking": True},
        )
    except ValueError:
        return form.end
    written = re.search(rf"{THOUGHT}(\s*{re.escape(form.end)}\s*)", text)
    return written[1] if written else form.end


def _tokens_inside(tokenizer: Tokenizer, prompt: list[int], form: ReasoningFormat) -> int:
    """The number of tokens after the last mark that begins the reasoning; all if there is none."""
    spelled, mark = tokenizer.tables.of(skip_special_tokens=False), form.begin.encode()
    begin, text = len(prompt), b""
    while begin > 0 and mark not in text:
        begin -= 1
        text = spelled.bytes_of(prompt[begin]) + text[: len(mark)]
    end, text = begin, b""
    while end < len(prompt) and mark not in text:
        text += spelled.bytes_of(prompt[end])
        end += 1
    return len(prompt) - (end if mark in text else 0)
