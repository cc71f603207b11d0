"""What an answer to a schema is counted as."""

from __future__ import annotations

import pytest

from load.schemas.answers import CUT, ENDED, FAILED, INVALID, REFUSED, UNJUDGED, Reply, body, reply_of, report
from load.schemas.suites import Case

CASE = Case("", {"type": "integer"})


def answer(text: str, reason: str = "stop") -> dict:
    return {"choices": [{"message": {"content": text}, "finish_reason": reason}]}


@pytest.mark.parametrize(
    ("status", "content", "outcome"),
    [
        (200, answer("12"), ENDED),
        (200, answer('"a"'), INVALID),
        (200, answer("1,"), INVALID),
        (200, answer("1", "length"), CUT),
        (200, answer("1", "tool_calls"), FAILED),
        (400, {"error": {"message": "no"}}, REFUSED),
        (500, {"error": {"message": "no"}}, FAILED),
    ],
)
def test_replies_are_judged(status: int, content: dict, outcome: str) -> None:
    assert reply_of(CASE, status, content).outcome == outcome


def test_an_old_draft_is_validated_as_such() -> None:
    old = {"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 3, "exclusiveMinimum": True}
    assert reply_of(Case("", old), 200, answer("3")).outcome == INVALID
    assert reply_of(Case("", old), 200, answer("4")).outcome == ENDED


def test_an_answer_that_jsonschema_cannot_judge_is_counted_apart() -> None:
    for schema in ({"pattern": r"\p{Letter}"}, {"$ref": "http://localhost/a.json"}):
        assert reply_of(Case("", schema), 200, answer('"a"')).outcome == UNJUDGED


def test_the_report_counts_groups_and_reasons() -> None:
    remote = Case("", {"$ref": "http://localhost/a.json"})
    replies = [Reply(CASE, ENDED), Reply(Case("", True), CUT), Reply(remote, REFUSED, 'Unimplemented keys: ["not"]')]
    lines = report(replies).splitlines()
    assert "| others | 1 | 1 | 0 | 0 | 0 | 0 | 0 |" in lines
    assert "| boolean or empty | 1 | 0 | 0 | 0 | 1 | 0 | 0 |" in lines
    assert "| refers to another document | 1 | 0 | 0 | 0 | 0 | 1 | 0 |" in lines
    assert "| all | 3 | 1 | 0 | 0 | 1 | 1 | 0 |" in lines
    assert lines[-1] == "| keyword not | 1 |"


def test_the_request_has_the_schema() -> None:
    sent = body(CASE, 64, 3)
    assert sent["response_format"]["json_schema"]["schema"] == CASE.schema
    assert (sent["max_tokens"], sent["seed"], sent["temperature"]) == (64, 3, 1)
