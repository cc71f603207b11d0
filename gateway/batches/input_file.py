"""The input file of a batch: checked as a whole before any line runs, then read line by line."""

from __future__ import annotations

import os
from array import array
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from gateway.schemas.batches import BatchError
from gateway.schemas.json_size import MOST_VALUES, too_many

MAX_ERRORS = 100  # in the object of a failed batch
CUSTOM_ID_CHARS = 512
MAX_LINE_BYTES = 16 << 20  # a line is parsed as a whole in memory
READ_AT_ONCE = 4 << 20  # bytes


@dataclass(slots=True)
class CheckedInput:
    """The first byte and the length of each line that is not blank; or the errors of the file."""

    starts: array[int] = field(default_factory=lambda: array("Q"))
    lengths: array[int] = field(default_factory=lambda: array("Q"))
    errors: list[BatchError] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.starts)


def check(path: Path, endpoint: str, max_lines: int, max_values: int = MOST_VALUES) -> CheckedInput:
    """Check the whole file. Errors have OpenAI's fields: `code`, `message`, `param` and `line`, counted from 1.
    `max_values`: per line, see `json_size`. The file may begin with a byte order mark, and lines may end with CR LF."""
    checked, ids = CheckedInput(), set[str]()
    with path.open("rb") as file:
        start = len(BOM_UTF8) if file.read(len(BOM_UTF8)) == BOM_UTF8 else 0
        file.seek(start)
        for count, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), 1):
            if len(line) > MAX_LINE_BYTES:
                text = f"This line is longer than the maximum of {MAX_LINE_BYTES} bytes."
                checked.errors.append({"code": "line_too_long", "message": text, "param": None, "line": count})
                return checked
            if line.strip():
                error = _error(line, endpoint, ids, max_values)
                if error is None and len(checked) == max_lines:
                    error = "too_many_lines", f"There are more than the {max_lines} lines that a batch may have.", None
                if error is not None:
                    code, message, param = error
                    checked.errors.append({"code": code, "message": message, "param": param, "line": count})
                if len(checked.errors) == MAX_ERRORS or (error and error[0] == "too_many_lines"):
                    return checked
                checked.starts.append(start)
                checked.lengths.append(len(line))
            start += len(line)
    if not checked.starts:
        text = "The input file has no lines."
        checked.errors.append({"code": "empty_file", "message": text, "param": None, "line": None})
    return checked


def _error(line: bytes, endpoint: str, ids: set[str], max_values: int) -> tuple[str, str, str | None] | None:
    """Code, message and field of the error of an invalid line. Adds the line's id to `ids`."""
    if (reason := too_many(line, max_values)) is not None:
        return "too_many_values", f"This line has {reason}.", None
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        return "invalid_json_line", "This line is not a JSON object.", None
    for name in ("custom_id", "method", "url", "body"):
        if value.get(name) is None:
            return "missing_required_parameter", f"Missing required parameter: '{name}'.", name
    id = value["custom_id"]
    if not isinstance(id, str) or not 1 <= len(id) <= CUSTOM_ID_CHARS:
        return "invalid_custom_id", f"'custom_id' must be a string of 1 to {CUSTOM_ID_CHARS} characters.", "custom_id"
    if id in ids:
        return "duplicate_custom_id", f"The 'custom_id' '{id[:100]}' is on an earlier line too.", "custom_id"
    ids.add(id)
    if value["method"] != "POST":
        return "invalid_method", f"'method' must be 'POST' (got {str(value['method'])[:20]!r}).", "method"
    if value["url"] != endpoint:
        return "mismatched_url", f"'url' must be the batch's endpoint, '{endpoint}'.", "url"
    if not isinstance(value["body"], dict):
        return "invalid_body", "'body' must be a JSON object.", "body"
    return None


class InputLines:
    """Reads the lines of a checked file, which remains readable if it is deleted."""

    def __init__(self, path: Path, checked: CheckedInput) -> None:
        self._file = path.open("rb", buffering=0)
        self._checked = checked

    def __len__(self) -> int:
        return len(self._checked)

    def read(self, number: int) -> bytes:
        """Line `number`, counted from 0."""
        return os.pread(self._file.fileno(), self._checked.lengths[number], self._checked.starts[number])

    def portions(self, numbers: Iterable[int], count: int) -> Iterator[list[int]]:
        """`numbers` in portions of at most `count` lines and `READ_AT_ONCE` bytes, but at least one line."""
        portion: list[int] = []
        size = 0
        for number in numbers:
            length = self._checked.lengths[number]
            if portion and (len(portion) == count or size + length > READ_AT_ONCE):
                yield portion
                portion, size = [], 0
            portion.append(number)
            size += length
        if portion:
            yield portion

    def close(self) -> None:
        self._file.close()
