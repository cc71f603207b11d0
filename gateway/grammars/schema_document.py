"""SchemaDocument: a JSON Schema with the places of the schemas in it, and what its references refer to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, unquote, urljoin

from services.errors import GrammarError

# keywords of JSON Schema by what they have: a schema, a list of schemas, schemas by name
WITH_SCHEMA = frozenset({"items", "additionalItems", "unevaluatedItems", "contains", "not", "if", "then", "else"})
WITH_SCHEMA |= {"additionalProperties", "unevaluatedProperties", "propertyNames"}
WITH_LIST = frozenset({"items", "prefixItems", "allOf", "anyOf", "oneOf"})
WITH_NAMES = frozenset({"properties", "patternProperties", "dependentSchemas"})
MOST_DIGITS = 10  # of an index

Schema = dict[str, Any]


class SchemaDocument:
    """The schemas that documents are compared with: `root`, those in it, and those that they refer to, wherever these
    are. A schema that is a boolean is left out.

    `places`: each schema and its place, such as `#/properties/a`, by the schema's `id()`. `targets`: what the `$ref` of
    a schema refers to, by the schema's `id()`.
    """

    def __init__(self, root: Schema) -> None:
        """Raises GrammarError for a reference to a place that the schema does not have."""
        self._root = root
        self._bases: dict[int, str] = {}  # the URI that references of an object are relative to
        self._named: dict[str, Any] = {"": root}  # by URI
        self._written: dict[int, str] = {}  # references to places, as URIs
        self.places: dict[int, tuple[str, Schema]] = {}
        self.targets: dict[int, Any] = {}
        self._keyword_id = "id" if "draft-04" in str(root.get("$schema", "")) else "$id"
        self._index(root, "")
        self._walk()

    def rewritten(self, change: Callable[[Schema, Schema], None]) -> Schema:
        """A copy of the document. `change(schema, copy)` changes the copy of each schema."""

        def copied(value: Any) -> Any:
            if isinstance(value, list):
                return [copied(each) for each in value]
            if not isinstance(value, dict):
                return value
            made = {name: copied(each) for name, each in value.items()}
            if id(value) in self.places:
                change(value, made)
            return made

        made: Schema = copied(self._root)
        return made

    def ref_of(self, schema: Schema) -> str | None:
        """The reference of a schema to a place, as a URI reference: clients write names with spaces and umlauts, too.
        None if it has another one, or none."""
        return self._written.get(id(schema))

    def _index(self, value: Any, base: str) -> None:
        """Note the names that schemas give themselves."""
        if isinstance(value, dict):
            own = value.get(self._keyword_id)
            if isinstance(own, str) and not own.startswith("#"):  # which was an anchor before draft 2019-09
                base = _joined(base, own).partition("#")[0]
                self._named[base] = value
            anchor = own.removeprefix("#") if isinstance(own, str) and own.startswith("#") else value.get("$anchor")
            if isinstance(anchor, str):
                self._named[f"{base}#{anchor}"] = value
            self._bases[id(value)] = base
        for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            self._index(each, base)

    def _walk(self) -> None:
        waiting: list[tuple[Any, str]] = [(self._root, "#")]
        while waiting:
            schema, place = waiting.pop()
            if not isinstance(schema, dict) or id(schema) in self.places:
                continue
            self.places[id(schema)] = place, schema
            inner = [(child, f"{place}/{path}") for path, child in _children(schema)]
            waiting += reversed(inner)
            if isinstance(schema.get("$ref"), str):
                waiting += self._follow(schema, schema["$ref"], place)

    def _follow(self, schema: Schema, ref: str, place: str) -> list[tuple[Any, str]]:
        """What a reference refers to, and its place. What has the URI of another document is left to the compiler."""
        base = self._bases[id(schema)]
        resource, _, fragment = (base + ref if ref.startswith("#") else _joined(base, ref)).partition("#")
        start = self._named.get(resource)
        if not fragment.startswith("/") and fragment:
            start, fragment = self._named.get(f"{resource}#{fragment}"), ""
        if start is None:
            return []
        for pointer in (unquote(fragment), fragment):  # as a URI has it, or as it is
            path = [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]
            found = _at(start, path)
            if found is not None:
                where = "".join(f"/{_escaped(step)}" for step in path)
                self.targets[id(schema)] = found
                if ref.startswith("#/"):
                    self._written[id(schema)] = "#" + quote(where, safe="/~$")
                return [(found, "#" + where if start is self._root else ref)]
        raise GrammarError(f"'$ref': {ref[:100]!r} at {place[:100]!r} does not refer to a place in the schema")


def _children(schema: Schema) -> Iterator[tuple[str, Any]]:
    """The schemas directly in `schema`, with their paths."""
    for name, value in schema.items():
        if name in WITH_LIST and isinstance(value, list):
            yield from ((f"{name}/{i}", each) for i, each in enumerate(value))
        elif name in WITH_NAMES and isinstance(value, dict):
            yield from ((f"{name}/{_escaped(key)}", each) for key, each in value.items())
        elif name in WITH_SCHEMA:
            yield name, value


def _joined(base: str, uri: str) -> str:
    """A URI reference as a URI; unchanged if it is none."""
    try:
        return urljoin(base, uri)
    except ValueError:
        return uri


def _at(value: Any, path: list[str]) -> Any:
    """What is at a path, None if nothing is."""
    for step in path:
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and step.isdecimal() and len(step) < MOST_DIGITS and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    return value


def _escaped(step: str) -> str:
    """A step of a path in a JSON Pointer."""
    return step.replace("~", "~0").replace("/", "~1")
