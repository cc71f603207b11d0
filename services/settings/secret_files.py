"""Settings whose value is in a file of its own: what another user of the machine could read on a command line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from services.errors import UsageError
from services.settings.types import hash_of

POOL = ("redis_url", "redis_url_file")
_LINE = re.compile(r"(?P<tenant>[^\s:#\"']+)\s*:\s*(?P<key>[!-~]+)")


def over(values: dict[str, Any], source: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with those of a `source` that wins; where it names the pool's URL or its file, it has said both."""
    if all(source.get(name) for name in POOL):
        raise UsageError("redis_url, redis_url_file: name one of them")
    kept = {} if any(name in source for name in POOL) else {name: values[name] for name in POOL if name in values}
    return {name: value for name, value in values.items() if name not in POOL} | kept | dict(source)


def resolved(values: dict[str, Any]) -> dict[str, Any]:
    """`values` with the content of the files in place of their names.

    Raises UsageError with the name of a file that cannot be read or is not as it should be, never with its content.
    """
    values = dict(values)
    if file := values.pop("redis_url_file", ""):
        values["redis_url"] = _text("redis_url_file", file).strip()
    if file := values.pop("api_keys_file", ""):
        keys, named = _keys(file), values.get("api_keys", {})
        if isinstance(named, dict):  # what is wrong with it is said by its own type
            values["api_keys"] = _together(keys, named, f"api_keys_file: {file}")
    return values


def _keys(file: str) -> dict[str, str]:
    """The tenant of each key's hash, from lines `tenant: key`; empty lines and those that begin with # are none."""
    keys: dict[str, str] = {}
    for number, line in enumerate(_text("api_keys_file", file).splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        where = f"api_keys_file: {file}, line {number}"
        found = _LINE.fullmatch(line.strip())
        if found is None or found["key"][0] in "\"'[{":
            raise UsageError(f"{where}: is not 'tenant: key', without quotes and without spaces in the key")
        keys = _together(keys, {found["key"]: found["tenant"]}, where)
    if not keys:
        raise UsageError(f"api_keys_file: {file}: holds no key")
    return keys


def _together(keys: dict[str, str], more: Mapping[Any, Any], where: str) -> dict[str, str]:
    made = dict(keys)
    for key, tenant in more.items():
        try:
            name = hash_of(str(key))
        except ValueError as error:
            raise UsageError(f"{where}: {error}") from None
        if made.setdefault(name, tenant) != tenant:
            raise UsageError(f"{where}: one key for the tenants {made[name]!r} and {tenant!r}")
    return made


def _text(setting: str, file: str) -> str:
    try:
        return Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "is not text"
        raise UsageError(f"{setting}: {file}: {why}") from None
