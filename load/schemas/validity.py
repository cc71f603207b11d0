"""Whether a text is JSON that is valid by a schema."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
from referencing.exceptions import Unresolvable


class NotJudged(Exception):
    """jsonschema cannot tell: it knows neither `\\p` in patterns nor other documents."""


def error_of(text: str, schema: dict[str, Any] | bool) -> str:
    """Why `text` is no JSON that is valid by `schema`; empty if it is. The draft is the schema's, or 2020-12.
    Raises NotJudged."""
    try:
        document = json.loads(text)
    except ValueError as error:
        return f"no JSON, {error}"
    validator = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)(schema)
    try:
        worst = jsonschema.exceptions.best_match(validator.iter_errors(document))
    except (re.error, Unresolvable, RecursionError) as error:
        raise NotJudged(repr(error)) from None
    return str(worst.message) if worst else ""
