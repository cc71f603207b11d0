"""Schemas that llguidance compiles, but to a grammar that allows documents that are not valid by them, or that it
cannot follow."""

from __future__ import annotations

from typing import Any

from services.errors import GrammarError

# properties of one object that are not required; llguidance's parser has four items in a row for each, see MOST_ITEMS
MOST_OPTIONAL = 490
OLDEST = ("draft-00", "draft-01", "draft-02", "draft-03")


def check_schema(schema: Any) -> None:
    """Raises GrammarError for a dialect before draft 4, for a `minProperties` over 1 that one property could fulfil by
    being there twice, and for an object with more optional properties than an engine can follow."""
    if not isinstance(schema, dict):
        return
    dialect = str(schema.get("$schema", ""))
    if any(draft in dialect for draft in OLDEST):
        raise GrammarError(f"'$schema': {dialect[:100]!r} is not supported; draft 4 and later are")
    _check_counts(schema)


def _check_counts(part: Any) -> None:
    if isinstance(part, dict):
        least, required = part.get("minProperties"), part.get("required")
        names = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
        if type(least) is int and least > max(1, len(names)):
            raise GrammarError(f"'minProperties': {least} is supported only if as many properties are 'required'")
        properties = part.get("properties")
        if isinstance(properties, dict) and (optional := len(properties.keys() - names)) > MOST_OPTIONAL:
            text = f"'properties': {optional:,} of one object are not 'required'; at most {MOST_OPTIONAL} are supported"
            raise GrammarError(text)
    for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        _check_counts(inner)
