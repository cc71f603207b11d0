"""The number of values in JSON, counted before it is parsed: the parser holds the interpreter lock for a time that
grows with the number of values, not with their length."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

MOST_VALUES = 1 << 18  # items of lists and members of objects
MOST_MEMBERS = 1 << 16  # lists, objects and named members, each of which costs as much as many numbers

_BACKSLASH = ord("\\")


def most_values(max_model_len: int) -> int:
    """The maximum number of values of a body. It admits any prompt of token ids within the context length."""
    return max(MOST_VALUES, 2 * max_model_len)


def too_many(body: bytes, most_values: int = MOST_VALUES) -> str | None:
    """What `body` has too many of, with the limit, for an error; None if it can be parsed within milliseconds."""
    if _within(
        body.count(b","), _members(body), most_values
    ):  # a fast upper bound that includes the contents of strings
        return None
    outside = _outside_strings(body)
    if (members := _members(outside)) > MOST_MEMBERS:
        return f"{members} lists, objects and names of members; at most {MOST_MEMBERS} are accepted"
    if (values := outside.count(b",")) > most_values:
        return f"{values} values; at most {most_values} are accepted"
    return None


def _within(values: int, members: int, most_values: int) -> bool:
    return values <= most_values and members <= MOST_MEMBERS


def _members(body: bytes) -> int:
    return body.count(b"[") + body.count(b"{") + body.count(b":")


def _outside_strings(body: bytes) -> bytes:
    """`body` without the contents of strings. The result is arbitrary if `body` is not JSON."""
    text: npt.NDArray[np.uint8] = np.frombuffer(body, np.uint8)
    quotes = np.flatnonzero(text == ord('"'))
    quotes = quotes[~_escaped(text, quotes)]
    inside = np.zeros(len(text) + 1, np.int8)
    inside[quotes[0::2]] = 1
    inside[quotes[1::2]] = -1
    outside: bytes = text[np.cumsum(inside[:-1], dtype=np.int8) == 0].tobytes()
    return outside


def _escaped(text: npt.NDArray[np.uint8], quotes: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
    """For each quote, whether an odd number of backslashes precedes it."""
    escaped: npt.NDArray[np.bool_] = (text[quotes - 1] == _BACKSLASH) & (quotes > 0)
    doubtful = quotes[escaped]
    if len(doubtful):
        plain = np.flatnonzero(text != _BACKSLASH)  # the backslashes of a quote begin after the last of these
        before = np.searchsorted(plain, doubtful) - 1
        begins = np.where(before >= 0, plain[before], -1)
        escaped[escaped] = (doubtful - begins - 1) % 2 == 1
    return escaped
