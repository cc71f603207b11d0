"""Which parser reads the answers of a request."""

from __future__ import annotations

from gateway.answer.parsers.formats import CALL_FORMATS, REASONING_FORMATS
from gateway.answer.parsers.harmony import MARKS, Harmony
from gateway.answer.parsers.marked_calls import MarkedCalls, Types
from gateway.answer.parsers.thinking import Thinking
from gateway.answer.parts import Parser, Part
from gateway.errors import ApiError, Kind

HARMONY_CALLS, HARMONY_REASONING = "openai", "openai_gptoss"  # vLLM's names of the parsers of one format
TOOL_PARSERS = (*CALL_FORMATS, HARMONY_CALLS)
REASONING_PARSERS = (*REASONING_FORMATS, HARMONY_REASONING)


def marks_of(tool_parser: str, reasoning_parser: str) -> tuple[str, ...]:
    """The marks that these parsers read; "" for no parser."""
    marks: tuple[str, ...] = ()
    if is_harmony(tool_parser, reasoning_parser):
        marks += MARKS
    if tool_parser in CALL_FORMATS:
        marks += CALL_FORMATS[tool_parser].marks
    if reasoning_parser in REASONING_FORMATS:
        marks += REASONING_FORMATS[reasoning_parser].marks
    return marks


def is_harmony(tool_parser: str, reasoning_parser: str) -> bool:
    """Whether the answer is in messages on channels, which one parser reads."""
    return tool_parser == HARMONY_CALLS or reasoning_parser == HARMONY_REASONING


def make_parser(
    tool_parser: str, reasoning_parser: str, reasoning_open: bool, parallel: bool, types: Types | None = None
) -> Parser | None:
    """A parser for one choice, by the fields of its plan; None if all of its text is content. Raises ApiError for a
    parser that this build does not have."""
    if is_harmony(tool_parser, reasoning_parser):
        parser: Parser = Harmony(bool(tool_parser), bool(reasoning_parser), reasoning_open)
        return parser if parallel else FirstCall(parser)
    for name, known in ((tool_parser, TOOL_PARSERS), (reasoning_parser, REASONING_PARSERS)):
        if name and name not in known:
            text = f"The request was submitted to another version of this server, which reads answers by '{name}'."
            raise ApiError(Kind.FAILED, text)
    rest: Parser | None = MarkedCalls(CALL_FORMATS[tool_parser], types or {}) if tool_parser else None
    if rest is not None and not parallel:
        rest = FirstCall(rest)
    return Thinking(REASONING_FORMATS[reasoning_parser], rest, reasoning_open) if reasoning_parser else rest


class FirstCall:
    """A `Parser` that leaves out the calls after the first one."""

    def __init__(self, parser: Parser) -> None:
        self._parser = parser

    def push(self, text: str) -> list[Part]:
        return [part for part in self._parser.push(text) if part.call <= 0]

    def finish(self) -> list[Part]:
        return [part for part in self._parser.finish() if part.call <= 0]
