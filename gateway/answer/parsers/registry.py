"""Which parser reads the answers of a request."""

from __future__ import annotations

from collections.abc import Callable

from gateway.answer.parsers.json_calls import JsonCalls
from gateway.answer.parsers.mistral import MistralCalls
from gateway.answer.parsers.thinking import BEGIN, END, Thinking
from gateway.answer.parts import Parser, Part

# by vLLM's names
TOOL_PARSERS: dict[str, Callable[[], Parser]] = {
    "hermes": lambda: JsonCalls("<tool_call>", "</tool_call>"),
    "smollm2": lambda: JsonCalls("<tool_call>", "</tool_call>"),
    "llama3_json": lambda: JsonCalls("<|python_tag|>", bare=True, needs_arguments=True),
    "mistral": MistralCalls,
}
REASONING_PARSERS = ("deepseek_r1", "qwen3")  # which are the same
MARKS = {
    "hermes": ("<tool_call>", "</tool_call>"),
    "smollm2": ("<tool_call>", "</tool_call>"),
    "llama3_json": ("<|python_tag|>",),
    "mistral": ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
}


def marks_of(tool_parser: str, reasoning_parser: str) -> tuple[str, ...]:
    """The marks that these parsers read; "" for no parser."""
    return MARKS.get(tool_parser, ()) + ((BEGIN, END) if reasoning_parser else ())


def make_parser(tool_parser: str, reasoning_parser: str, reasoning_open: bool, parallel: bool) -> Parser | None:
    """A parser for one choice, by the fields of its plan; None if all of its text is content."""
    parser = TOOL_PARSERS[tool_parser]() if tool_parser else None
    if parser is not None and not parallel:
        parser = FirstCall(parser)
    return Thinking(parser, reasoning_open) if reasoning_parser else parser


class FirstCall:
    """A `Parser` that leaves out the calls after the first one."""

    def __init__(self, parser: Parser) -> None:
        self._parser = parser

    def push(self, text: str) -> list[Part]:
        return [part for part in self._parser.push(text) if part.call <= 0]

    def finish(self) -> list[Part]:
        return [part for part in self._parser.finish() if part.call <= 0]
