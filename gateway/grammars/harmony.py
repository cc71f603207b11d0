"""Harmony: the rules of answers in messages on channels. The marks are special tokens, which texts do not contain.
Where a tokenizer has no such tokens, texts do not contain the beginning of a mark."""

from __future__ import annotations

from gateway.answer.parsers.harmony import (
    ANALYSIS,
    CHANNEL,
    COMMENTARY,
    CONSTRAIN,
    END,
    FINAL,
    FUNCTION,
    MARKS,
    MESSAGE,
    START,
)
from gateway.grammars.call_rules import ANY_OBJECT
from gateway.grammars.rules import ANY_TEXT, Rule, json_rule, texts_rule
from gateway.grammars.tools import closed
from gateway.tools import ToolUse
from services.text import TextTables

NEXT = f"{END}{START}assistant"
NO_MARKS = ANY_TEXT + r" & ~/(.|\n)*<\|(.|\n)*/"


def harmony_rule(use: ToolUse, tables: TextTables, answer: Rule | None, opened: bool) -> Rule | None:
    """The rule of an answer in messages; None if any text may follow. `answer`: the rule of the final message, if the
    request has one. `opened`: the prompt ends inside the analysis.

    An answer has one call at most, since its end is the end of the output. Calls follow the schemas of their tools as
    in `tool_rule`."""
    if answer is None and not (use.required or use.constrains):
        return None

    def written(text: str) -> str:
        return texts_rule(text, MARKS, tables).expression

    head = written(f"{CHANNEL}{FINAL}{MESSAGE}")
    special = tables.special_id(END) is not None
    lines = [
        f"message: {written(f'{CHANNEL}{ANALYSIS}{MESSAGE}')} ended",
        f"ended{'' if special else '[lazy]'}: TEXT {written(NEXT)}",
        f"TEXT: {ANY_TEXT if special else NO_MARKS}",
    ]
    ends, before = [], "message"
    grammars: tuple[tuple[str, str], ...] = ()
    if use.calls:
        ends.append("call")
        lines.append(f"call: {' | '.join(f'call_{i}' for i in range(len(use.callable)))}")
    for number, tool in enumerate(use.callable if use.calls else ()):
        schema = closed(tool.schema) if use.required or tool.strict else ANY_OBJECT
        called = f"{CHANNEL}{COMMENTARY} {FUNCTION}{tool.name} {CONSTRAIN}json{MESSAGE}"
        lines.append(f"call_{number}: {written(called)} {json_rule(schema).expression}")
    if not use.required:
        ends.append("final")
        before = "(message | remark)"
        lines.append(f"remark: {written(f'{CHANNEL}{COMMENTARY}{MESSAGE}')} ended")
        lines.append(f"final: {head} {'TEXT' if answer is None else answer.expression}")
        grammars = () if answer is None else answer.grammars
    first = "ended " if opened else ""
    lines.insert(0, f"start: {first}{before}* ({' | '.join(ends)})")
    return Rule("@messages", (("messages", "\n".join(lines)), *grammars))
