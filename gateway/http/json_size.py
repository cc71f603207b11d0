"""How many values JSON has, counted before it is parsed: the parser holds the interpreter until it is done, for longer
the more values there are, whatever their length."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

MOST_VALUES = 1 << 18  # items of lists and members of objects
MOST_MEMBERS = 1 << 16  # lists, objects and named members, each of which costs as much as many numbers

_BACKSLASH = ord("\\")


def most_values(max_model_len: int) -> int:
    """How many values a body may have: a prompt of as many ids as the model can read is always taken."""
    return max(MOST_VALUES, 2 * max_model_len)


def too_many(body: bytes, most_values: int = MOST_VALUES) -> str | None:
    """What `body` has too many of, for an error, with the limit. None where it can be parsed within milliseconds."""
    if _within(body.count(b","), _members(body), most_values):  # strings count too: an upper bound, and a quick one
        return None
    outside = _outside_strings(body)
    if (members := _members(outside)) > MOST_MEMBERS:
        return f"{members} lists, objects and names of members; at most {MOST_MEMBERS} are taken"
    if (values := outside.count(b",")) > most_values:
        return f"{values} values; at most {most_values} are taken"
    return None


def _within(values: int, members: int, most_values: int) -> bool:
    return values <= most_values and members <= MOST_MEMBERS


def _members(body: bytes) -> int:
    return body.count(b"[") + body.count(b"{") + body.count(b":")


def _outside_strings(body: bytes) -> bytes:
    """`body` without what is in strings. Of what is no JSON anything may come back."""
    text: npt.NDArray[np.uint8] = np.frombuffer(body, np.uint8)
    quotes = np.flatnonzero(text == ord('"'))
    quotes = quotes[~_escaped(text, quotes)]
    inside = np.zeros(len(text) + 1, np.int8)
    inside[quotes[0::2]] = 1
    inside[quotes[1::2]] = -1
    outside: bytes = text[np.cumsum(inside[:-1], dtype=np.int8) == 0].tobytes()
    return outside


def _escaped(text: npt.NDArray[np.uint8], quotes: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
    """Whether an odd number of backslashes stands before each quote."""
    escaped: npt.NDArray[np.bool_] = (text[quotes - 1] == _BACKSLASH) & (quotes > 0)
    doubtful = quotes[escaped]
    if len(doubtful):
        plain = np.flatnonzero(text != _BACKSLASH)  # the last one before a quote is where its backslashes begin
        before = np.searchsorted(plain, doubtful) - 1
        begins = np.where(before >= 0, plain[before], -1)
        escaped[escaped] = (doubtful - begins - 1) % 2 == 1
    return escaped
