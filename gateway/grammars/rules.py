"""Rules: pieces of grammars in llguidance's Lark, from which the grammar of a whole output is put together.

The reasoning of a model is free, and the answer after it is constrained (`with_reasoning`)."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gateway.answer.parsers.thinking import ReasoningFormat
from gateway.grammars.schema_checks import check_schema
from gateway.grammars.schema_document import Schema, SchemaDocument
from services.errors import GrammarError
from services.grammar.compiler import LONGEST
from services.text import TextTables

ANY_TEXT = r"/(.|\n)*/"  # of ordinary tokens
MAX_SPACE = 8  # characters between the thinking and the answer
# JSON has no whitespace but the spaces that models put after a comma and a colon. Otherwise a model could go on with
# whitespace for ever.
JSON_OPTIONS = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# values of `format` that the library enforces; JSON Schema has others as annotations
FORMATS = frozenset(["date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"])


@dataclass(frozen=True, slots=True)
class Rule:
    """An expression of Lark, and the grammars that it refers to as `@name`: (name, Lark)."""

    expression: str
    grammars: tuple[tuple[str, str], ...] = ()

    def grammar(self) -> str:
        """The grammar of an output that is one text of this rule, as `SamplingParams.grammar` has it."""
        lark = f"%llguidance {{}}\nstart: {self.expression}\n"
        if not self.grammars:
            return lark
        named = [{"name": name, "lark_grammar": text} for name, text in dict(self.grammars).items()]
        return json.dumps({"grammars": [{"name": "output", "lark_grammar": lark}, *named]})


def json_rule(schema: dict[str, Any] | bool) -> Rule:
    """The JSON texts that are valid by `schema`. Raises GrammarError for one that would be followed wrongly."""
    if schema is False:
        return Rule("%json false")
    if (size := len(json.dumps(schema))) > LONGEST:
        raise GrammarError(f"the schema has {size:,} bytes; at most {LONGEST:,} are supported")
    document = SchemaDocument(schema if isinstance(schema, dict) else {})
    check_schema(document)
    made = document.rewritten(lambda schema, copy: _compilable(document, schema, copy))
    return Rule("%json " + json.dumps(made | {"x-guidance": JSON_OPTIONS}))


def _compilable(document: SchemaDocument, schema: Schema, copy: Schema) -> None:
    """Write what the library refuses, although it has a meaning: references that are no URIs, and formats that are
    annotations."""
    if (ref := document.ref_of(schema)) is not None:
        copy["$ref"] = ref
    if isinstance(copy.get("format"), str) and copy["format"] not in FORMATS:
        del copy["format"]


def text_rule(text: str) -> Rule:
    """Exactly `text`, of ordinary tokens."""
    return Rule(json.dumps(text))


def token_rule(text: str, tables: TextTables) -> Rule:
    """Exactly `text`: a special token if there is one that is spelled like this, otherwise ordinary tokens."""
    special = tables.special_id(text)
    return text_rule(text) if special is None else Rule(f"<[{special}]>")


def texts_rule(text: str, marks: Sequence[str], tables: TextTables) -> Rule:
    """Exactly `text`, in which those of `marks` that are spelled like special tokens are these."""
    special = [mark for mark in marks if tables.special_id(mark) is not None]
    pieces = re.split(f"({'|'.join(map(re.escape, special))})", text) if special else [text]
    return Rule(" ".join(token_rule(piece, tables).expression for piece in pieces if piece))


def regex_rule(pattern: str) -> Rule:
    """The texts that match the whole of `pattern`, in the syntax of Rust's regex crate."""
    if not pattern:
        return text_rule("")
    # an unescaped slash would end the expression
    escaped = re.sub(r"\\.|/", lambda found: "\\/" if found[0].endswith("/") else found[0], pattern, flags=re.DOTALL)
    return Rule(f"/{escaped}/")


def sequence(*rules: Rule) -> Rule:
    """The texts of the rules, one after another."""
    return _joined(" ", rules)


def choice(rules: Sequence[Rule]) -> Rule:
    """A text of any of the rules."""
    return _joined(" | ", rules)


def repeated(rule: Rule, operator: str = "*") -> Rule:
    """The texts of a rule one after another. `operator`: `*`, `+`, `?` or `{m,n}`."""
    return Rule(f"({rule.expression}){operator}", rule.grammars)


def _joined(separator: str, rules: Sequence[Rule]) -> Rule:
    expression = separator.join(rule.expression for rule in rules)
    return Rule(f"({expression})", tuple(grammar for rule in rules for grammar in rule.grammars))


def with_reasoning(rule: Rule, tables: TextTables, opened: bool, form: ReasoningFormat) -> Rule:
    """The texts of `rule` after free thinking, which ends with the mark of `form`. `opened`: the prompt ends inside the
    thinking. Otherwise the output may begin with thinking, or have none. For a prompt that ends after the thinking,
    `rule` itself is the rule. Marks around the answer may be there or not.

    The thinking contains no special tokens but its marks, if these are special."""
    marks = form.marks
    if form.answer_begin:
        rule = sequence(
            repeated(texts_rule(form.answer_begin, marks, tables), "?"),
            rule,
            repeated(texts_rule(form.answer_end, marks, tables), "?"),
        )
    thinking = _thinking(tables, form.end)
    if opened:
        return sequence(thinking, rule)
    return sequence(repeated(sequence(mark_rule(form.begin, tables), thinking), "?"), rule)


def mark_rule(mark: str, tables: TextTables) -> Rule:
    """A mark, which may begin or end with a special token."""
    return texts_rule(mark, re.findall(r"<[^<>]*>|\[[^\[\]]*\]", mark), tables)


def _thinking(tables: TextTables, end: str) -> Rule:
    mark = mark_rule(end, tables)
    space = f"/\\s{{0,{MAX_SPACE}}}/"
    if mark != text_rule(end):
        lines = [f"start: TEXT {mark.expression} {space}", f"TEXT: {ANY_TEXT}"]
    else:  # lazy: the first `end` ends it
        lines = [f"start: thinking {space}", f"thinking[lazy]: TEXT {mark.expression}", f"TEXT: {ANY_TEXT}"]
    return Rule("@thinking", (("thinking", "\n".join(lines)),))
