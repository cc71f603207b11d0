"""The text is the same however tokens are grouped. It only grows, and text that is cut was never returned."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from services.text import Detokenizer, StopMatcher, TextTables

PIECES = [b"", b"a", b"b", b"ab", b"aab", b"abbab", b"x", b"\xf0\x9f", b"\x8e\x89", b"\xe2\x82", b"\xff", "é".encode()]
TABLES = TextTables(PIECES, frozenset({0}))
tokens = st.lists(st.integers(0, len(PIECES) - 1), max_size=20)
stop_lists = st.lists(st.text("abxé€", min_size=1, max_size=6), max_size=3)
stop_ids = st.sets(st.integers(0, len(PIECES) - 1), max_size=2)


@settings(max_examples=150)
@given(tokens, stop_lists, stop_ids, st.booleans(), st.data())
def test_the_text_does_not_depend_on_the_grouping(
    output: list[int], stops: list[str], ids: set[int], include_stop: bool, data: st.DataObject
) -> None:
    bounds = sorted({0, len(output), *data.draw(st.lists(st.integers(0, len(output))))})
    one_by_one, grouped = (Detokenizer(TABLES, stops, ids, include_stop) for _ in range(2))
    texts = [""]
    for token in output:
        texts.append(texts[-1] + one_by_one.push([token]))
    text = ""
    for start, end in pairwise(bounds):
        text += grouped.push(output[start:end])
        assert text == texts[end]
    whole = TABLES.join(output).decode(errors="replace")
    assert whole.startswith(text)
    assert text + grouped.finish() == whole


@settings(max_examples=150)
@given(tokens, stop_lists, stop_ids, st.integers(0, 8), st.booleans())
def test_stops_are_never_returned(
    output: list[int], stops: list[str], ids: set[int], min_tokens: int, include_stop: bool
) -> None:
    """A gateway and a scheduler together: tokens are sent until one of them is a stop or completes a stop string, and
    counts. What follows a stop string is cut in any case.
    """
    matcher, detokenizer = StopMatcher(TABLES, stops), Detokenizer(TABLES, stops, ids, include_stop)
    text, seen, cut = "", 0, 0
    for seen, token in enumerate(output, 1):
        match = matcher.push(token)
        text += detokenizer.push([token])
        if seen >= min_tokens and (token in ids or match):
            if token in ids or match is None:
                cut = 0 if include_stop else len(TABLES.bytes_of(token))
            else:
                cut = match.behind if include_stop else match.cut
            break
    kept = TABLES.join(output[:seen])
    assert text + detokenizer.finish(cut) == kept[: len(kept) - cut].decode(errors="replace")


def test_no_more_than_necessary_is_held_back() -> None:
    detokenizer = Detokenizer(TABLES, ["abx"])
    assert detokenizer.push([6, 3]) == "x"  # "ab" may become "abx"
    assert detokenizer.push([1]) == "ab"  # it did not; "a" may
    assert detokenizer.push([7]) == "a"  # half a character
    assert detokenizer.push([8]) == "🎉"
    assert detokenizer.push([]) == ""
    assert detokenizer.finish() == ""


def test_a_stop_string_that_did_not_end_the_sequence_is_text() -> None:
    """Before `min_tokens`, a match does not count, and is held back only until the next token."""
    detokenizer = Detokenizer(TABLES, ["ab"])
    assert detokenizer.push([3]) == ""
    assert detokenizer.push([6]) == "abx"


def test_a_stop_token_is_held_back_until_the_next_token_or_the_end() -> None:
    """The end is a separate event with the number of bytes to cut. With `min_tokens`, the stop token may be text."""
    detokenizer = Detokenizer(TABLES, stop_token_ids=(3,))
    assert detokenizer.push([1, 3]) == "a"
    assert detokenizer.push([6]) == "abx"
    assert detokenizer.push([3]) == ""
    assert detokenizer.finish(cut=2) == ""


def test_with_include_stop_only_what_follows_it_is_held_back() -> None:
    detokenizer = Detokenizer(TABLES, ["ab"], stop_token_ids=(6,), include_stop=True)
    assert detokenizer.push([1]) == "a"
    assert detokenizer.push([2]) == "b"
    assert detokenizer.push([6]) == "x"
    assert detokenizer.push([5]) == "ab"
    assert detokenizer.finish(cut=3) == ""
