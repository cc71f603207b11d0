"""Batches with the official client: lines get the same answers as requests over HTTP."""

from __future__ import annotations

import re
import time
from typing import Any

import httpx
import openai
import openai_document
import pytest
from batch_client import CHAT, COMPLETIONS, RESPONSES, create, ended, entries, jsonl, line, slow, until
from stack import Stack
from waiting import wait_until

from gateway.batches import run, runner
from gateway.errors import ApiError, Kind
from gateway.pool_client.following import Generations


def test_a_tenant_sees_only_its_own(alice: openai.OpenAI, bob: openai.OpenAI) -> None:
    batch = ended(alice, create(alice, jsonl([line("a", {"prompt": "x", "max_tokens": 1})])))
    for look in (
        lambda: bob.files.retrieve(batch.input_file_id),
        lambda: bob.files.content(batch.output_file_id or ""),
        lambda: bob.files.delete(batch.input_file_id),
        lambda: bob.batches.retrieve(batch.id),
        lambda: bob.batches.cancel(batch.id),
        lambda: bob.batches.create(input_file_id=batch.input_file_id, endpoint=COMPLETIONS, completion_window="24h"),
    ):
        with pytest.raises(openai.NotFoundError):
            look()
    assert batch.id not in [each.id for each in bob.batches.list()]
    assert batch.id in [each.id for each in alice.batches.list(limit=1)]


BODIES: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "hello", "max_tokens": 5, "logprobs": 2},
    CHAT: {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 6, "n": 2},
    RESPONSES: {"input": "hi there", "max_output_tokens": 7},
}


def test_a_file_as_windows_programs_write_it(alice: openai.OpenAI) -> None:
    """It begins with a byte order mark, and its lines end with CR LF."""
    lines = jsonl([line(id, {"prompt": id, "max_tokens": 1}) for id in "ab"]).replace(b"\n", b"\r\n")
    content = b"\xef\xbb\xbf" + lines + b"\r\n"
    batch = ended(alice, create(alice, content))
    assert [entry["custom_id"] for entry in entries(alice, batch.output_file_id)] == ["a", "b"]
    assert alice.files.content(batch.input_file_id).content == content
    batch = ended(alice, create(alice, lines[:20] + b"\xef\xbb\xbf" + lines[20:]))
    assert batch.status == "failed"


def without_ids(body: dict[str, Any]) -> dict[str, Any]:
    """An answer without the fields that differ each time."""
    body = {k: v for k, v in body.items() if k not in ("id", "created", "created_at")}
    for item in body.get("output", []):
        item.pop("id")
    return body


@pytest.mark.parametrize("url", BODIES)
def test_lines_have_the_same_answers_as_over_http(alice: openai.OpenAI, served: Stack, url: str) -> None:
    headers = {"Authorization": "Bearer key-of-alice"}
    bodies = {
        "right": BODIES[url],
        "unknown field": BODIES[url] | {"nonsense": 1},
        "other model": BODIES[url] | {"model": "other"},
        "right again": BODIES[url] | {"temperature": 0, "model": "tiny"},
        "empty": {},
    }
    batch = create(alice, jsonl([line(id, body, url) for id, body in bodies.items()]), url, metadata={"a": "b"})
    batch = ended(alice, batch)
    assert batch.status == "completed"
    assert batch.metadata == {"a": "b"}
    assert batch.request_counts is not None
    assert batch.request_counts.to_dict() == {"total": 5, "completed": 2, "failed": 3}
    output, errors = entries(alice, batch.output_file_id), entries(alice, batch.error_file_id)
    assert [entry["custom_id"] for entry in output] == ["right", "right again"]
    assert [entry["custom_id"] for entry in errors] == ["unknown field", "other model", "empty"]
    for entry in output + errors:
        plain = httpx.post(served.url + url, json=bodies[entry["custom_id"]], headers=headers)
        assert entry["error"] is None
        assert entry["response"]["status_code"] == plain.status_code
        assert without_ids(entry["response"]["body"]) == without_ids(plain.json())
    raw = httpx.get(f"{served.url}/v1/batches/{batch.id}", headers=headers).json()
    openai_document.check("Batch", {name: value for name, value in raw.items() if value is not None})
    assert alice.files.retrieve(batch.output_file_id or "").purpose == "batch_output"


def test_a_request_that_fails_and_one_that_streams_are_errors(alice: openai.OpenAI) -> None:
    lines = [
        line("fails", {"prompt": "FAILabc", "max_tokens": 9}),
        line("streams", {"prompt": "a", "stream": True}),
        line("too long", {"prompt": "a" * 100_000}),
    ]
    batch = ended(alice, create(alice, jsonl(lines)))
    assert (batch.status, batch.output_file_id) == ("completed", None)
    told = {e["custom_id"]: e["response"] for e in entries(alice, batch.error_file_id)}
    assert {id: response["status_code"] for id, response in told.items()} == {
        "fails": 500,
        "streams": 400,
        "too long": 413,
    }
    assert told["fails"]["body"]["error"]["code"] == "generation_failed"
    assert told["streams"]["body"]["error"]["param"] == "stream"


WRONG: dict[str, tuple[bytes, str, int | None]] = {
    "no lines": (b"\n \n", "empty_file", None),
    "no JSON": (jsonl([line("a", {})]) + b"{no\n", "invalid_json_line", 2),
    "no object": (b"[]\n", "invalid_json_line", 1),
    "no id": (jsonl([{k: v for k, v in line("a", {}).items() if k != "custom_id"}]), "missing_required_parameter", 1),
    "an id twice": (jsonl([line("a", {}), line("b", {}), line("a", {})]), "duplicate_custom_id", 3),
    "another method": (jsonl([line("a", {}) | {"method": "GET"}]), "invalid_method", 1),
    "another url": (jsonl([line("a", {}, CHAT)]), "mismatched_url", 1),
    "too many": (jsonl([line(str(i), {}) for i in range(501)]), "too_many_lines", 501),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_input_that_is_wrong_fails_the_batch(alice: openai.OpenAI, name: str) -> None:
    content, code, number = WRONG[name]
    batch = ended(alice, create(alice, content))
    assert (batch.status, batch.output_file_id, batch.error_file_id) == ("failed", None, None)
    assert batch.failed_at is not None
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert [(error.code, error.line) for error in batch.errors.data] == [(code, number)]


def test_all_lines_of_a_large_batch_are_answered_once(alice: openai.OpenAI) -> None:
    lines = [line(f"line {i}", {"prompt": f"{i}.", "max_tokens": len(f"{i}.")}) for i in range(500)]
    batch = create(alice, jsonl(lines))
    alice.files.delete(batch.input_file_id)
    batch = ended(alice, batch)
    output = entries(alice, batch.output_file_id)
    assert [e["custom_id"] for e in output] == [each["custom_id"] for each in lines]
    assert [e["response"]["body"]["choices"][0]["text"] for e in output] == [each["body"]["prompt"] for each in lines]
    assert (batch.error_file_id, batch.request_counts and batch.request_counts.completed) == (None, 500)


def test_a_cancelled_batch_keeps_its_answers(alice: openai.OpenAI, served: Stack) -> None:
    batch = create(alice, slow(200))
    until(alice, batch.id, lambda b: b.request_counts is not None and b.request_counts.completed > 0)
    assert alice.batches.cancel(batch.id).status == "cancelling"
    batch = ended(alice, batch)
    assert batch.status == "cancelled"
    assert batch.cancelled_at is not None
    assert alice.batches.cancel(batch.id).status == "cancelled"
    output, errors = entries(alice, batch.output_file_id), entries(alice, batch.error_file_id)
    assert len(output) + len(errors) == 200
    assert {e["custom_id"] for e in output + errors} == {f"line {i}" for i in range(200)}
    assert {(e["response"], e["error"]["code"]) for e in errors} == {(None, "batch_cancelled")}
    assert served.call(served.pool.overview()).waiting == 0


def test_an_expired_batch_names_the_lines_that_it_did_not_reach(alice: openai.OpenAI) -> None:
    batch = ended(alice, create(alice, slow(200), completion_window="5s"))
    assert batch.status == "expired"
    assert batch.expired_at is not None
    output, errors = entries(alice, batch.output_file_id), entries(alice, batch.error_file_id)
    assert output
    assert len(output) + len(errors) == 200
    assert {e["error"]["code"] for e in errors} == {"batch_expired"}


def test_a_batch_that_has_ended_cannot_be_cancelled(alice: openai.OpenAI) -> None:
    batch = ended(alice, create(alice, jsonl([line("a", {"prompt": "x", "max_tokens": 1})])))
    with pytest.raises(openai.BadRequestError, match="completed"):
        alice.batches.cancel(batch.id)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"endpoint": "/v1/moderations"}, "endpoint"),
        ({"completion_window": "soon"}, "completion_window"),
        ({"completion_window": "31d"}, "completion_window"),
        ({"metadata": {"a": "b" * 513}}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 10}}, "output_expires_after.seconds"),
    ],
    ids=str,
)
def test_errors_name_a_wrong_field(alice: openai.OpenAI, fields: dict[str, Any], named: str) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        create(alice, b"x", **fields)
    assert (error.value.param or "").startswith(named)


def test_lines_are_counted(alice: openai.OpenAI, served: Stack) -> None:
    def counted() -> list[float]:
        text = httpx.get(served.url + "/metrics").text
        found = [re.search(rf'orca:batch_lines_total{{.*file="{f}".*}} (.*)', text) for f in ("output", "error")]
        return [float(match[1]) if match else 0.0 for match in found]

    def settled() -> bool:
        """Whether heartbeats, one each second, have delivered the counts of earlier tests."""
        first = counted()
        time.sleep(1.5)
        return first == counted()

    wait_until(settled)
    before = counted()
    ended(alice, create(alice, jsonl([line("a", {"prompt": "x"}), line("b", {"prompt": "x"}), line("c", {})])))
    wait_until(lambda: [now - then for now, then in zip(counted(), before, strict=True)] == [2.0, 1.0])


def test_a_line_waits_while_too_many_reads_wait(alice: openai.OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[str] = []
    check = Generations._check_followers

    def refuse_the_first(generations: Generations, request: str) -> None:
        if not refused:
            refused.append(request)
            raise ApiError(Kind.TOO_MANY_FOLLOWERS, "too many")
        check(generations, request)

    monkeypatch.setattr(Generations, "_check_followers", refuse_the_first)
    monkeypatch.setattr(run, "PAUSE", 0.05)
    monkeypatch.setattr(runner, "PERIOD", 0.05)
    counts = ended(alice, create(alice, jsonl([line("a", {"prompt": "x", "max_tokens": 1})]))).request_counts
    assert counts is not None
    assert (len(refused), counts.completed) == (1, 1)


def test_batches_of_one_tenant_do_not_keep_those_of_another_from_beginning(
    alice: openai.OpenAI, bob: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "MAX_RUNNING", 1)
    monkeypatch.setattr(runner, "PERIOD", 0.05)
    lines = jsonl([line("a", {"prompt": "SLOW", "max_tokens": 380, "ignore_eos": True})])
    batches = [(alice, create(alice, lines)), (alice, create(alice, lines)), (bob, create(bob, lines))]
    try:
        for client, batch in (batches[0], batches[2]):
            until(client, batch.id, lambda batch: batch.status == "in_progress")
        assert alice.batches.retrieve(batches[1][1].id).status == "validating"
    finally:
        for client, batch in batches:
            client.batches.cancel(batch.id)
        for client, batch in batches:
            ended(client, batch)
