"""Anchors of regular expressions, which grammars do not know: there an expression matches a whole text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from services.errors import GrammarError

ANY = r"(.|\n)*"
FLAGS = re.compile(r"\(\?[A-Za-z-]+\)")  # which hold for the alternatives after them, too


def whole(pattern: str) -> str:
    """A regular expression without anchors, of the whole texts in which `pattern` is found. Raises GrammarError as
    `check_groups` does, and for anchors elsewhere than at the ends of alternatives."""
    check_groups(pattern)
    try:
        return _whole(pattern, False, False)
    except ValueError:
        text = f"'pattern': {pattern[:100]!r} has anchors within it, which calls of this model cannot follow"
        raise GrammarError(text) from None


def check_groups(pattern: str) -> None:
    """Raises GrammarError for a regular expression that closes a group which it does not open: as a part of another one
    it could be valid."""
    if any(depth < 0 for _, depth in _outside_of_classes(pattern)):
        raise GrammarError(f"'pattern': {pattern[:100]!r} closes a group that it does not open")


def _whole(pattern: str, begun: bool, ended: bool) -> str:
    """`begun`, `ended`: what is found begins and ends the text."""
    places = list(_outside_of_classes(pattern))
    if not any(pattern[place] in "^$" for place, _ in places):
        return _found(pattern, begun, ended)
    bars = [place for place, depth in places if depth == 0 and pattern[place] == "|"]
    if bars and FLAGS.search(pattern):
        raise ValueError(pattern)
    parts = (pattern[before + 1 : bar] for before, bar in pairwise([-1, *bars, len(pattern)]))
    return "|".join(_alternative(part, begun, ended) for part in parts)


def _alternative(part: str, begun: bool, ended: bool) -> str:
    places = [place for place, _ in _outside_of_classes(part)]
    first, last = part.startswith("^"), part.endswith("$") and places[-1:] == [len(part) - 1]
    body = part[first : len(part) - last]
    begun, ended = begun or first, ended or last
    ends = [place for place, depth in _outside_of_classes(body) if depth == 0]
    if begun and ended and body.startswith("(?:") and ends == [0, len(body) - 1]:  # one group is all of it
        return f"({_whole(body[3:-1], True, True)})"
    if any(body[place] in "^$" for place, _ in _outside_of_classes(body)):
        raise ValueError(part)
    return _found(body, begun, ended)


def _found(body: str, begun: bool, ended: bool) -> str:
    return f"{'' if begun else ANY}({body}){'' if ended else ANY}"


def _outside_of_classes(pattern: str) -> Iterator[tuple[int, int]]:
    """The places of the characters that are not escaped and not within a class, each with the number of groups around
    it; a group is not around its own brackets."""
    depth = classes = place = 0
    while place < len(pattern):
        character = pattern[place]
        if character == "\\":
            place += 2
            continue
        if character == "[":
            classes += 1
            place += 1 + (pattern[place + 1 : place + 2] == "^")
            place += pattern[place : place + 1] == "]"  # the first one is a member
            continue
        if classes:
            classes -= character == "]"
        else:
            depth -= character == ")"
            yield place, depth
            depth += character == "("
        place += 1
