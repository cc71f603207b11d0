"""What is drafted: what followed the longest suffix before, where more tokens per second are expected from it."""

from __future__ import annotations

import random
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.messages import Claim, EngineFigures, IterationResult
from services.requests import SamplingParams
from services.scheduling import Knobs, Scheduler, WarmUpTime
from services.scheduling.drafting import PLACES, RUN, Drafting

MOST = 6
texts = st.lists(st.integers(0, 3), min_size=1, max_size=60)


def suffix(text: list[int], end: int, place: int) -> int:
    """Return how many tokens before `end` equal those before `place`."""
    length = 0
    while length < place and text[place - 1 - length] == text[end - 1 - length]:
        length += 1
    return length


@given(texts, texts, st.integers(0, MOST))
def test_a_draft_is_what_followed_the_longest_suffix(prompt: list[int], output: list[int], most: int) -> None:
    drafting, text = Drafting(prompt, output), prompt + output
    draft, end = drafting.find(most), len(text)
    places = [place for place in range(RUN, end) if text[place - RUN : place] == text[end - RUN :]][-PLACES:]
    if end <= RUN or not places:
        assert draft == []
        return
    best = max(min(16, suffix(text, end, place)) for place in places)
    longest = [place for place in places if min(16, suffix(text, end, place)) == best]
    place = longest[-1]  # the last one
    assert draft == [text[place + i % (end - place)] for i in range(most)]


@given(st.lists(texts, max_size=8))
def test_a_text_that_grows_is_indexed_as_one_that_is_whole(pieces: list[list[int]]) -> None:
    output: list[int] = []
    growing = Drafting([1, 2, 3, 1, 2], output)
    for piece in pieces:
        output += piece
        assert growing.find(MOST) == Drafting([1, 2, 3, 1, 2], list(output)).find(MOST)


def run(
    share: float, fixed: float, per_token: float, requests: int = 1, new: int = 200, most: int = MOST
) -> tuple[float, int]:
    """Return the seconds of an engine with these costs that decodes requests whose guesses are right with probability
    `share`, and the number of guesses."""
    drawn, seconds, guesses = random.Random(1), 0.0, 0
    scheduler = Scheduler(
        epoch="e",
        figures=EngineFigures("m", 4096, 4096, 16, 100, "n", verifies_drafts=True),
        knobs=Knobs(num_speculative_tokens=most, admission="on_demand"),
        warm_up=WarmUpTime(64, fixed + 64 * per_token),
    )
    scheduler.add([Claim(str(i), float(i), [7] * 8, [], SamplingParams(new)) for i in range(requests)])
    with patch.object(Drafting, "find", lambda _, most: [1 if drawn.random() < share else 0 for _ in range(most)]):
        while iteration := scheduler.select():
            elapsed = fixed + per_token * iteration.num_tokens
            seconds += elapsed
            guesses += sum(map(len, iteration.drafts.values()))
            more = {id: [1] * next((i for i, t in enumerate(d) if not t), len(d)) for id, d in iteration.drafts.items()}
            scheduler.update(
                IterationResult("e", iteration.step, dict.fromkeys(iteration.scheduled, 1), elapsed=elapsed, more=more)
            )
            scheduler.take_commits()
    return seconds, guesses


@pytest.mark.parametrize("requests", [1, 8, 32])
def test_drafts_that_are_never_right_cost_little(requests: int) -> None:
    for fixed, per_token in [(0.01, 0.003), (0.04, 0.004), (0.01, 0.00001)]:
        without, _ = run(0.0, fixed, per_token, requests, most=0)
        assert run(0.0, fixed, per_token, requests)[0] <= without / 0.97


def test_drafts_that_are_right_are_worth_it_where_tokens_cost_little() -> None:
    without, _ = run(0.9, 0.04, 0.002, most=0)
    assert run(0.9, 0.04, 0.002, most=16)[0] < without / 3
    assert run(1.0, 0.04, 0.002, most=16)[0] < without / 5


def test_hardly_anything_is_drafted_where_tokens_cost_as_much_together_as_one_after_another() -> None:
    _, guesses = run(0.6, 0.0, 0.01, requests=8)
    assert guesses < 0.02 * 8 * 200  # some, before the costs are known
