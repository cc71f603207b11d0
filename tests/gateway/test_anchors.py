"""Anchors of regular expressions: an expression without them matches the whole texts in which the pattern is found."""

from __future__ import annotations

import re

import pytest

from gateway.grammars.anchors import whole
from services.errors import GrammarError

PATTERNS = (
    *(
        "a",
        "a|b",
        "^a",
        "a$",
        "^a$",
        "^a|b$",
        "^a$|^b$",
        "^(a|b)$",
        "^(?:a|b)$",
        "^(?:^a$)$",
        "^(?:^a|b$)$",
        "^a(?:b|c)",
    ),
    *("^(?:a)|(b)$", "^(?:a)(?:b)$", r"^\$", r"a\$", r"^a\|b$", "^[$^|]$", "^[^$]b$", "^[]|)]a$", "^$", "", "^", "$"),
    *(r"^(?:\(a|b)$", "^(?:(?:a|^b))$"),
)
TEXTS = (
    "",
    "a",
    "b",
    "ab",
    "ba",
    "aa",
    "xax",
    "xbx",
    "a|b",
    "$",
    "^",
    "|",
    "$a",
    "a$",
    "]a",
    "(a",
    "acx",
    "a\nb",
    "bb",
)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_same_texts(pattern: str) -> None:
    made = whole(pattern)
    assert [text for text in TEXTS if re.fullmatch(made, text)] == [text for text in TEXTS if re.search(pattern, text)]


def test_flags_hold_for_all_alternatives() -> None:
    assert whole("(?i)a|b") == r"(.|\n)*((?i)a|b)(.|\n)*"
    assert whole("^(?:(?i)a|b)$") == "(((?i)a|b))"


@pytest.mark.parametrize("pattern", ["a^b", "a$b", "(^a)b", "x(a$|b)", "^a(?:b$)", "(?i)^a|b"])
def test_anchors_within_are_refused(pattern: str) -> None:
    with pytest.raises(GrammarError, match="has anchors within it"):
        whole(pattern)


@pytest.mark.parametrize("pattern", ["a)(b", "a)|(b", "^a)(b$", "(a))((b)"])
def test_a_group_that_is_not_open_cannot_be_closed(pattern: str) -> None:
    with pytest.raises(GrammarError, match="closes a group that it does not open"):
        whole(pattern)
