"""Settings from a file, TOML or YAML, by the ending of its name."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from services.errors import UsageError
from services.settings.names import own_name


def read(file: Path, known: Iterable[str]) -> dict[str, Any]:
    """The values in `file` by the name of the setting; `known` are the names of all settings.

    Raises UsageError with the file's name where it cannot be read, or names a setting twice or one that is unknown.
    """
    values: dict[str, Any] = {}
    try:
        for key, value in _entries(file).items():
            name = own_name(str(key), known)
            if name in values:
                raise UsageError(f"{name} is set twice, under another name too")
            values[name] = value
    except UsageError as error:
        raise UsageError(f"{file}: {error}") from None
    return values


TOO_DEEP = "its values are nested too deep"


def _entries(file: Path) -> dict[Any, Any]:
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(getattr(error, "strerror", None) or str(error)) from None
    match file.suffix:
        case ".toml":
            entries = _toml(text)
        case ".yaml" | ".yml":
            entries = _yaml(text)
        case other:
            raise UsageError(f"a settings file ends with .toml, .yaml or .yml, not with {other!r}")
    if not isinstance(entries, dict):
        raise UsageError(f"holds a {type(entries).__name__}, not names and values")
    return entries


def _toml(text: str) -> Any:
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise UsageError(TOO_DEEP) from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(str(error)) from None


def _yaml(text: str) -> Any:
    import yaml  # 20 ms, for those who have such a file

    try:
        return yaml.safe_load(text) or {}
    except RecursionError:
        raise UsageError(TOO_DEEP) from None
    except yaml.YAMLError as error:
        raise UsageError(" ".join(str(error).split())) from None
