"""Rules of single calls, made of the description of a family's format that its parser reads, too."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from gateway.answer.parameter_types import NAMES, parameters_of, referred
from gateway.answer.parsers.call_format import (
    CALL_ID,
    INDEX,
    IS_STRING,
    KEY,
    NAME,
    VALUE,
    CallFormat,
    Dialect,
    JsonObject,
    Literals,
    NamedJson,
    Xml,
)
from gateway.grammars.anchors import whole
from gateway.grammars.rules import ANY_TEXT, json_rule, regex_rule, text_rule, texts_rule
from gateway.grammars.schema_document import Schema
from gateway.tools import Tool
from services.errors import GrammarError
from services.text import TextTables

ANY_OBJECT: dict[str, Any] = {"type": "object"}
MOST_FREE = 64  # parameters that no schema names
DEEPEST = 16  # schemas within each other
# keywords that restrict a value in a way that cannot be written in tags or literals
UNWRITTEN = ("allOf", "not", "if", "patternProperties", "dependentSchemas", "unevaluatedProperties", "multipleOf")


class CallRules:
    """Lark rules of the calls of some tools in one format."""

    def __init__(self, form: CallFormat, tables: TextTables) -> None:
        self.form = form
        self._tables = tables
        self._rules: list[str] = []

    def of(self, tools: Iterable[tuple[Tool, Schema | None]]) -> list[str]:
        """The rule `call` and those that it needs. Each tool comes with the schema of its arguments; None: they are any
        object. Raises GrammarError for a schema that the format cannot follow."""
        names = []
        for number, (tool, schema) in enumerate(tools):
            names.append(f"call_{number}")
            self._rules.append(f"call_{number}: {self._call(tool.name, schema, f'c{number}')}")
        return [f"call: {' | '.join(names)}", *self._rules]

    def text(self, text: str) -> str:
        """The expression of exactly `text`, in which marks that are special tokens are these."""
        return texts_rule(text, self.form.marks, self._tables).expression

    def special(self, mark: str) -> bool:
        """Whether `mark` has special tokens in it."""
        return any(self._tables.special_id(piece) is not None for piece in self.form.marks if piece in mark)

    def _call(self, name: str, schema: Schema | None, prefix: str) -> str:
        call = self.form.call
        match call:
            case JsonObject():
                return self._object(call, name, schema)
            case NamedJson():
                arguments = json_rule(ANY_OBJECT if schema is None else schema).expression
                return f"{self._with_name(call.head, name)} {arguments} {self.text(call.close)}"
            case Xml():
                parameters = XmlRules(self, call, self.form, prefix).parameters(schema)
                return f"{self._with_name(call.call, name)} {parameters} {self.text(call.close)}"
            case Literals():
                arguments = LiteralRules(self, call.dialect, prefix).arguments(schema, call.equals)
                return f"{self.text(call.opening + name + call.begin)} {arguments} {self.text(call.end)}"

    def _object(self, call: JsonObject, name: str, schema: Schema | None) -> str:
        arguments = json_rule(ANY_OBJECT if schema is None else schema).expression
        # the same pieces as in the library's JSON, whose lexer takes the longest: calls and other JSON can be
        # alternatives
        lead = self._with_name(call.lead, name) if call.lead else ""
        named = (json.dumps(call.name), ": ", json.dumps(name), ", ", json.dumps(call.arguments), ": ")
        pieces = named if call.name else (json.dumps(name), ": ")
        return f"{self.text('{')} {lead} {' '.join(map(self.text, pieces))} {arguments} {self.text('}')}"

    def _with_name(self, text: str, name: str) -> str:
        """A text of the format with a name in it."""
        written = {NAME: self.text(name), INDEX: "/[0-9]{1,3}/"}
        written[CALL_ID] = f"({self.text('[CALL_ID]')} /[A-Za-z0-9]{{9}}/)?" if CALL_ID in text else ""
        return " ".join(written[p] if p in written else self.text(p) for p in re.split(r"(\{\w+\})", text) if p)

    def add(self, rule: str) -> None:
        self._rules.append(rule)

    def until(self, name: str, pattern: str, mark: str) -> str:
        """The expression of a text of `pattern` (a regular expression, or terms of them) that `mark` ends: the first
        one. `mark` may have whitespace around it, which belongs to it."""
        self.add(f"{name.upper()}_TEXT: {pattern}")
        space = mark[: len(mark) - len(mark.lstrip())]
        bare = mark.strip()
        rest = self.text(mark[len(space) + len(bare) :])
        if self._tables.special_id(bare) is None:
            self.add(f"{name}[lazy]: {name.upper()}_TEXT {text_rule(space + bare).expression}")
            return f"{name} {rest}"
        padded = f"{name.upper()}_TEXT"
        if space:
            padded = f"{name.upper()}_PADDED"
            self.add(f"{padded}: {name.upper()}_TEXT {text_rule(space).expression}")
        return f"{padded} {self.text(bare)} {rest}"


class XmlRules:
    """The parameters of one call between tags, in the order of its schema."""

    def __init__(self, rules: CallRules, call: Xml, form: CallFormat, prefix: str) -> None:
        self._rules = rules
        self._call = call
        self._prefix = prefix
        ends = (call.after_value.strip(), call.before_key, call.close.strip() or form.end)
        self._outside = " & ".join(f"~/(.|\\n)*{escaped(end)}(.|\\n)*/" for end in ends if end)
        self._number = 0

    def parameters(self, schema: Schema | None) -> str:
        """The expression of all parameters; `schema`: of the arguments. A value that must not be a string is JSON of
        its schema. A string is any text without the tags that end it, within `enum`, `const`, `minLength`, `maxLength`
        and `pattern`; other keywords of strings are not followed. Raises GrammarError."""
        if schema is None:
            return self._free()
        properties = parameters_of(schema)
        _check_written(schema)
        required = schema.get("required", [])
        made = []
        for key, each in properties.items():
            alternatives = " | ".join(self._parameter(key, branch) for branch in branches(each, schema))
            made.append(f"({alternatives})" + ("" if key in required else "?"))
        if not properties and schema.get("additionalProperties", True) is not False:
            return self._free()
        return " ".join(made)

    def _parameter(self, key: str, schema: Schema) -> str:
        self._number += 1
        name, string = f"{self._prefix}_p{self._number}", types_in(schema) <= {"string"}
        begin = self._begin(self._rules.text(key) if key else f"/{KEY_PATTERN}/", string)
        if not string:
            return f"{begin} {json_rule(schema).expression} {self._rules.text(self._call.after_value)}"
        if (values := values_of(schema)) is not None:
            texts = " | ".join(self._rules.text(str(value)) if value else '""' for value in values)
            return f"{begin} ({texts}) {self._rules.text(self._call.after_value)}"
        return (
            f"{begin} {self._rules.until(name, f'{string_pattern(schema)} & {self._outside}', self._call.after_value)}"
        )

    def _begin(self, key: str, string: bool) -> str:
        """What is before a value. `key`: an expression."""
        written = {KEY: key, IS_STRING: self._rules.text("true" if string else "false")}
        tag = self._call.parameter.partition(VALUE)[0]
        return " ".join(written.get(p) or self._rules.text(p) for p in re.split(r"(\{\w+\})", tag) if p)

    def _free(self) -> str:
        """Any parameters."""
        return f"({self._parameter('', {'type': 'string'})}){{0,{MOST_FREE}}}"


KEY_PATTERN = r"[A-Za-z0-9_.-]{1,64}"


class LiteralRules:
    """Values in the literals of a language, and the arguments of one call."""

    def __init__(self, rules: CallRules, dialect: Dialect, prefix: str) -> None:
        self._rules = rules
        self._dialect = dialect
        self._prefix = prefix
        self._number = 0
        self._known: dict[str, str] = {}  # the rule of each schema, by its JSON: schemas may refer to themselves

    def arguments(self, schema: Schema | None, equals: str) -> str:
        """The expression of all arguments. Raises GrammarError for a schema that cannot be followed."""
        root = ANY_OBJECT if schema is None else schema
        return self._members(root, root, equals, bare=True, depth=0)

    def _name(self) -> str:
        self._number += 1
        return f"{self._prefix}_v{self._number}"

    def _value(self, schema: Any, root: Schema, depth: int) -> str:
        """The expression of a value of `schema`."""
        if depth > DEEPEST:
            raise GrammarError(f"the schema has more than {DEEPEST} levels, which calls of this model cannot follow")
        if schema is False:
            raise GrammarError("a schema that no value fits is not supported in calls of this model")
        found = [self._branch(each, root, depth) for each in branches(schema if isinstance(schema, dict) else {}, root)]
        return f"({' | '.join(found)})"

    def _branch(self, schema: Schema, root: Schema, depth: int) -> str:
        _check_written(schema)
        if (values := values_of(schema)) is not None:
            return " | ".join(self._rules.text(written(value, self._dialect)) for value in values)
        kinds = types_in(schema) or frozenset(NAMES)
        key = json.dumps(schema)
        if key in self._known:
            return self._known[key]
        name = self._known[key] = self._name()
        self._rules.add(f"{name}: {' | '.join(self._of_type(kind, schema, root, depth) for kind in sorted(kinds))}")
        return name

    def _of_type(self, kind: str, schema: Schema, root: Schema, depth: int) -> str:
        write, language = self._rules.text, self._dialect
        match kind:
            case "null":
                return write(language.null)
            case "boolean":
                return f"({write(language.true)} | {write(language.false)})"
            case "array":
                return self._array(schema, root, depth)
            case "object":
                members = self._members(schema, root, language.colon, language.bare_keys, depth)
                return f"{write('{')} {members} {write('}')}"
            case "string" if not language.escapes:
                quote = language.quotes[0]
                outside = f"~/(.|\\n)*{escaped(quote)}(.|\\n)*/"
                return (
                    f"{write(quote)} {self._rules.until(self._name(), f'{string_pattern(schema)} & {outside}', quote)}"
                )
        kept = {key: value for key, value in schema.items() if key not in ("anyOf", "oneOf", "$ref")}
        return json_rule(kept | {"type": kind}).expression

    def _array(self, schema: Schema, root: Schema, depth: int) -> str:
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        item = self._value(schema.get("items", {}), root, depth + 1) if depth < DEEPEST // 4 else self._scalar(root)
        write, comma = self._rules.text, self._rules.text(self._dialect.comma)
        if most == 0:
            return write("[]")
        more = f"({comma} {item}){{{max(0, least - 1)},{'' if most is None else most - 1}}}"
        return f"{write('[')} {f'{item} {more}' if least else f'({item} {more})?'} {write(']')}"

    def _scalar(self, root: Schema) -> str:
        return self._value({"type": ["string", "number", "boolean", "null"]}, root, DEEPEST)

    def _members(self, schema: Schema, root: Schema, colon: str, bare: bool, depth: int) -> str:
        """What is within the brackets of an object."""
        _check_written(schema)
        properties, comma = parameters_of(schema), self._rules.text(self._dialect.comma)
        if not properties:
            if schema.get("additionalProperties", True) is False:
                return ""
            key = f"/{KEY_PATTERN}/" if bare else json_rule({"type": "string"}).expression
            item = f"{key} {self._rules.text(colon)} {self._scalar(root)}"
            return f"({item} ({comma} {item}){{0,{MOST_FREE}}})?"
        return self._sequence(properties, schema, root, colon, bare, depth)

    def _sequence(
        self, properties: Mapping[str, Any], schema: Schema, root: Schema, colon: str, bare: bool, depth: int
    ) -> str:
        """Named members in order, of which some may be missing, with commas between them."""
        name, comma, required = self._name(), self._rules.text(self._dialect.comma), schema.get("required", [])
        items = []
        for key, each in properties.items():
            written_key = key if bare else json.dumps(key, ensure_ascii=False)
            items.append(
                (f"{self._rules.text(written_key + colon)} {self._value(each, root, depth + 1)}", key in required)
            )
        self._rules.add(f'{name}_first_{len(items)}: ""')
        self._rules.add(f'{name}_rest_{len(items)}: ""')
        for place, (item, needed) in enumerate(items):
            first, rest = f"{name}_first_{place + 1}", f"{name}_rest_{place + 1}"
            self._rules.add(f"{name}_first_{place}: {item} {rest}" + ("" if needed else f" | {first}"))
            self._rules.add(f"{name}_rest_{place}: {comma} {item} {rest}" + ("" if needed else f" | {rest}"))
        return f"{name}_first_0"


def branches(schema: Any, root: Schema, depth: int = DEEPEST) -> list[Schema]:
    """The alternatives of a schema, each of one type where types are given, with what they refer to. The definitions of
    `root` come with them."""
    if not isinstance(schema, dict):
        return [{}]
    if depth == 0:
        raise GrammarError("references that go on for ever are not supported in calls of this model")
    if "$ref" in schema:
        found = referred(root, schema["$ref"])
        if found is None:
            raise GrammarError(f"'$ref': {str(schema['$ref'])[:100]!r} does not refer to a place in the schema")
        return branches(found, root, depth - 1)
    for keyword in ("anyOf", "oneOf"):
        if isinstance(schema.get(keyword), list):
            return [branch for each in schema[keyword] for branch in branches(each, root, depth - 1)]
    kinds = schema.get("type")
    if isinstance(kinds, list):
        return [branch for kind in kinds for branch in branches(schema | {"type": kind}, root, depth - 1)]
    definitions: Schema = {name: root[name] for name in ("$defs", "definitions") if name in root}
    return [definitions | schema if definitions and kinds in ("object", "array", None) else schema]


def types_in(schema: Schema) -> frozenset[str]:
    """The types that the values of a branch may have; empty: any."""
    if "type" in schema:
        return frozenset([str(schema["type"])])
    values = values_of(schema)
    if values is not None and all(isinstance(value, str) for value in values):
        return frozenset(["string"])
    if "properties" in schema:
        return frozenset(["object"])
    return frozenset() if values is None else frozenset(["any"])


def values_of(schema: Schema) -> list[Any] | None:
    """The values that a schema lists; None if it lists none."""
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) and values else None


def string_pattern(schema: Schema) -> str:
    """The texts of a string, as terms of a regular expression. Raises GrammarError as `whole` does."""
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    terms = [f"/(.|\\n){{{least},{most}}}/" if least or most != "" else ANY_TEXT]
    if isinstance(pattern := schema.get("pattern"), str):
        terms.append(regex_rule(whole(pattern)).expression)
    return " & ".join(terms)


def written(value: Any, dialect: Dialect) -> str:
    """`value` in the literals of a language."""
    if value is None or isinstance(value, bool):
        return dialect.null if value is None else dialect.true if value else dialect.false
    if isinstance(value, str):
        return (
            json.dumps(value, ensure_ascii=False)
            if dialect.escapes
            else f"{dialect.quotes[0]}{value}{dialect.quotes[0]}"
        )
    if isinstance(value, list):
        return f"[{dialect.comma.join(written(each, dialect) for each in value)}]"
    if isinstance(value, dict):
        keys = [key if dialect.bare_keys else json.dumps(key, ensure_ascii=False) for key in value]
        items = [f"{k}{dialect.colon}{written(v, dialect)}" for k, v in zip(keys, value.values(), strict=True)]
        return f"{{{dialect.comma.join(items)}}}"
    return json.dumps(value)


def _check_written(schema: Mapping[str, Any]) -> None:
    for keyword in UNWRITTEN:
        if keyword in schema:
            raise GrammarError(f"'{keyword}' is not supported in calls of this model, which are not JSON")


def escaped(text: str) -> str:
    """`text` as a regular expression between slashes."""
    return re.escape(text).replace("/", "\\/").replace('\\"', '"').replace("\\<", "<")
