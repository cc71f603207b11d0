"""What is drafted: what followed the longest suffix before, where more tokens per second are expected from it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.messages import Claim, Commit, End, EngineFigures, IterationResult, Logprobs
from services.requests import SamplingParams
from services.scheduling import Knobs, Scheduler, WarmUpTime
from services.scheduling.drafting import PLACES, REMEMBERED, RUN, Drafting, RecentTexts, Text
from services.text import TextTables

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
    drafting, text = Drafting(Text(prompt, output), output), prompt + output
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
    growing = Drafting(Text([1, 2, 3, 1, 2], output), output)
    for piece in pieces:
        output += piece
        whole = Text([1, 2, 3, 1, 2], list(output))
        assert growing.find(MOST) == Drafting(whole, list(output)).find(MOST)


def run(
    share: float, fixed: float, per_token: float, requests: int = 1, new: int = 200, most: int = MOST, since: int = 0
) -> tuple[float, int]:
    """Return the seconds of an engine with these costs that decodes requests whose guesses are right with probability
    `share` from their token `since` on, and the number of guesses."""
    drawn, seconds, guesses = random.Random(1), 0.0, 0
    scheduler = Scheduler(
        epoch="e",
        figures=EngineFigures("m", 4096, 4096, 16, 100, "n", verifies_drafts=True),
        knobs=Knobs(num_speculative_tokens=most, admission="on_demand"),
        warm_up=WarmUpTime(64, fixed + 64 * per_token),
    )
    scheduler.add([Claim(str(i), float(i), [7] * 8, [], SamplingParams(new)) for i in range(requests)])

    def guess(drafting: Drafting, most: int) -> list[int]:
        likely = share if len(drafting._output) >= since else 0.0
        return [1 if drawn.random() < likely else 0 for _ in range(most)]

    with patch.object(Drafting, "find", guess):
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


@settings(max_examples=30)
@given(st.sampled_from([1, 8, 32]), st.floats(0.0005, 0.5), st.sampled_from([60, 200]))
def test_drafts_that_are_never_right_cost_little(requests: int, per_token: float, new: int) -> None:
    """Whatever a token costs beside an iteration."""
    without, _ = run(0.0, 1.0, per_token, requests, new, most=0)
    assert run(0.0, 1.0, per_token, requests, new, most=16)[0] <= without / 0.97


def test_drafts_that_are_right_are_worth_it_where_tokens_cost_little() -> None:
    without, _ = run(0.9, 0.04, 0.002, most=0)
    assert run(0.9, 0.04, 0.002, most=16)[0] < without / 3
    assert run(1.0, 0.04, 0.002, most=16)[0] < without / 5


@pytest.mark.parametrize("since", [0, 100])
def test_guesses_that_are_not_expected_to_gain_are_tried_until_they_do(since: int) -> None:
    """In a batch of eight, a guess of which nothing is known is not worth its cost, and neither are those of a request
    whose guesses were wrong."""
    without, _ = run(0.0, 0.0075, 0.00125, 8, 600, most=0)
    assert run(1.0, 0.0075, 0.00125, 8, 600, 16, since)[0] < without / 1.25
    assert run(0.9, 0.0075, 0.00125, 8, 600, 16, since)[0] < without / 1.05


def test_a_request_begins_with_what_its_tenant_has_learned() -> None:
    scheduler = Scheduler(
        epoch="e",
        figures=EngineFigures("m", 4096, 4096, 16, 100, "n", verifies_drafts=True),
        knobs=Knobs(num_speculative_tokens=MOST),
    )
    scheduler.add([Claim(id, 0.0, PROMPT, [], SamplingParams(9), tenant=id[0]) for id in ("a1", "a2", "b1")])
    assert scheduler._drafter
    first, second, other = (scheduler._drafter.of(entry) for entry in scheduler._entries.values())
    before = other.share
    for _ in range(20):
        first.learn(4, 4)
    assert before < second.share < first.share
    for _ in range(20):
        second.learn(0, 4)
    assert second.share < before == other.share
    assert second.share < first.share


def test_hardly_anything_is_drafted_where_tokens_cost_as_much_together_as_one_after_another() -> None:
    _, guesses = run(0.6, 0.0, 0.01, requests=8)
    assert guesses < 0.02 * 8 * 200  # some, before the costs are known


def drafts_of(
    claim: Claim,
    before: Claim,
    answer: list[int],
    between: Callable[[Scheduler], None] = lambda _: None,
    within: Callable[[Scheduler], None] = lambda _: None,
) -> list[list[int]]:
    """Return the drafts of a request that gets the tokens of `answer` after `before` got them. `between` is called
    between the two, and `within` after the second's first draft."""
    scheduler = Scheduler(
        epoch="e",
        figures=EngineFigures("m", 4096, 4096, 16, 100, "n", verifies_drafts=True),
        knobs=Knobs(num_speculative_tokens=MOST),
        warm_up=WarmUpTime(64, 1.0),
    )
    drafts: list[list[int]] = []
    for one in (before, claim):
        scheduler.add([one])
        drafts = []
        outputs: list[int] = []
        while iteration := scheduler.select():
            drafts.append(iteration.drafts.get(one.id, []))
            at = len(outputs)
            right = next((i for i, t in enumerate(drafts[-1]) if t != answer[at + i]), len(drafts[-1]))
            outputs += answer[at : at + right + 1]
            more = {one.id: answer[at + 1 : at + right + 1]} if right else {}
            scheduler.update(IterationResult("e", iteration.step, {one.id: answer[at]}, elapsed=1.0, more=more))
            scheduler.take_commits()
            if one is claim and any(drafts):
                within(scheduler)
        if one is before:
            between(scheduler)
    return drafts


PROMPT, ANSWER = [1, 2, 3, 4, 5], [*range(10, 40)]
FIRST = Claim("0", 0.0, PROMPT, [], SamplingParams(len(ANSWER)), remember=True)
SECOND = Claim("1", 1.0, [6, *PROMPT], [], SamplingParams(len(ANSWER)))


def test_a_text_of_the_tenant_is_repeated() -> None:
    drafts = drafts_of(SECOND, FIRST, ANSWER)
    assert len(drafts) < len(ANSWER) / 2
    assert all(draft == ANSWER[ANSWER.index(draft[0]) :][: len(draft)] for draft in drafts if draft)


OTHERS = {
    "another tenant": (replace(FIRST, tenant="other"), None),
    "another salt": (replace(FIRST, sampling=replace(FIRST.sampling, cache_salt="s")), None),
    "not to be remembered": (replace(FIRST, remember=False), None),
    "forgotten": (FIRST, lambda scheduler: scheduler.forget(["0"])),
    "of an uncertain pool": (FIRST, lambda scheduler: scheduler.forget(None)),
    "another scheduler's": (FIRST, lambda scheduler: scheduler.drop(["0"])),
}


@pytest.mark.parametrize(("before", "between"), OTHERS.values(), ids=OTHERS)
def test_other_texts_are_not_repeated(before: Claim, between: Callable[[Scheduler], None] | None) -> None:
    assert not any(drafts_of(SECOND, before, ANSWER, between or (lambda _: None)))


def test_a_text_that_is_forgotten_while_it_is_repeated_is_not_repeated_any_more() -> None:
    drafts = drafts_of(SECOND, FIRST, ANSWER, within=lambda scheduler: scheduler.forget(["0"]))
    assert sum(map(bool, drafts)) == 1


@given(st.lists(texts, min_size=1, max_size=8), texts, st.integers(1, MOST))
def test_a_draft_from_recent_texts_follows_the_longest_suffix_there(
    others: list[list[int]], prompt: list[int], most: int
) -> None:
    recent = RecentTexts()
    for i, other in enumerate(others):
        recent.add(str(i), ("t", ""), other, []).grow()
    drafting = Drafting(Text(prompt, []), [], recent.runs(("t", "")))
    if draft := drafting.find(most):
        found = [
            other[place : place + most]
            for other in [*others, prompt + draft]
            for place in range(RUN, len(other))
            if other[place - RUN : place] == prompt[-RUN:]
        ]
        assert draft in found
    recent.clear()
    assert recent.runs(("t", "")) is None


def test_the_oldest_texts_are_forgotten_for_newer_ones() -> None:
    recent = RecentTexts()
    key, other = ("t", ""), ("u", "")
    recent.add("first", other, [*range(9)], []).grow()
    for first in range(0, 20 * REMEMBERED // 8, REMEMBERED // 8):
        recent.add(str(first), key, [*range(first, first + REMEMBERED // 8)], [])
    assert recent.runs(other) is None
    assert recent.runs(key) is not None
    recent.add("long", ("v", ""), [0] * (REMEMBERED // 8 + 1), [])
    assert recent.runs(("v", "")) is None


class Name(str):
    """Counts how often names are compared."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)


def test_to_forget_a_text_takes_no_longer_the_more_there_are() -> None:
    recent, count = RecentTexts(), 400
    for i in range(count):
        recent.add(str(i), ("t", Name(f"salt {i}")), [1, 2, 3], [])
    Name.compared = 0
    recent.clear()
    assert recent.runs(("t", Name("salt 7"))) is None
    assert Name.compared <= 10 * count


@given(st.lists(st.tuples(st.integers(0, 3), texts, texts, st.booleans(), st.integers(0, 9)), max_size=20))
def test_the_tokens_of_recent_texts_are_counted(added: list[tuple[int, list[int], list[int], bool, int]]) -> None:
    """Texts are added, grow and are forgotten in any order; some are added again."""
    recent, kept = RecentTexts(), dict[str, tuple[str, Text]]()
    for salt, prompt, more, grows, forgotten in added:
        output: list[int] = []
        id = str(len(prompt) % 10)
        kept[id] = str(salt), recent.add(id, ("t", str(salt)), prompt, output)
        output += more
        if grows:
            kept[id][1].grow()
        recent.forget(str(forgotten))
        kept.pop(str(forgotten), None)
        assert recent.length == sum(len(text.tokens) for _, text in kept.values())
        for each in map(str, range(4)):
            assert (recent.runs(("t", each)) is None) == (each not in {salt for salt, _ in kept.values()})


def test_tokens_that_a_grammar_forces_are_asked_for_and_drafted() -> None:
    scheduler = Scheduler(
        epoch="e",
        figures=EngineFigures("m", 4096, 4096, 16, 100, "n", verifies_drafts=True),
        knobs=Knobs(num_speculative_tokens=MOST),
        warm_up=WarmUpTime(64, 1.0),
    )
    scheduler.add([SECOND])
    first = scheduler.select()
    assert first
    assert first.wants_forced
    scheduler.update(IterationResult("e", first.step, {"1": 10}, elapsed=1.0, forced={"1": [7, 8, 9]}))
    second = scheduler.select()
    assert second
    assert second.drafts == {"1": [7, 8, 9]}


def test_a_guest_with_one_token_left_keeps_its_blocks_when_its_draft_gets_more() -> None:
    scheduler = Scheduler(
        epoch="e",
        figures=EngineFigures("m", 4096, 4096, 4, 100, "n", verifies_drafts=True),
        knobs=Knobs(max_batch_size=2, admission="on_demand", num_speculative_tokens=8),
        warm_up=WarmUpTime(64, 1.0),
    )
    scheduler.add([Claim(str(i), float(i), [7], [], SamplingParams(50), tenant="a") for i in range(2)])
    assert scheduler.select()
    scheduler.add([Claim("guest", 2.0, [7], [], SamplingParams(50), tenant="b")])
    scheduler.update(IterationResult("e", 1, {"0": 1, "1": 1}, elapsed=1.0))
    joined = scheduler.select()
    assert joined
    assert "guest" in joined.scheduled
    assert len(joined.new_blocks["guest"]) > 1


PIECES = TextTables([b"", b"", b"", b"", b"END", b" the", b"E", b"ND", b"N", b"D."], frozenset({2}))


def answer_of(sampling: SamplingParams, tokens: list[int], guesses: list[int], most: int) -> list[Commit]:
    """Return the commits of a request whose engine samples `tokens` again and again. The numbers of `guesses` that are
    right, in turn, are followed by one that is wrong; the last guesses are beyond any end."""
    scheduler = Scheduler(
        epoch="e",
        figures=EngineFigures("m", 60, 64, 4, 10, "n", verifies_drafts=True),
        knobs=Knobs(num_speculative_tokens=most, admission="on_demand"),
        eos_token_ids=[2],
        text=PIECES,
        warm_up=WarmUpTime(64, 1.0),
    )
    coming, right = cycle(tokens), cycle(guesses)

    def guess(drafting: Drafting, most: int) -> list[int]:
        rest = [tokens[i % len(tokens)] for i in range(len(drafting._output), len(drafting._output) + most)]
        wrong = next(right)
        return [*rest[:wrong], *((token + 1) % 10 for token in rest[wrong : wrong + 1]), *rest[wrong + 1 :]]

    scheduler.add([Claim("r", 0.0, [7] * 5, [], sampling)])
    commits: list[Commit] = []
    with patch.object(Drafting, "find", guess):
        while iteration := scheduler.select():
            sampled = [next(coming)]
            for token in iteration.drafts.get("r", []):
                if token != sampled[-1]:
                    break
                sampled.append(next(coming))
            logprobs = [Logprobs(float(-token), []) for token in sampled]
            result = IterationResult("e", iteration.step, {"r": sampled[0]}, {"r": logprobs[0]}, elapsed=1.0)
            more, scores = ({"r": found[1:]} if found[1:] else {} for found in (sampled, logprobs))
            scheduler.update(replace(result, more=more, more_logprobs=scores))
            commits += scheduler.take_commits()
    assert scheduler.blocks.held == 0
    return commits


def whole(commits: list[Commit]) -> tuple[list[int], list[Logprobs], list[End | None]]:
    tokens = [token for commit in commits for token in commit.tokens]
    logprobs = [one for commit in commits for one in commit.logprobs or []]
    return tokens, logprobs, [commit.end and replace(commit.end, at=0.0) for commit in commits if commit.end]


@given(
    st.lists(st.integers(4, 9) | st.just(2), min_size=1, max_size=12),
    st.lists(st.integers(0, MOST + 1), min_size=1, max_size=8),
    st.builds(
        SamplingParams,
        st.integers(1, 80),
        min_tokens=st.integers(0, 9),
        stop=st.sampled_from([(), ("END",), ("D", "the EN")]),
        stop_token_ids=st.sampled_from([(), (6,), (2, 9)]),
        ignore_eos=st.booleans(),
        logprobs=st.sampled_from([None, 0]),
    ),
)
def test_a_request_ends_in_the_middle_of_a_draft_as_without_it(
    tokens: list[int], guesses: list[int], sampling: SamplingParams
) -> None:
    """By EOS, a stop token, a stop string, its length or the model's, none of them before `min_tokens`."""
    without, given = (answer_of(sampling, tokens, guesses, most) for most in (0, MOST))
    assert whole(given) == whole(without)
    assert len(given) <= len(without)
