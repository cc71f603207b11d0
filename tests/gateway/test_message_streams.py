"""A broken stream of a message resumes after its last event at another gateway, by the same POST or by GET."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from sse_client import RESUMABLE, Event, first, read

PATH = "/v1/messages"
SAY = [{"role": "user", "content": "SLOWhello né 🐳 STOP"}]
BODY: dict[str, Any] = {"messages": SAY, "max_tokens": 40, "stop_sequences": ["o né"], "stream": True}
STREAMS: dict[str, dict[str, Any]] = {
    "a bound": {"messages": SAY, "max_tokens": 16, "stream": True},
    "a stop sequence": BODY | {"stop_sequences": ["🐳 STO"]},
    "the end of the turn": {"messages": SAY, "max_tokens": 40, "stream": True, "system": "x"},
}


def text_of(events: list[Event]) -> str:
    said = [event.json() for event in events]
    return "".join(data["delta"]["text"] for data in said if data["type"] == "content_block_delta")


def others(events: list[Event]) -> list[Any]:
    return [event.json() for event in events if event.json()["type"] != "content_block_delta"]


@pytest.mark.parametrize("post", [False, True], ids=["GET", "POST"])
@pytest.mark.parametrize("name", STREAMS)
def test_after_every_event_at_another_gateway(http: httpx.Client, other: httpx.Client, name: str, post: bool) -> None:
    body = STREAMS[name]
    whole = read(http.post(PATH, json=body, headers=RESUMABLE))
    message = whole[0].json()["message"]["id"]
    assert [event.id for event in whole[:3]] == [f"{message}:{n}" for n in range(3)]
    assert whole[-1].id is None
    for index, event in enumerate(whole[:-1]):
        headers = {"Last-Event-ID": event.id or ""}
        if post:
            rest = read(other.post(PATH, json=body, headers=headers))
        else:
            rest = read(other.get(f"/v1/streams/{message}", headers=headers))
        assert text_of(whole[: index + 1]) + text_of(rest) == text_of(whole)
        assert others(rest) == others(whole[index + 1 :])
        assert rest[-2:-1] in ([], whole[-2:-1])
        ids = [said.id for said in [*whole[: index + 1], *rest[:-1]]]
        assert len(set(ids)) == len(ids)


def test_a_stream_broken_while_it_is_generated(http: httpx.Client, other: httpx.Client) -> None:
    body = STREAMS["a bound"]
    begun = first(http, PATH, body, 5, Orca_Resumable="true")
    message, id = begun[0].json()["message"]["id"], begun[-1].id or ""
    rest = read(other.get(f"/v1/streams/{message}", headers={"Last-Event-ID": id}))
    unbroken = read(http.post(PATH, json=body))
    assert text_of(begun) + text_of(rest) == text_of(unbroken)
    assert rest[-2].json() == unbroken[-2].json()
    again = read(other.get(f"/v1/streams/{message}"))
    assert [event.json() for event in again[:3]] == [event.json() for event in begun[:3]]


def test_a_plain_stream_has_no_ids(http: httpx.Client) -> None:
    assert all(event.id is None for event in read(http.post(PATH, json=BODY)))


def test_an_idempotency_key_follows_the_same_message(http: httpx.Client, other: httpx.Client) -> None:
    key = {"Idempotency-Key": "message-streams-1"}
    whole = read(http.post(PATH, json=BODY, headers=key))
    assert whole[0].id
    again = read(other.post(PATH, json=BODY, headers=key))
    assert (text_of(again), others(again)) == (text_of(whole), others(whole))
    made = other.post(PATH, json=BODY | {"stream": False}, headers=key).json()
    assert made["id"] == whole[0].json()["message"]["id"]
    assert made["content"][0]["text"] == text_of(whole)


@pytest.mark.parametrize(
    ("id", "status"),
    [
        ("nonsense", 400),
        ("msg_" + 32 * "0" + ":3", 404),
        ("{message}:3.4", 400),
        ("{message}:1000", 400),
        ("{message}:{beyond}", 400),
    ],
)
def test_a_wrong_position_is_an_error(http: httpx.Client, id: str, status: int) -> None:
    whole = read(http.post(PATH, json=BODY, headers=RESUMABLE))
    message, _, last = (whole[-2].id or "").partition(":")
    header = {"Last-Event-ID": id.format(message=message, beyond=int(last) + 1)}
    refused = http.post(PATH, json=BODY, headers=header)
    assert refused.status_code == status, refused.text
    assert refused.json()["type"] == "error"
    path = f"/v1/streams/{header['Last-Event-ID'].partition(':')[0]}"
    assert http.get(path, headers=header).status_code == status


def test_another_body_is_a_different_message(http: httpx.Client) -> None:
    whole = read(http.post(PATH, json=BODY, headers=RESUMABLE))
    header = {"Last-Event-ID": whole[3].id or ""}
    assert http.post(PATH, json=BODY | {"max_tokens": 9}, headers=header).status_code == 400
    assert http.post(PATH, json=BODY | {"stream": False}, headers=header).status_code == 400


def test_a_failure_within_a_stream_is_an_event(http: httpx.Client) -> None:
    body = BODY | {"messages": [{"role": "user", "content": "FAILabc"}]}
    streamed = http.post(PATH, json=body, headers={"x-request-id": "mine"})
    last = streamed.text.rstrip().split("\n\n")[-1].split("\n")
    assert last[0] == "event: error"
    told = json.loads(last[1].removeprefix("data: "))
    assert told["error"]["type"] == "api_error"
    assert "the prompt said so" in told["error"]["message"]
    assert told["request_id"] == streamed.headers["request-id"] == "mine"
    assert text_of(read(streamed)[:-1]) == "abc"
