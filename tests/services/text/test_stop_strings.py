"""StopMatcher finds the same as a naive search over the whole text, at the first token that completes it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.text import StopMatch, StopMatcher, TextTables

# few letters, so that stop strings overlap, repeat and span tokens; id 0 is special
PIECES = [b"", b"a", b"b", b"ab", b"ba", b"aab", b"abbab", "é".encode()[:1], "é".encode()[1:], b"xab"]
TABLES = TextTables(PIECES, frozenset({0}))
tokens = st.lists(st.integers(0, len(PIECES) - 1), max_size=20)
stops = st.lists(st.text("abé", min_size=1, max_size=6), min_size=1, max_size=4)


def naive(output: list[int], stops: list[str]) -> StopMatch | None:
    """Return the first match in the text that ends within the last token."""
    text, before = TABLES.join(output), len(TABLES.join(output[:-1]))
    for start in range(len(text)):
        for stop in stops:
            if text.startswith(stop.encode(), start) and start + len(stop.encode()) > before:
                return StopMatch(stop, len(text) - start)
    return None


@settings(max_examples=150)
@given(tokens, stops)
def test_matches_are_those_of_a_naive_search(output: list[int], stops: list[str]) -> None:
    matcher = StopMatcher(TABLES, stops)
    for count, token in enumerate(output, 1):
        assert matcher.push(token) == naive(output[:count], stops)


@settings(max_examples=150)
@given(tokens, stops)
def test_cut_leaves_a_text_without_stop_strings(output: list[int], stops: list[str]) -> None:
    matcher = StopMatcher(TABLES, stops)
    for count, token in enumerate(output, 1):
        if match := matcher.push(token):
            text = TABLES.join(output[:count])
            assert not any(stop.encode() in text[: len(text) - match.cut] for stop in stops)
            assert text[len(text) - match.cut :].startswith(match.stop.encode())
            break
    else:
        assert not any(stop.encode() in TABLES.join(output) for stop in stops)


@pytest.mark.parametrize("stop", ["", "\ud800"])
def test_a_stop_string_without_bytes_is_refused(stop: str) -> None:
    with pytest.raises(ValueError, match=r"empty|surrogates"):
        StopMatcher(TABLES, ["ok", stop])
