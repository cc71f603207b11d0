"""StopChecker: why a request ends, and which bytes of its text are cut."""

from typing import Any

import pytest

from services.messages import End
from services.requests import FinishReason, SamplingParams
from services.scheduling.stopping import StopChecker, StopRules
from services.text import TextTables

EOS, WORD = 2, 7
END = End(FinishReason.STOP)
LENGTH = End(FinishReason.LENGTH)


def ends(tokens: list[int], rules: StopRules | None = None, prompt: int = 5, **sampling: object) -> list[End | None]:
    """What the checker returns after each token, up to the first end."""
    checker = StopChecker(rules or StopRules(100, frozenset({EOS, 3}), None), SamplingParams(**sampling), prompt)  # type: ignore[arg-type]
    said: list[End | None] = []
    for count, token in enumerate(tokens, 1):
        said.append(checker.check_stop(token, count))
        if said[-1]:
            break
    return said


@pytest.mark.parametrize("eos", [EOS, 3])
def test_each_eos_ends(eos: int) -> None:
    assert ends([WORD, eos, WORD], max_new_tokens=9) == [None, END]


def test_with_ignore_eos_a_request_ends_by_length() -> None:
    assert ends([EOS, EOS, EOS], max_new_tokens=3, ignore_eos=True) == [None, None, LENGTH]


def test_max_new_tokens_and_the_models_length() -> None:
    assert ends([WORD] * 9, max_new_tokens=2) == [None, LENGTH]
    assert ends([WORD] * 9, prompt=98, max_new_tokens=9) == [None, LENGTH]


def test_a_stop_at_the_last_token_is_a_stop() -> None:
    assert ends([EOS], max_new_tokens=1) == [END]


def test_min_tokens_suppresses_stops_but_not_the_length() -> None:
    assert ends([EOS, EOS, EOS], max_new_tokens=9, min_tokens=2) == [None, None, END]
    assert ends([9, 9], max_new_tokens=9, min_tokens=1, stop_token_ids=(9,)) == [None, End(FinishReason.STOP, 9)]
    assert ends([EOS, EOS], max_new_tokens=1, min_tokens=5) == [LENGTH]


def test_a_stop_token_id_is_named_unless_it_is_eos() -> None:
    assert ends([9], max_new_tokens=9, stop_token_ids=(8, 9)) == [End(FinishReason.STOP, 9)]
    assert ends([EOS], max_new_tokens=9, stop_token_ids=(EOS,)) == [END]
    assert ends([EOS], max_new_tokens=9, stop_token_ids=(EOS,), ignore_eos=True) == [End(FinishReason.STOP, EOS)]


# --- text: one token a piece -------------------------------------------------------------------------------------

PIECES = [b"", b"", b"", b"", b"END", b" the", b"E", b"ND", b"N", b"D."]
TEXT = StopRules(100, frozenset({EOS}), TextTables(PIECES, frozenset({EOS})))
THE, E, ND, N, D = 5, 6, 7, 8, 9


def test_a_stop_string_across_tokens_is_named_with_the_bytes_to_cut() -> None:
    found = ends([THE, E, N, D], TEXT, max_new_tokens=9, stop=("END", "zzz"))
    assert found == [None, None, None, End(FinishReason.STOP, "END", cut=4)]  # "END" and the "." behind it
    assert ends([E, ND], TEXT, max_new_tokens=2, stop=("END",)) == [None, End(FinishReason.STOP, "END", cut=3)]


def test_min_tokens_suppresses_stop_strings() -> None:
    found = ends([E, ND, E, ND], TEXT, max_new_tokens=9, min_tokens=2, stop=("END",))
    assert found == [None, None, None, End(FinishReason.STOP, "END", cut=3)]
    began = ends([E, ND], TEXT, max_new_tokens=9, min_tokens=1, stop=("END",), stop_token_ids=(E,))
    assert began == [None, End(FinishReason.STOP, "END", cut=3)], "its beginning is a stop token that was suppressed"


def test_a_stop_token_takes_precedence_over_a_stop_string() -> None:
    found = ends([E, ND], TEXT, max_new_tokens=9, stop=("END",), stop_token_ids=(ND,))
    assert found == [None, End(FinishReason.STOP, ND, cut=2)]


def test_a_stop_token_that_is_text_is_cut() -> None:
    assert ends([THE], TEXT, max_new_tokens=9, stop_token_ids=(THE,)) == [End(FinishReason.STOP, THE, cut=4)]
    assert ends([EOS], TEXT, max_new_tokens=9) == [END]


SPELLED = [b"", b"", b"<eos>", *PIECES[3:]]
SHOWN = StopRules(100, frozenset({EOS}), TextTables(PIECES, frozenset({EOS}), TextTables(SPELLED, frozenset())))


def test_with_include_stop_only_what_follows_it_is_cut() -> None:
    kept: dict[str, Any] = {"max_new_tokens": 9, "include_stop": True}
    assert ends([E, N, D], TEXT, **kept, stop=("END",))[-1] == End(FinishReason.STOP, "END", cut=1)
    assert ends([E, ND], TEXT, **kept, stop=("END",))[-1] == End(FinishReason.STOP, "END")
    assert ends([THE], TEXT, **kept, stop_token_ids=(THE,)) == [End(FinishReason.STOP, THE)]


def test_special_tokens_that_are_text_are_cut() -> None:
    shown: dict[str, Any] = {"max_new_tokens": 9, "skip_special_tokens": False}
    assert ends([EOS], SHOWN, **shown) == [End(FinishReason.STOP, cut=5)]
    assert ends([EOS], SHOWN, **shown, include_stop=True) == [END]
    assert ends([EOS], SHOWN, **shown, stop_token_ids=(EOS,), ignore_eos=True) == [End(FinishReason.STOP, EOS, cut=5)]
    found = ends([THE, EOS, E], SHOWN, **shown, stop=("s>E",), ignore_eos=True)
    assert found == [None, None, End(FinishReason.STOP, "s>E", cut=3)]


def test_stop_strings_need_text() -> None:
    with pytest.raises(AssertionError, match="without text"):
        ends([WORD], max_new_tokens=9, stop=("END",))
