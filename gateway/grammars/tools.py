"""Tools: the rules of calls, in the syntax of each family, as its chat template writes them in the history."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from gateway.grammars.rules import Rule, choice, json_rule, text_rule, token_rule
from gateway.grammars.schema_document import Schema, SchemaDocument
from gateway.tools import Tool, ToolUse
from services.text import TextTables

ANY_OBJECT: dict[str, Any] = {"type": "object"}
# keywords of JSON Schema that combine schemas of one value
COMBINING = frozenset({"allOf", "if", "patternProperties", "not", "dependentSchemas", "unevaluatedProperties"})
TEXT = r"/(.|\n)*/"  # ordinary tokens; a grammar that allows text only does not allow special tokens
NO_THINKING = r" & ~/\s*<think>(.|\n)*/"


@dataclass(frozen=True, slots=True)
class Syntax:
    """How a family writes calls: `begin` and `end` are marks, which may be special tokens; `before` and `after` is the
    text between them and the call. Empty `begin`: a call is the whole answer.

    `listed`: the marks enclose a list of calls; otherwise each call has marks of its own. `separator`: between calls of
    a list, or between `end` and `begin`. `single`: an answer has one call at most.
    """

    begin: str = ""
    before: str = ""
    after: str = ""
    end: str = ""
    listed: bool = False
    separator: str = ""
    single: bool = False
    arguments: str = "arguments"  # the name of the member with the arguments

    @property
    def marks(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.begin, self.end)))


SYNTAXES = {  # by the name of the parser that reads them
    "hermes": Syntax("<tool_call>", "\n", "\n", "</tool_call>", separator="\n"),
    "llama3_json": Syntax(single=True, arguments="parameters"),
    "mistral": Syntax("[TOOL_CALLS]", " [", "]", listed=True, separator=", "),
    "smollm2": Syntax("<tool_call>", "[", "]", "</tool_call>", listed=True, separator=", "),
}


def tool_rule(use: ToolUse, family: str, tables: TextTables, answer: Rule | None, thinks: bool = False) -> Rule | None:
    """The rule of an answer with the tools of a request; None if any text may follow. `answer`: the rule of an answer
    without calls, if the request has one. `family`: the parser that reads the calls. `thinks`: the output may begin
    with thinking, which is not part of the rule: free text does not begin like it, so that a mark within the thinking
    does not begin a call.

    Calls follow the schemas of their tools, without properties that these do not name, where calls are required or the
    tool is strict; otherwise the arguments are any object."""
    if not use.calls:
        return answer
    syntax = SYNTAXES[family]
    if use.required:
        return _calls(syntax, use, tables)
    if answer is not None:
        return choice([_calls(syntax, use, tables), answer])
    return _text_or_calls(syntax, use, tables, thinks) if use.constrains else None


def closed(schema: Schema) -> Schema:
    """Return `schema` without properties that its objects do not name. `additionalProperties` keeps its meaning.

    A model writes properties of its own where it may, which a function does not accept. A schema that combines others
    (`allOf`, `if`, ...) stays as it is, since what one part does not name, another part may. So does an object that
    requires a property without naming it. Raises GrammarError for a reference to nothing.
    """
    document = SchemaDocument(schema)
    if any(not COMBINING.isdisjoint(each) for _, each in document.places.values()):
        return schema
    return document.rewritten(_close)


def _close(schema: Schema, copy: Schema) -> None:
    properties, required = schema.get("properties"), schema.get("required", [])
    if isinstance(properties, dict) and isinstance(required, list) and "$ref" not in schema:
        names = list(properties)
        if all(name in names for name in required):
            copy.setdefault("additionalProperties", False)


def _calls(syntax: Syntax, use: ToolUse, tables: TextTables) -> Rule:
    """One or more calls, and nothing else."""
    mark = token_rule(syntax.begin, tables).expression if syntax.begin else ""
    lines = [f"start: {mark} after_mark", *_after_mark(syntax, use, tables)]
    return Rule("@calls", (("calls", "\n".join(lines)),))


def _text_or_calls(syntax: Syntax, use: ToolUse, tables: TextTables, thinks: bool) -> Rule:
    """Free text, and calls after it. What follows the mark of a call is a call."""
    rest, limit = _after_mark(syntax, use, tables), NO_THINKING if thinks else ""
    if not syntax.begin:  # text that does not begin like a call
        lines = ["start: after_mark | OTHER", r"OTHER: /(\s*[^\s{](.|\n)*)?/" + limit]
    elif tables.special_id(syntax.begin) is not None:  # not part of text
        mark = token_rule(syntax.begin, tables).expression
        lines = [f"start: TEXT | TEXT {mark} after_mark", f"TEXT: {TEXT}{limit}"]
    else:  # lazy: the first mark begins calls
        lines = ["start: TEXT | begun after_mark", f"begun[lazy]: TEXT {_text(syntax.begin)}", f"TEXT: {TEXT}{limit}"]
    return Rule("@calls", (("calls", "\n".join([*lines, *rest])),))


def _after_mark(syntax: Syntax, use: ToolUse, tables: TextTables) -> list[str]:
    """The rules of what follows the first mark: `after_mark`, `call` and one for each tool."""
    before, after, separator = (_text(text) for text in (syntax.before, syntax.after, syntax.separator))
    begin, end = (token_rule(mark, tables).expression if mark else "" for mark in (syntax.begin, syntax.end))
    between = separator if syntax.listed else f"{after} {end} {separator} {begin} {before}"
    more = 0 if syntax.single else use.max_calls - 1
    repeated = f"({between} call){{0,{more}}}" if more else ""
    tools = use.callable
    return [
        f"after_mark: {before} call {repeated} {after} {end}",
        f"call: {' | '.join(f'call_{i}' for i in range(len(tools)))}",
        *(f"call_{i}: {_call(syntax, tool, use.required)}" for i, tool in enumerate(tools)),
    ]


def _call(syntax: Syntax, tool: Tool, by_schema: bool) -> str:
    arguments = json_rule(closed(tool.schema) if by_schema or tool.strict else ANY_OBJECT).expression
    # the same pieces as in the library's JSON, whose lexer takes the longest: calls and other JSON can be alternatives
    pieces = ("{", '"name"', ": ", json.dumps(tool.name), ", ", json.dumps(syntax.arguments), ": ")
    return f"{' '.join(map(_text, pieces))} {arguments} {_text('}')}"


def _text(text: str) -> str:
    return text_rule(text).expression if text else ""
