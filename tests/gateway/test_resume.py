"""A broken stream resumes after its last event at another gateway, without repetition or omission."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from frames import told
from marked import full
from sse_client import DONE, RESUMABLE, Event, events, first, read, some
from stack import Stack

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
KEY = "Idempotency-Key"
USAGE = {"stream_options": {"include_usage": True}}
SAY = [{"role": "user", "content": "SLOWhello né 🐳"}]

STREAMS: dict[str, tuple[str, dict[str, Any]]] = {
    "completion": (COMPLETIONS, {"prompt": "SLOWab né 🐳 ", "max_tokens": 40}),
    "two prompts, ids, usage": (
        COMPLETIONS,
        {"prompt": ["SLOWab ", "漢字"], "max_tokens": 16, "return_token_ids": True} | USAGE,
    ),
    "a stop string": (COMPLETIONS, {"prompt": "SLOW one two STOP three ", "max_tokens": 40, "stop": "o STOP thr"}),
    "completion logprobs": (COMPLETIONS, {"prompt": "SLOWé b", "max_tokens": 16, "logprobs": 2}),
    "echo": (COMPLETIONS, {"prompt": ["SLOWé b", "né"], "n": 2, "max_tokens": 16, "logprobs": 2, "echo": True}),
    "echo alone": (COMPLETIONS, {"prompt": "SLOWé b", "max_tokens": 0, "logprobs": 2, "echo": True} | USAGE),
    "chat": (CHAT, {"messages": SAY, "n": 2, "logprobs": True, "top_logprobs": 1} | USAGE),
    "chat with ids": (CHAT, {"messages": SAY, "return_token_ids": True}),
}


def check_whole(stream: list[Event], unbroken: list[Event]) -> None:
    """Asserts that both contain the same, and the first nothing twice."""
    *said, done = stream
    assert done == DONE
    ids = [event.id or "" for event in said]
    assert len(set(ids)) == len(ids)
    assert {id.partition(":")[0] for id in ids} == {event.json()["id"] for event in said}
    assert ids[-1].partition(":")[2] == (unbroken[-2].id or "").partition(":")[2]
    assert len({event.json()["created"] for event in said}) == 1
    chunks, expected = [e.json() for e in said], [e.json() for e in unbroken[:-1]]
    for choice in range(4):
        assert told(chunks, choice) == told(expected, choice)
    assert [c.get("usage") for c in chunks if not c["choices"]] == [
        c.get("usage") for c in expected if not c["choices"]
    ]


@pytest.mark.parametrize("post", [False, *full([True])], ids=["GET", "POST"])
@pytest.mark.parametrize("name", STREAMS)
def test_broken_again_and_again(http: httpx.Client, other: httpx.Client, name: str, post: bool) -> None:
    path, body = STREAMS[name]
    unbroken = read(http.post(path, json=body | {"stream": True}, headers=RESUMABLE))
    said = first(http, path, body, 2, Orca_Resumable="true")
    gateways = [other, http]
    while said[-1] != DONE:
        gateways.reverse()
        id = said[-1].id or ""
        method, where = ("POST", path) if post else ("GET", f"/v1/streams/{id.partition(':')[0]}")
        sent = body | {"stream": True} if post else None
        with gateways[0].stream(method, where, json=sent, headers={"Last-Event-ID": id}) as response:
            assert response.status_code == 200, response.read()
            again = some(response, 3)
        assert again
        said += again
    check_whole(said, unbroken)


def test_from_the_first_token(http: httpx.Client, other: httpx.Client) -> None:
    path, body = STREAMS["chat"]
    response = http.post(path, json=body | {"stream": True}, headers=RESUMABLE)
    again, whole = read(other.get(f"/v1/streams/{response.headers['orca-request']}")), read(response)
    check_whole(again, whole)
    assert again[0] == whole[0]


def test_two_clients_follow_at_a_time(http: httpx.Client, other: httpx.Client) -> None:
    path, body = STREAMS["completion"]
    with http.stream("POST", path, json=body | {"stream": True}, headers=RESUMABLE) as response:
        mine = events(response)
        one = next(mine)
        others = read(other.get(f"/v1/streams/{one.json()['id']}"))
        check_whole([one, *mine], others)
    check_whole(others, read(http.post(path, json=body | {"stream": True}, headers=RESUMABLE)))


# --- what the pool does not know any more --------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{}, {"seed": 7}, {"temperature": 0}])
def test_a_lost_request_with_a_key_is_computed_again(
    stack: Stack, http: httpx.Client, other: httpx.Client, fields: dict[str, Any]
) -> None:
    path, body = STREAMS["two prompts, ids, usage"]
    body, headers = body | fields | {"stream": True}, {KEY: f"lost {fields}"}
    unbroken = read(http.post(path, json=body, headers=headers))
    request = unbroken[0].json()["id"]
    for cut in (0, len(unbroken) // 2, len(unbroken) - 2):
        assert stack.call(stack.pool.delete(request))
        said, last = unbroken[: cut + 1], unbroken[cut].id or ""
        again = read(other.post(path, json=body, headers=headers | {"Last-Event-ID": last}))
        # `created` differs by a second
        assert [event.id for event in said + again if event.id][-1] == unbroken[-2].id
        assert {event.json()["id"] for event in again[:-1]} <= {request}
        assert again[-1] == DONE
        for choice in range(2):
            chunks = [event.json() for event in (said + again)[:-1]]
            assert told(chunks, choice) == told([e.json() for e in unbroken[:-1]], choice)


def test_a_lost_request_without_a_key_is_not_found(stack: Stack, http: httpx.Client) -> None:
    path, body = STREAMS["completion"]
    said = first(http, path, body | {"temperature": 0}, 2, Orca_Resumable="true")
    id = said[-1].id or ""
    assert stack.call(stack.pool.delete(said[0].json()["id"]))
    response = http.post(path, json=body | {"temperature": 0, "stream": True}, headers={"Last-Event-ID": id})
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "request_not_found"


def test_a_lost_request_with_another_key_or_body_is_not_found(stack: Stack, http: httpx.Client) -> None:
    path, body = STREAMS["completion"]
    said = first(http, path, body, 2, Idempotency_Key="kept")
    assert stack.call(stack.pool.delete(said[0].json()["id"]))
    for key, asked in (("another", body), ("kept", body | {"max_tokens": 41})):
        headers = {"Last-Event-ID": said[-1].id or "", KEY: key}
        response = http.post(path, json=asked | {"stream": True}, headers=headers)
        assert response.status_code == 404, response.text


def test_a_key_gives_the_same_seed_and_name(http: httpx.Client, stack: Stack) -> None:
    path, body = STREAMS["completion"]
    seeds = {}
    for key in ("one", "two", "one"):
        whole = http.post(path, json=body, headers={KEY: key}).json()
        assert stack.call(stack.pool.delete(whole["id"]))
        assert seeds.setdefault(key, whole["id"]) == whole["id"]
    assert seeds["one"] != seeds["two"]


# --- refused -------------------------------------------------------------------------------------------------------


def check_refused(response: httpx.Response, status: int, text: str) -> None:
    assert response.status_code == status, response.text
    assert text in response.json()["error"]["message"]


def test_a_position_after_the_end(http: httpx.Client, stack: Stack) -> None:
    stop = {"prompt": "over and out ", "stop": "d o", "stream": True, "max_tokens": 30}
    id = read(http.post(COMPLETIONS, json=stop, headers=RESUMABLE))[-2].id or ""
    request, _, count = id.partition(":")
    headers = {"Last-Event-ID": f"{request}:{int(count) + 5}"}
    check_refused(http.get(f"/v1/streams/{request}", headers=headers), 400, f"there are {count}")


def test_an_id_of_another_stream(http: httpx.Client) -> None:
    response = http.get("/v1/streams/cmpl-" + 32 * "0", headers={"Last-Event-ID": f"cmpl-{32 * '1'}:3"})
    check_refused(response, 400, "is not of request")


@pytest.mark.parametrize("name", ["cmpl-" + 32 * "0", "x", "a" * 3000])
def test_an_unknown_request(http: httpx.Client, name: str) -> None:
    response = http.get(f"/v1/streams/{name}")
    check_refused(response, 404, "There is no request")
    assert response.json()["error"]["code"] == "request_not_found"


def test_an_invalid_boolean_header(http: httpx.Client) -> None:
    response = http.post(COMPLETIONS, json={"prompt": "a"}, headers={"Orca-Resumable": "maybe"})
    check_refused(response, 400, "maybe")


# --- cancelling ----------------------------------------------------------------------------------------------------


def test_a_resumable_stream_is_cancelled_by_its_id_at_another_gateway(http: httpx.Client, other: httpx.Client) -> None:
    path, body = STREAMS["completion"]
    body = body | {"max_tokens": 300, "ignore_eos": True, "stream": True}
    with http.stream("POST", path, json=body, headers=RESUMABLE) as response:
        mine = events(response)
        name = next(mine).json()["id"]
        assert other.delete(f"/v1/streams/{name}").status_code == 200
        *said, end = mine
    assert len(said) < 299
    assert end.json()["error"]["code"] == "request_cancelled"
    assert other.delete(f"/v1/streams/{name}").status_code == 200  # a repetition changes nothing
