"""Recovery times, the plan of faults, and the comparison of answers."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from load.chaos.faults import FAULTS, plan
from load.chaos.grounds import Injection
from load.chaos.report import faults_table
from load.chaos.streams import Outcome, Recovery, recovery
from load.chaos.workload import deviation, difference, paper_prompts, poison, requests
from load.trace import HttpRequest
from services.client.sse import Call, Choice, StreamedAnswer

REQUEST = HttpRequest("/", {}, "request")


def outcome(*arrivals: float, began: float = 0.0, end: float = 99.0) -> Outcome:
    return Outcome(REQUEST, 0, began, arrivals=list(arrivals), end=end)


def test_recovery_is_where_the_silence_after_the_fault_ended() -> None:
    two = [outcome(9.9, 10.1, 12.0, 12.5, 20.0), outcome(9.8, 10.0, 15.0, 15.1)]
    assert recovery(10.0, two) == Recovery(first=2.0, last=5.0)


def test_only_streams_that_were_open_count() -> None:
    others = [outcome(8.0, end=9.0), outcome(11.0, began=10.5), outcome(began=9.0)]
    assert recovery(10.0, others) is None
    assert recovery(10.0, [*others, outcome(9.0, 10.25, 10.5)]) == Recovery(0.25, 0.25)


def test_each_kind_has_a_row_except_faults_that_were_not_possible() -> None:
    told = [
        Injection("engine", 10.0, streams=5, documents=3),
        Injection("engine", 0.0, "no engine"),
        Injection("pool", 50.0),
    ]
    rows = faults_table(told, [outcome(9.0, 11.0)]).splitlines()[2:]
    assert rows == ["| engine | 1 | 5 | 3 | 1.0 | 1.0 | 1.0 | 1.0 |", "| pool | 1 | 0 | 0 |  |  |  |  |"]


def test_each_kind_comes_once_and_then_those_that_do_not_take_all() -> None:
    small = {name for name, fault in FAULTS.items() if not fault.takes_all}
    chosen = [fault.name for fault in plan(list(FAULTS.values()), len(FAULTS) + len(small), random.Random(1))]
    assert sorted(chosen) == sorted([*FAULTS, *small])
    assert set(chosen[: len(FAULTS)]) == set(FAULTS)
    assert len(plan(list(FAULTS.values()), 3, random.Random(1))) == 3
    assert plan([FAULTS["gcs"]], 5, random.Random(1)) == [FAULTS["gcs"]]


def test_the_ids_of_calls_are_those_of_one_request() -> None:
    one, other = (StreamedAnswer({0: Choice(calls=[Call(id, "f", "{}")])}) for id in ("a", "b"))
    assert not difference(one, other)


def answer() -> StreamedAnswer:
    return StreamedAnswer(
        {0: Choice("a", [1], [-0.5], "stop"), 1: Choice("b", [2], [-1.0], "length")}, completion_tokens=2
    )


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"text": "c"}, "choice 1: text 'c', expected 'b'"),
        ({"token_ids": [3]}, "choice 1: token_ids"),
        ({"finish_reason": "stop"}, "choice 1: finish_reason"),
        ({"calls": [Call("a", "f", "{}")]}, "choice 1: calls"),
        ({"logprobs": []}, "0 log probabilities, expected 1"),
        ({"logprobs": [-1.1]}, "log probability 0 differs by"),
    ],
)
def test_differences_from_the_undisturbed_answer(change: dict, told: str) -> None:
    got = answer()
    got.choices[1] = replace(got.choices[1], **change)
    assert told in difference(answer(), got)


def test_answers_equal_to_the_undisturbed_one() -> None:
    got = answer()
    got.choices[0].logprobs = [-0.50001]
    assert difference(answer(), got) == ""
    got.completion_tokens = 3
    assert "3 tokens counted" in difference(answer(), got)
    assert "choices [0]" in difference(answer(), StreamedAnswer({0: Choice()}, completion_tokens=2))


def test_the_workload_has_all_kinds_and_never_the_deadly_token() -> None:
    made = requests(32, never=9)
    assert len({request.name for request in made}) == len(made)
    assert all(request.body["logit_bias"] == {"9": -100} for request in made)
    keys = {key for request in made for key in request.body}
    assert {"n", "stop", "seed", "logprobs", "top_logprobs", "presence_penalty", "repetition_penalty"} <= keys
    assert {request.path for request in made} == {"/v1/completions", "/v1/chat/completions"}
    assert 9 in poison(9).body["prompt"]


def test_prompts_may_be_longer_and_then_begin_differently() -> None:
    made = requests(32, 9, [40, 200])
    texts = [request.body.get("prompt") or request.body["messages"][0]["content"] for request in made]
    firsts = [text if isinstance(text, str) else text[0] for text in texts]
    assert all(100 < len(text) < 250 for text in firsts[::2])
    assert all(700 < len(text) < 1000 for text in firsts[1::2])
    assert len({text[:7] for text in firsts}) == len(made)
    assert min(paper_prompts()) >= 32
    assert max(paper_prompts()) <= 512


def test_the_deviation_of_log_probabilities_is_the_largest_of_all_choices() -> None:
    other = answer()
    assert deviation(answer(), other) == 0.0
    other.choices[1] = replace(other.choices[1], logprobs=[-1.0 - 2**-20])
    assert deviation(answer(), other) == 2**-20
    del other.choices[1]
    assert deviation(answer(), other) == 0.0
