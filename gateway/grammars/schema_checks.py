"""Schemas that llguidance compiles, but to a grammar that allows documents that are not valid by them, that it cannot
follow, or that takes work which its limits do not count."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from math import lcm

from gateway.grammars.schema_document import Schema, SchemaDocument
from gateway.grammars.schema_ends import check_ends
from services.errors import GrammarError

# properties of one object that are not required; llguidance's parser has four items in a row for each, see MOST_ITEMS
MOST_OPTIONAL = 490
OLDEST = ("draft-00", "draft-01", "draft-02", "draft-03")
# common multiple of all `multipleOf`; llguidance has a state for each remainder, which take about 50 ms and 10 MB
MOST_COMMON = 10_000

_ESCAPE = re.compile(r"\\u00([2-7][0-9a-fA-F])")
_MULTIPLE = re.compile(r'multipleOf"\s*:\s*([-+.0-9eE]{1,64})')


def check_schema(document: SchemaDocument) -> None:
    """Raises GrammarError for a dialect before draft 4, for a `minProperties` over 1 that one property could fulfil by
    being there twice, for an object with more optional properties than an engine can follow, and for a recursion
    without an end."""
    for _, schema in document.places.values():
        dialect = str(schema.get("$schema", ""))
        if any(draft in dialect for draft in OLDEST):
            raise GrammarError(f"'$schema': {dialect[:100]!r} is not supported; draft 4 and later are")
        _check_counts(schema)
    check_ends(document)


def _check_counts(schema: Schema) -> None:
    least, required, properties = (schema.get(name) for name in ("minProperties", "required", "properties"))
    names = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
    if type(least) is int and least > max(1, len(names)):
        raise GrammarError(f"'minProperties': {least} is supported only if as many properties are 'required'")
    if isinstance(properties, dict) and (optional := len(properties.keys() - names)) > MOST_OPTIONAL:
        text = f"'properties': {optional:,} of one object are not 'required'; at most {MOST_OPTIONAL} are supported"
        raise GrammarError(text)


def check_multiples(text: str) -> None:
    """Raises GrammarError if the common multiple of all `multipleOf` in `text` is too large. Schemas in `allOf` have to
    hold together, so that the remainders are those of the common multiple. Zeros at the end do not count."""
    plain = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)
    common = 1
    for number in set(_MULTIPLE.findall(plain)):
        common = lcm(common, _digits(number))
        if common > MOST_COMMON:
            raise GrammarError(f"'multipleOf': the common multiple of all its values has to be at most {MOST_COMMON:,}")


def _digits(number: str) -> int:
    """The digits of a number as an integer, without zeros at the end; 1 for what is not a number above zero, which
    llguidance refuses."""
    try:
        digits = int("".join(map(str, Decimal(number).as_tuple().digits)).rstrip("0") or 1)
    except InvalidOperation:
        return 1
    return digits
