"""CallFormat: how a family of models writes calls of tools, from which both the parser and the grammar are made.

All formats are marks around calls of one of four kinds: a JSON object with the name and the arguments, a name between
marks and JSON after it, parameters between XML tags, and literals of a language as `name(key=value)`. Texts in a format
are as chat templates write them, whitespace included. A parser accepts other whitespace beside marks, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

NAME, INDEX, CALL_ID, KEY, VALUE, IS_STRING = "{name}", "{index}", "{call_id}", "{key}", "{value}", "{is_string}"


@dataclass(frozen=True, slots=True)
class JsonObject:
    """`{"name": NAME, "arguments": {...}}`, or without a `name` `{NAME: {...}}`. `lead`: members before the name, as a
    grammar writes them; a parser ignores members that it does not know."""

    name: str = "name"
    arguments: str = "arguments"
    lead: str = ""
    opening = ""


@dataclass(frozen=True, slots=True)
class NamedJson:
    """The name of the tool, then the arguments as JSON.

    `head` is the text from the mark of a call to its arguments, with `{name}`, and perhaps `{index}` (the number of the
    call) and `{call_id}` (`[CALL_ID]` and an id, or nothing). `opening`: the mark that begins each call, if there is
    one. `ready`: the mark that says that the name is complete. `close`: text after the arguments.
    """

    head: str
    ready: str
    opening: str = ""
    close: str = ""


@dataclass(frozen=True, slots=True)
class Xml:
    """Parameters between tags. `call` has `{name}`; `parameter` has `{key}`, `{value}` and perhaps `{is_string}`;
    `close` ends the call, if it has an end of its own."""

    call: str
    parameter: str
    close: str = ""

    @property
    def opening(self) -> str:
        return self.call.partition(NAME)[0]

    @property
    def after_name(self) -> str:
        """What ends the name; empty if any whitespace or tag does."""
        return self.call.partition(NAME)[2].strip()

    @property
    def before_key(self) -> str:
        return self.parameter.partition(KEY)[0]

    @property
    def before_value(self) -> str:
        return self.parameter.partition(KEY)[2].partition(VALUE)[0]

    @property
    def after_value(self) -> str:
        return self.parameter.partition(VALUE)[2]

    @property
    def padding(self) -> str:
        """Whitespace on both sides of a value, which is not part of it."""
        after = self.after_value
        return after[: len(after) - len(after.lstrip())]


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a language writes the values of JSON.

    `quotes`: the marks around strings, longer ones first. `escapes`: strings have escapes, and a grammar writes them as
    JSON does. `bare_keys`: keys of objects have no quotes. `true`, `false`, `null`: as a grammar writes them; parsers
    read those of JSON and of Python.
    """

    quotes: tuple[str, ...]
    escapes: bool
    bare_keys: bool
    colon: str
    comma: str
    true: str
    false: str
    null: str


PYTHON = Dialect(("'''", '"""', '"', "'"), True, False, ": ", ", ", "True", "False", "None")
PYTHON_JSON = Dialect(PYTHON.quotes, True, False, ": ", ", ", "true", "false", "null")
GEMMA = Dialect(('<|"|>',), False, True, ":", ",", "true", "false", "null")


@dataclass(frozen=True, slots=True)
class Literals:
    """`name(key=value, ...)`: what is before the name, around the arguments, and between a key and its value."""

    dialect: Dialect
    opening: str = ""
    begin: str = "("
    equals: str = "="
    end: str = ")"


CallKind = JsonObject | NamedJson | Xml | Literals


@dataclass(frozen=True)
class CallFormat:
    """`begin` and `end` are marks, which may be special tokens; `before` and `after` is the text between them and the
    calls. Empty `begin`: an answer with calls has nothing but calls.

    `listed`: the marks enclose all calls; otherwise each call has marks of its own. `separator`: between calls of a
    list, or between `end` and `begin`. `single`: an answer has one call at most. `bare`: the character with which calls
    may begin an answer without `begin`. `needs_arguments`: an object without arguments is not a call. `also_begin`,
    `also_end`: marks that models write around bare calls. `also`: another kind of calls that the parser reads.
    `begins_bare`: models leave out `begin` at times, so that the `opening` of a call begins it, too.
    """

    call: CallKind
    begin: str = ""
    before: str = ""
    after: str = ""
    end: str = ""
    listed: bool = False
    separator: str = ""
    single: bool = False
    bare: str = ""
    needs_arguments: bool = False
    also_begin: str = ""
    also_end: str = ""
    also: CallKind | None = None
    begins_bare: bool = False

    @property
    def begins(self) -> str:
        """The mark before calls that a parser looks for."""
        return self.begin or self.also_begin

    @property
    def opening(self) -> str:
        """The mark of a call that counts without `begin`."""
        return self.call.opening if self.begins_bare else ""

    @property
    def ends(self) -> str:
        return self.end or self.also_end

    @cached_property
    def marks(self) -> tuple[str, ...]:
        """All marks of the format, which may be special tokens."""
        texts = [*_pieces(self.begins), *_pieces(self.ends)]
        for call in (self.call, self.also):
            match call:
                case NamedJson():
                    texts += [*_pieces(call.head), *_pieces(call.close)]
                    texts += ["[CALL_ID]"] if CALL_ID in call.head else []
                case Xml():
                    texts += [*_pieces(call.call), *_pieces(call.parameter), *_pieces(call.close)]
                case Literals():
                    texts += call.dialect.quotes if not call.dialect.escapes else ()
        return tuple(dict.fromkeys(texts))


def _pieces(text: str) -> list[str]:
    """The tags in a text of a format: `<...>` and `[...]`, without placeholders."""
    made, start = [], -1
    for place, c in enumerate(text):
        if c in "<[":
            start = place
        elif c in ">]" and start >= 0:
            made.append(text[start : place + 1])
            start = -1
    return [piece for piece in made if "{" not in piece]
