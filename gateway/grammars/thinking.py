"""Thinking: the reasoning of a model is free, and the answer after it is constrained."""

from __future__ import annotations

from gateway.grammars.rules import Rule, repeated, sequence, text_rule, token_rule
from services.text import TextTables

MAX_SPACE = 8  # characters between the thinking and the answer


def with_reasoning(rule: Rule, tables: TextTables, opened: bool, begin: str = "<think>", end: str = "</think>") -> Rule:
    """The texts of `rule` after free thinking that `end` closes. `opened`: the prompt ends inside the thinking.
    Otherwise the output may begin with `begin`, or have no thinking. For a prompt that ends after the thinking, `rule`
    itself is the rule.

    The thinking contains no special tokens but `begin` and `end`, if these are special."""
    thinking = _thinking(tables, end)
    if opened:
        return sequence(thinking, rule)
    return sequence(repeated(sequence(token_rule(begin, tables), thinking), "?"), rule)


def _thinking(tables: TextTables, end: str) -> Rule:
    mark = token_rule(end, tables)
    space = f"/\\s{{0,{MAX_SPACE}}}/"
    if mark != text_rule(end):
        lines = [f"start: TEXT {mark.expression} {space}", r"TEXT: /(.|\n)*/"]
    else:  # lazy: the first `end` ends it
        lines = [f"start: thinking {space}", f"thinking[lazy]: TEXT {mark.expression}", r"TEXT: /(.|\n)*/"]
    return Rule("@thinking", (("thinking", "\n".join(lines)),))
