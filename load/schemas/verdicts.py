"""Verdicts: whether a text is valid by a schema, and why a schema was refused."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
from referencing.exceptions import Unresolvable

REASON = 120  # characters of a reason

_DROPPED = (
    r"^.*failed to compile JSON schema: ",  # llguidance: where in the grammar
    r"^\[[^\]]*\] \S+:\d+: (Warning: )?",  # xgrammar: when, and where in its sources
    r" and retrieving it failed.*",
)


class NotJudged(Exception):
    """jsonschema cannot judge the text: it knows neither `\\p` in patterns nor other documents."""


def error_of(text: str, schema: dict[str, Any] | bool) -> str:
    """Why `text` is not JSON that is valid by `schema`; empty if it is. The draft is that of `$schema`, by default
    2020-12. Raises NotJudged."""
    try:
        document = json.loads(text)
    except ValueError as error:
        return f"not JSON, {error}"
    validator = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)(schema)
    try:
        worst = jsonschema.exceptions.best_match(validator.iter_errors(document))
    except (re.error, Unresolvable, RecursionError) as error:
        raise NotJudged(repr(error)) from None
    return str(worst.message) if worst else ""


def reasons_in(message: str) -> list[str]:
    """The reasons in a library's message about a schema, without places and values, so that they can be counted.
    Several if the message names several keywords."""
    line = next((line for line in message.strip().splitlines() if line.strip()), "no reason")
    for pattern in _DROPPED:
        line = re.sub(pattern, "", line)
    if keywords := re.search(r"Unimplemented keys: \[(.*)\]", line):
        return [f"keyword {name.strip()}" for name in keywords[1].replace('"', "").split(",")]
    if line.startswith("Unknown format"):
        return [line.rstrip(".")]
    line = re.sub(r"'[^']*'|\"[^\"]*\"|`[^`]*`|/\S+/|\{.*\}|\d\S*", "…", line)
    return [" ".join(line.split())[:REASON].rstrip(".").replace("|", "/")]
