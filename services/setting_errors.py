"""What is wrong with settings, in one line that names each, and never repeats a secret."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

from pydantic import ValidationError

from services.settings.names import suggestion


def explain(error: ValidationError, known: Iterable[str], secrets: Container[str]) -> str:
    """All that `error` says; `known` are the names of settings, `secrets` those whose value is not repeated."""
    return "; ".join(_explain(one, known, secrets) for one in error.errors())


def _explain(error: Any, known: Iterable[str], secrets: Container[str]) -> str:
    name = ".".join(str(part) for part in error["loc"])
    said = str(error["msg"]).removeprefix("Value error, ")
    if not name:
        return said
    if error["type"] == "extra_forbidden":
        return f"unknown setting: {name}{suggestion(name, known)}"
    setting = error["loc"][0]
    if setting in secrets:
        return f"{setting}: {said}"
    return f"{name}: {said} (got {error['input']!r})"
