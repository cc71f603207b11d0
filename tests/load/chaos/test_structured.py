"""The constrained requests of a chaos run, and the check of their answers."""

from __future__ import annotations

import json

import jsonschema
import pytest

from load.chaos.structured import PERSON, SHAPE, WEATHER, constrained, ended_by_themselves, error_in, is_constrained
from load.chaos.workload import requests
from services.client.sse import Call, Choice, StreamedAnswer

REQUESTS = {request.name: request for request in constrained(10)}
GOOD = {"name": "ada", "age": 36, "languages": ["Latin"], "member": True}


def answer(choice: Choice) -> StreamedAnswer:
    return StreamedAnswer({0: choice})


def text_of(change: dict[str, object]) -> str:
    return json.dumps(GOOD | change)


def test_a_third_of_the_requests_have_documents_and_a_tenth_have_tools() -> None:
    all = requests(10, 9, others=constrained(10))
    tools = sum("tools" in request.body for request in all)
    assert tools / len(all) == pytest.approx(0.1, abs=0.02)
    assert sum(map(is_constrained, all)) - tools == pytest.approx(len(all) / 3, abs=0.5)
    assert all[-1].body["logit_bias"] == {"9": -100}
    assert len({request.name for request in all}) == len(all)


@pytest.mark.parametrize("schema", [PERSON, SHAPE, WEATHER])
def test_schemas_are_schemas(schema: dict) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (text_of({}), ""),
        (text_of({"age": 200}), "200 is greater than the maximum of 150"),
        (text_of({"more": 1}), "Additional properties"),
        (text_of({})[:-1], "not JSON"),
    ],
)
def test_a_document_is_checked_by_its_schema_if_it_ended_by_itself(text: str, error: str) -> None:
    request = REQUESTS["person"]
    found = error_in(request, answer(Choice(text, finish_reason="stop")))
    assert error in found if error else not found
    assert not error_in(request, answer(Choice(text, finish_reason="length")))


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("date", "2024-02-29", "2024-02-29T"),
        ("colour", "blue", "blu"),
        ("shape, seeded", '{"kind": "circle", "radius": 5}', '{"kind": "circle", "points": []}'),
    ],
)
def test_other_constraints_are_checked(name: str, good: str, bad: str) -> None:
    request = REQUESTS[name]
    assert not error_in(request, answer(Choice(good, finish_reason="stop")))
    assert error_in(request, answer(Choice(bad, finish_reason="stop")))


CALL = Call("call_1", "get_weather", '{"city": "paris", "days": 3}')


@pytest.mark.parametrize(
    ("name", "choice", "error"),
    [
        ("tools", Choice(calls=[CALL], finish_reason="tool_calls"), ""),
        ("tools", Choice(calls=[CALL], finish_reason="stop"), "finish_reason 'stop' after calls"),
        ("tools", Choice("sunny", finish_reason="stop"), "no call, but 'sunny'"),
        ("tools", Choice(calls=[CALL, Call("b", "buy", "{}")], finish_reason="tool_calls"), "'buy' is called"),
        ("tools", Choice(calls=[Call("b", "get_weather", "{}")], finish_reason="tool_calls"), "required property"),
        ("one tool", Choice(calls=[CALL], finish_reason="tool_calls"), "'get_weather' is called"),
        ("tools", Choice(calls=[Call("b", "get_weather", '{"ci')], finish_reason="length"), ""),
    ],
)
def test_calls_are_checked_by_their_tools(name: str, choice: Choice, error: str) -> None:
    found = error_in(REQUESTS[name], answer(choice))
    assert error in found if error else not found


def test_only_constrained_answers_that_were_not_cut_are_documents() -> None:
    cut, whole = Choice(finish_reason="length"), Choice("{}", finish_reason="stop")
    assert ended_by_themselves(REQUESTS["person"], StreamedAnswer({0: cut, 1: whole})) == [whole]
    assert ended_by_themselves(requests(10, 9)[0], answer(whole)) == []
