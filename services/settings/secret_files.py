"""Settings whose value is in a file of its own, because other users of a machine can read its command lines."""

from __future__ import annotations

import logging
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from services.errors import UsageError
from services.settings.types import hash_of, is_hash

log = logging.getLogger(__name__)
_LINE = re.compile(r"(?P<tenant>[^\s:#\"']+)\s*:\s*(?P<key>[!-~]+)")


def resolve(values: dict[str, Any]) -> dict[str, Any]:
    """Return `values` with the content of the files instead of their names.

    A file that all users of the machine can read is logged, unless it holds only hashes of keys. Raises UsageError with
    the name of a file that cannot be read or has a wrong format, never with its content.
    """
    values = dict(values)
    url = values.get("redis_url")
    if isinstance(url, str) and url and "://" not in url:
        values["redis_url"] = _read_url(url)
    key = values.get("operator_api_key")
    [key] = key if isinstance(key, list) and len(key) == 1 else [key]
    if isinstance(key, str) and key.startswith("/"):
        values["operator_api_key"] = _read_key(key)
    if file := values.pop("api_keys_file", ""):
        keys, named = _read_keys(file), values.get("api_keys", {})
        if isinstance(named, dict):  # another type is an error that pydantic reports
            values["api_keys"] = _merge(keys, named, f"api_keys_file: {file}")
    return values


def _read_url(file: str) -> str:
    """Return the URL, or those of several shards, in a file."""
    if "@" in file and not Path(file).exists():  # a URL without its scheme, whose password no message repeats
        raise UsageError("redis_url: is no URL, as redis://HOST:PORT/0, nor the name of a file that is there")
    url = _read("redis_url", file).strip()
    if "://" not in url:
        raise UsageError(f"redis_url: {file}: holds no URL, as redis://HOST:PORT/0")
    _warn_if_public("redis_url", file)
    return url


def _read_key(file: str) -> str:
    """Return the operator's key, which a file holds."""
    if not Path(file).is_file():  # it may be a key, which no message repeats
        raise UsageError("operator_api_key: begins with '/', and is no file that is there")
    key = _read("operator_api_key", file).strip()
    if len(key.split()) != 1:
        raise UsageError(f"operator_api_key: {file}: holds not one key, without spaces")
    if not is_hash(key):
        _warn_if_public("operator_api_key", file)
    return key


def _read_keys(file: str) -> dict[str, str]:
    """Return the tenant of each key's hash, from lines `tenant: key`; empty lines and comments (#) are skipped."""
    keys: dict[str, str] = {}
    only_hashes = True
    for number, line in enumerate(_read("api_keys_file", file).splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        where = f"api_keys_file: {file}, line {number}"
        found = _LINE.fullmatch(line.strip())
        if found is None or found["key"][0] in "\"'[{":
            raise UsageError(f"{where}: is not 'tenant: key', without quotes and without spaces in the key")
        keys = _merge(keys, {found["key"]: found["tenant"]}, where)
        only_hashes = only_hashes and found["key"] in keys
    if not keys:
        raise UsageError(f"api_keys_file: {file}: holds no key")
    if not only_hashes:
        _warn_if_public("api_keys_file", file)
    return keys


def _merge(keys: dict[str, str], more: Mapping[Any, Any], where: str) -> dict[str, str]:
    """Return the tenants of hashes `keys` with those of the keys `more`. Raises UsageError if a key has two tenants."""
    merged = dict(keys)
    for key, tenant in more.items():
        try:
            name = hash_of(str(key))
        except ValueError as error:
            raise UsageError(f"{where}: {error}") from None
        if merged.setdefault(name, tenant) != tenant:
            raise UsageError(f"{where}: one key for the tenants {merged[name]!r} and {tenant!r}")
    return merged


def _read(setting: str, file: str) -> str:
    try:
        return Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not text"
        raise UsageError(f"{setting}: {file}: {reason}") from None


def _warn_if_public(setting: str, file: str) -> None:
    mode = stat.S_IMODE(Path(file).stat().st_mode)
    if mode & stat.S_IROTH:
        text = "%s: %s: every user of this machine can read this file (mode %o); use mode 600"
        log.warning(text, setting, file, mode)
