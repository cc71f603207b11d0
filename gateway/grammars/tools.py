"""Tools: the rules of calls, in the syntax of each family, as its chat template writes them in the history."""

from __future__ import annotations

from gateway.answer.parsers.formats import CALL_FORMATS
from gateway.answer.parsers.thinking import ReasoningFormat
from gateway.grammars.call_rules import CallRules, escaped
from gateway.grammars.rules import ANY_TEXT, Rule, choice, text_rule
from gateway.grammars.schema_document import Schema, SchemaDocument
from gateway.tools import ToolUse
from services.text import TextTables

# keywords of JSON Schema that combine schemas of one value
COMBINING = frozenset({"allOf", "if", "patternProperties", "not", "dependentSchemas", "unevaluatedProperties"})


def tool_rule(
    use: ToolUse, family: str, tables: TextTables, answer: Rule | None, thinks: ReasoningFormat | None = None
) -> Rule | None:
    """The rule of an answer with the tools of a request; None if any text may follow. `answer`: the rule of an answer
    without calls, if the request has one. `family`: the parser that reads the calls. `thinks`: the output may begin
    with thinking in this format, which is not part of the rule: free text does not begin like it, so that a mark within
    the thinking does not begin a call.

    Calls follow the schemas of their tools, without properties that these do not name, where calls are required or the
    tool is strict; otherwise the arguments are any object."""
    if not use.calls:
        return answer
    rules = CallRules(CALL_FORMATS[family], tables)
    if use.required:
        return _calls(rules, use)
    if answer is not None:
        return choice([_calls(rules, use), answer])
    return _text_or_calls(rules, use, thinks) if use.constrains else None


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


def _calls(rules: CallRules, use: ToolUse) -> Rule:
    """One or more calls, and nothing else."""
    lines = [f"start: {rules.text(rules.form.begin)} after_mark", *_after_mark(rules, use)]
    return Rule("@calls", (("calls", "\n".join(lines)),))


def _text_or_calls(rules: CallRules, use: ToolUse, form: ReasoningFormat | None) -> Rule:
    """Free text, and calls after it. What follows the mark of a call is a call. `form`: the marks of the reasoning,
    with which the text must not begin."""
    mark, limit = rules.form.begin, f" & ~/\\s*{escaped(form.begin)}(.|\\n)*/" if form else ""
    if rules.form.opening:  # which begins a call without the mark
        limit += f" & ~/(.|\\n)*{escaped(rules.form.opening)}(.|\\n)*/"
    if not mark:  # text that does not begin like a call
        lines = ["start: after_mark | OTHER", rf"OTHER: /(\s*[^\s{escaped(rules.form.bare)}](.|\n)*)?/" + limit]
    elif rules.special(mark):  # not part of text
        lines = [f"start: TEXT | TEXT {rules.text(mark)} after_mark", f"TEXT: {ANY_TEXT}{limit}"]
    else:  # lazy: the first mark begins calls
        lines = [
            "start: TEXT | begun after_mark",
            f"begun[lazy]: TEXT {text_rule(mark).expression}",
            f"TEXT: {ANY_TEXT}{limit}",
        ]
    return Rule("@calls", (("calls", "\n".join([*lines, *_after_mark(rules, use)])),))


def _after_mark(rules: CallRules, use: ToolUse) -> list[str]:
    """The rules of what follows the first mark: `after_mark`, `call` and those of each tool."""
    form, write = rules.form, rules.text
    # pieces of their own: the lexer takes the longest text, which could go on where calls end
    pieces = [form.separator] if form.listed else [form.after, form.end, form.separator, form.begin, form.before]
    between = " ".join(write(piece) for piece in pieces if piece)
    more = 0 if form.single else use.max_calls - 1
    repeated = f"({between} call){{0,{more}}}" if more else ""
    by_schema = [(tool, closed(tool.schema) if use.required or tool.strict else None) for tool in use.callable]
    return [
        f"after_mark: {write(form.before)} call {repeated} {write(form.after)} {write(form.end)}",
        *rules.of(by_schema),
    ]
