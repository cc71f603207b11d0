"""Reads tokenizer.json without its merges, which most of the file consists of and only the library needs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from services.errors import ModelError

_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_PAIR = rb"\[\s*+%b\s*+,\s*+%b\s*+\]" % (_STRING, _STRING)
# an array of merges `"a b"` or `["a", "b"]`; as quotes in strings are escaped, the key is nothing else
_MERGES = re.compile(rb'(?<="merges")\s*+:\s*+\[(?:\s*+(?:%b|%b)\s*+,?+)*+\s*+\]' % (_PAIR, _STRING))


def read_tokenizer_json(folder: Path) -> dict[str, Any]:
    """Return the content of the tokenizer.json in `folder`, with no merges. Raises ModelError."""
    path = folder / "tokenizer.json"
    try:
        raw = json.loads(_MERGES.sub(b":[]", path.read_bytes(), count=1))
    except FileNotFoundError:
        raise ModelError(f"{folder} has no tokenizer.json") from None
    except ValueError as error:
        raise ModelError(f"{path} is not JSON: {error}") from None
    if not isinstance(raw, dict) or not isinstance(raw.get("model"), dict):
        raise ModelError(f"{path} describes no tokenizer")
    return raw
