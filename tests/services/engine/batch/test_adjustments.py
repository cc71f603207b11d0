"""The adjustments of a request grow with it, and equal those that all of its tokens would give."""

from __future__ import annotations

from collections import Counter

from services.engine.batch.adjustments import BANNED, BIAS, COUNT, END, SEEN, Adjustments
from services.requests import SamplingParams

EOS = frozenset({9})


def noted(adjustments: Adjustments, column: int) -> dict[int, float]:
    """A column by token."""
    values = zip(adjustments.ids.tolist(), adjustments.columns[column].tolist(), strict=True)
    return {id: value for id, value in values if value}


def test_tokens_are_noted_as_they_come() -> None:
    """In any steps; the prompt counts for the repetition penalty only; there are more ids than a table begins with."""
    prompt, output = list(range(100, 140)), [3, 100, 3, 7, 3, 139, *range(200, 230)]
    s = SamplingParams(50, repetition_penalty=1.1, frequency_penalty=0.2)
    adjustments = Adjustments(s, EOS, 1000)
    for length in (0, 1, 1, 4, 5, len(output)):
        adjustments.update(prompt + output[:length], len(prompt))
        assert set(noted(adjustments, SEEN)) == {*prompt, *output[:length]}
        assert noted(adjustments, COUNT) == Counter(output[:length])
    assert len(set(adjustments.ids.tolist())) == len(adjustments.ids)


def test_a_prompt_is_not_noted_where_only_the_output_counts() -> None:
    adjustments = Adjustments(SamplingParams(50, presence_penalty=0.2), EOS, 1000)
    adjustments.update([5] * 3000 + [7], 3000)
    assert adjustments.ids.tolist() == [7]


def test_bias_and_ends_are_there_from_the_start() -> None:
    s = SamplingParams(50, logit_bias={9: 1.5, 4: -2.0}, min_tokens=3, stop_token_ids=(4, 8, 5000))
    adjustments = Adjustments(s, EOS, 1000)
    adjustments.update([1, 2, 3], 3)
    assert noted(adjustments, BIAS) == {9: 1.5, 4: -2.0}
    assert set(noted(adjustments, END)) == {4, 8, 9}


def test_bad_words_are_those_that_the_output_has_begun() -> None:
    """A word that the prompt begins is not one of them; the same token may complete several."""
    s = SamplingParams(50, bad_words=((4,), (1, 2, 9), (2, 9), (2, 4), (3, 8)))
    adjustments = Adjustments(s, EOS, 1000)
    prompt, output = [1, 2, 3], [2, 1, 2, 5, 3]
    for length, banned in ((0, {4}), (1, {4, 9}), (1, {4, 9}), (3, {4, 9}), (4, {4}), (5, {4, 8})):
        adjustments.update(prompt + output[:length], len(prompt))
        assert set(noted(adjustments, BANNED)) == banned
