"""The sections of the settings, and the types of some: lists of words, API keys, URLs, parsers."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, SecretStr
from pydantic_settings import NoDecode

from services.files import absolute_folder
from services.pool.address import parse
from services.pool.shards import parse_shards

_HASH = re.compile(r"sha256:[0-9a-f]{64}")
Number = TypeVar("Number", int, float)


class Section(StrEnum):
    """The groups of settings, in the order in which `--help` and the documents show them.

    A section in the annotation of a setting applies to this setting and to all below it, up to the next section.
    """

    API = "Model and API"
    ENGINE = "Engine"
    SCHEDULING = "Scheduling"
    AUTOSCALING = "Autoscaling"
    POOL = "Pool and durability"
    LIMITS = "Limits and keys"
    OBSERVABILITY = "Logs and traces"
    TESTING = "Testing"


def _words(given: Any) -> Any:
    """Return a list of words. A single text holds words separated by spaces or, as for vLLM's flags, a JSON list."""
    text = given[0] if isinstance(given, list) and len(given) == 1 else given
    if isinstance(text, str):
        return json.loads(text) if text.startswith("[") else text.split()
    return given


def auto_or(what: str, bounds: str, read: Callable[[Any], Number], fits: Callable[[Number], bool]) -> PlainValidator:
    """Return the validator of a setting that is 'auto' or a number. `what` it is and its `bounds` are for messages."""

    def validate(given: Any) -> Number | Literal["auto"]:
        if given == "auto":
            return "auto"
        try:
            number = read(given)
        except (TypeError, ValueError):
            raise ValueError(f"is neither 'auto' nor {what}") from None
        if not fits(number):
            raise ValueError(f"is not {what} {bounds}")
        return number

    return PlainValidator(validate)


def hash_of(key: str) -> str:
    """Return the hash of an API key, `sha256:` and 64 hexadecimal digits; only hashes are kept. A hash is returned as
    it is.

    Raises ValueError for an empty key, and for a text that begins like a hash but is not one.
    """
    if not key:
        raise ValueError("an empty key")
    if _HASH.fullmatch(key):
        return key
    if is_hash(key):
        raise ValueError("a key that begins with 'sha256:' is a hash, of 64 hexadecimal digits in lower case")
    return digest_of(key)


def is_hash(key: str) -> bool:
    """Return whether `key` is the hash of a key, or is meant to be one."""
    return key.startswith("sha256:")


def digest_of(key: str) -> str:
    """Return the hash of the text that a client sends as its key. A hash is hashed again: it gives no access in place
    of its key."""
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()


def _pool_url(url: SecretStr) -> SecretStr:
    """Check the URL, or those of several shards, with an error that does not repeat any part of them."""
    for shard in parse_shards(url.get_secret_value()):
        parse(shard.url)
    return url


Folder = Annotated[  # a text, empty for none; working folders of processes differ
    str, AfterValidator(lambda folder: folder and str(absolute_folder(Path(folder))))
]
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
Names = Annotated[
    tuple[str, ...],
    NoDecode,
    BeforeValidator(lambda given: (given,) if isinstance(given, str) else given),
    AfterValidator(lambda names: tuple(dict.fromkeys(filter(None, names)))),
]
PoolUrl = Annotated[SecretStr, AfterValidator(_pool_url)]
ToolCallParser = Annotated[
    Literal[
        "auto",
        "none",
        "apertus",
        "cohere_command3",
        "deepseek_v3",
        "deepseek_v31",
        "deepseek_v32",
        "deepseek_v4",
        "gemma4",
        "glm45",
        "glm47",
        "granite",
        "granite-20b-fc",
        "hermes",
        "hunyuan_a13b",
        "internlm",
        "jamba",
        "kimi_k2",
        "lfm2",
        "llama3_json",
        "llama4_pythonic",
        "minimax",
        "minimax_m2",
        "mistral",
        "mistral_v11",
        "nemotron_json",
        "olmo3",
        "openai",
        "phi4_mini_json",
        "pythonic",
        "qwen3_coder",
        "qwen3_xml",
        "seed_oss",
        "smollm2",
        "step3p5",
    ],
    Field(description="parser of tool calls; auto: by the chat template, none: requests with tools are refused"),
]
ReasoningParser = Annotated[
    Literal[
        "auto",
        "none",
        "cohere_command3",
        "deepseek_r1",
        "deepseek_v3",
        "gemma4",
        "glm45",
        "granite",
        "granite_tags",
        "hunyuan_a13b",
        "kimi_k2",
        "minimax_m2",
        "mistral",
        "olmo3",
        "openai_gptoss",
        "qwen3",
        "seed_oss",
        "step3",
        "step3p5",
    ],
    Field(description="parser of reasoning; auto: by the chat template, none: it is content"),
]
