"""What settings are about, and how those are read that are more than a number or a text: words, API keys, a URL."""

from __future__ import annotations

import hashlib
import json
import re
from enum import StrEnum
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, SecretStr
from pydantic_settings import NoDecode

_HASH = re.compile(r"sha256:[0-9a-f]{64}")


class Section(StrEnum):
    """What settings are about, in the order in which `--help` and the documents show them.

    In the annotation of a setting: this setting and those below it, up to the next mark, are in the section.
    """

    API = "Model and API"
    ENGINE = "Engine"
    SCHEDULING = "Scheduling"
    POOL = "Pool and durability"
    LIMITS = "Limits and keys"
    TESTING = "Testing"


def _words(given: Any) -> Any:
    """A list of words; one text is words or, as vLLM's flags take them, a list as JSON."""
    text = given[0] if isinstance(given, list) and len(given) == 1 else given
    if isinstance(text, str):
        return json.loads(text) if text.startswith("[") else text.split()
    return given


def hash_of(key: str) -> str:
    """What is kept of an API key: `sha256:` and 64 hexadecimal digits. A hash that is given stays as it is.

    Raises ValueError for an empty key, and for what begins like a hash and is none.
    """
    if not key:
        raise ValueError("an empty key")
    if _HASH.fullmatch(key):
        return key
    if is_hash(key):
        raise ValueError("a key that begins with 'sha256:' is a hash, of 64 hexadecimal digits in lower case")
    return digest_of(key)


def is_hash(key: str) -> bool:
    """Whether `key` is the hash of a key, or is meant to be one."""
    return key.startswith("sha256:")


def digest_of(key: str) -> str:
    """The hash of what a client sends, whatever it looks like: who knows a hash does not know its key."""
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()


def _pool_url(url: SecretStr) -> SecretStr:
    """Errors of a URL's parts would repeat some of it."""
    try:
        parts = urlsplit(url.get_secret_value())
        readable = parts.port is None or parts.port > 0
    except ValueError:
        readable = False
    if url and not (readable and parts.scheme in ("redis", "rediss", "unix")):
        raise ValueError(
            "is not 'redis://', 'rediss://' or 'unix://' with a host or a path; "
            "in a user's name or password write /, ?, #, @, : and % as %XX"
        )
    return url


Words = Annotated[list[str], NoDecode, BeforeValidator(_words)]
Keys = Annotated[
    tuple[str, ...],
    NoDecode,
    BeforeValidator(lambda given: (given,) if isinstance(given, str) else given),
    AfterValidator(lambda keys: tuple(hash_of(key) for key in keys)),
]
TenantOfKey = Annotated[
    dict[str, str], AfterValidator(lambda keys: {hash_of(key): tenant for key, tenant in keys.items()})
]
PoolUrl = Annotated[SecretStr, AfterValidator(_pool_url)]
