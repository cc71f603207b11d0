"""Response formats: the rule that a constraint of a request stands for."""

from __future__ import annotations

from typing import Any

from llguidance.gbnf_to_lark import any_to_lark

from gateway.grammars.rules import ANY_TEXT, Rule, choice, json_rule, regex_rule, text_rule, token_rule
from gateway.schemas.structured import Constraint, ConstraintKind, Structure, TagFields
from services.errors import GrammarError
from services.grammar.compiler import MOST_LINES
from services.text import TextTables


def rule_of(constraint: Constraint, tables: TextTables) -> Rule:
    """The texts that a constraint allows. Raises GrammarError for one that cannot be written as a rule; the others may
    still not compile."""
    value: Any = constraint.value
    match constraint.kind:
        case ConstraintKind.JSON:
            return json_rule(value)
        case ConstraintKind.REGEX:
            return _regex(value)
        case ConstraintKind.CHOICE:
            return choice([text_rule(text) for text in dict.fromkeys(value)])
        case ConstraintKind.GRAMMAR:
            return _grammar(value)
        case ConstraintKind.TAGS:
            return _tags(value, tables)


def _regex(pattern: str) -> Rule:
    if (len(pattern) - len(pattern.rstrip("\\"))) % 2:
        raise GrammarError("the pattern ends with a backslash")
    return regex_rule(pattern)


def _grammar(text: str) -> Rule:
    """A grammar of the client, in Lark or GBNF. It is a grammar of its own, so its names cannot be those of others."""
    if (lines := text.count("\n")) > MOST_LINES:  # the converter takes the square of their number
        raise GrammarError(f"the grammar has {lines:,} lines; at most {MOST_LINES:,} are supported")
    try:
        lark = any_to_lark(text)
    except Exception as error:  # the converter has no exception of its own for all mistakes
        raise GrammarError(f"the grammar is neither Lark nor GBNF: {error}") from error
    return Rule("@grammar", (("grammar", lark),))


def _tags(tag: TagFields, tables: TextTables) -> Rule:
    """Free text, in which a trigger must go on as one of the structures that start with it."""
    structures, triggers = tag.structures or [], tag.triggers or []
    names = [f"structure_{i}" for i in range(len(structures))]
    lines = ["start: text_and_structure* TEXT", f"TEXT: {ANY_TEXT}", f"text_and_structure: {' | '.join(names)}"]
    for name, structure in zip(names, structures, strict=True):
        trigger = next(trigger for trigger in triggers if structure.begin.startswith(trigger))
        lines += _structure(name, structure, trigger, tables)
    return Rule("@tags", (("tags", "\n".join(lines)),))


def _structure(name: str, structure: Structure, trigger: str, tables: TextTables) -> list[str]:
    rest = structure.begin.removeprefix(trigger)
    begin, end = text_rule(rest).expression, text_rule(structure.end).expression
    body = f"{begin} {json_rule(structure.schema_).expression} {end}"
    mark = token_rule(trigger, tables)
    if mark != text_rule(trigger):  # a special token, which free text does not contain
        return [f"{name}: TEXT {mark.expression} {body}"]
    return [f"{name}: {name}_trigger {body}", f"{name}_trigger[lazy]: TEXT {mark.expression}"]
