"""What all APIs have in common: how an answer ends, whole and streamed; streams that break; keys; failures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import httpx
import pytest
from echo_engine import FAIL, SLOW, WRITE
from marked import full
from sse_client import DONE, RESUMABLE, Event, first, read
from stack import Stack

KEY = "Idempotency-Key"
SAID = "one né 🐳 two"


@dataclass(frozen=True)
class Told:
    """An answer, as each API tells it: its request, its text, how it ended, and the numbers of tokens."""

    id: str
    text: str
    end: tuple[Any, ...]
    usage: tuple[int, int]


class Api(ABC):
    """How one API asks and answers. `ends`: what it says of an answer that ended by itself, by a stop string, by a stop
    token, and by the limit; the stop itself stands for `...`."""

    path: str
    limit = "max_tokens"
    stop: str | None = "stop"
    ends: ClassVar[dict[str, tuple[Any, ...]]]
    first_failure = 500  # the status of a stream that fails before its first token
    beyond = 400  # the status of a stream after an event that it does not have

    @abstractmethod
    def input(self, text: str) -> dict[str, Any]: ...

    @abstractmethod
    def whole(self, answer: Any) -> Told: ...

    @abstractmethod
    def streamed(self, events: list[Any]) -> Told:
        """The answer that the data of a stream's events make, each of which is there once."""

    @abstractmethod
    def text(self, event: Any) -> str:
        """What an event adds to the text."""

    def error(self, last: Any) -> str:
        """The message of the event with which a stream fails."""
        message: str = last["error"]["message"]
        return message

    def body(self, text: str, limit: int = 60, stop: str = "", **fields: Any) -> dict[str, Any]:
        stops = {self.stop: [stop]} if stop and self.stop else {"stop": stop} if stop else {}
        return self.input(text) | {self.limit: limit} | stops | fields

    def stream_path(self, id: str) -> str:
        return f"/v1/streams/{id}"


class Chat(Api):
    path = "/v1/chat/completions"
    ends: ClassVar = {
        "itself": ("stop", None),
        "string": ("stop", ...),
        "token": ("stop", ...),
        "limit": ("length", None),
    }

    def input(self, text: str) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": text}], "stream_options": {"include_usage": True}}

    def body(self, text: str, limit: int = 60, stop: str = "", **fields: Any) -> dict[str, Any]:
        body = super().body(text, limit, stop, **fields)
        return body if body.get("stream") else {name: body[name] for name in body if name != "stream_options"}

    def whole(self, answer: Any) -> Told:
        (choice,) = answer["choices"]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        return Told(answer["id"], text, (choice["finish_reason"], choice["stop_reason"]), _usage(answer))

    def streamed(self, events: list[Any]) -> Told:
        choices = [event["choices"][0] for event in events if event["choices"]]
        assert not any("stop_reason" in choice for choice in choices if not choice["finish_reason"])
        ((reason, stop),) = [(c["finish_reason"], c["stop_reason"]) for c in choices if c["finish_reason"]]
        (usage,) = [event for event in events if event.get("usage")]
        return Told(events[0]["id"], "".join(map(self.text, events)), (reason, stop), _usage(usage))

    def text(self, event: Any) -> str:
        return "".join(c["delta"]["content"] if "delta" in c else c["text"] for c in event["choices"])


class Completion(Chat):
    path = "/v1/completions"

    def input(self, text: str) -> dict[str, Any]:
        return {"prompt": text, "stream_options": {"include_usage": True}}


class Response(Api):
    path = "/v1/responses"
    limit = "max_output_tokens"
    ends: ClassVar = dict.fromkeys(("itself", "string", "token"), ("completed", None))
    ends |= {"limit": ("incomplete", {"reason": "max_output_tokens"})}
    first_failure = 200  # its first event comes with the request
    beyond = 200

    def input(self, text: str) -> dict[str, Any]:
        return {"input": text}

    def whole(self, answer: Any) -> Told:
        (item,) = answer["output"]
        assert item["status"] == answer["status"]
        usage = answer["usage"]["input_tokens"], answer["usage"]["output_tokens"]
        end = answer["status"], answer["incomplete_details"]
        return Told(answer["id"], item["content"][0]["text"], end, usage)

    def streamed(self, events: list[Any]) -> Told:
        (last,) = [event for event in events if event["type"] in ("response.completed", "response.incomplete")]
        told = self.whole(last["response"])
        assert told.text == "".join(map(self.text, events))
        return told

    def text(self, event: Any) -> str:
        text: str = event["delta"] if event["type"] == "response.output_text.delta" else ""
        return text

    def error(self, last: Any) -> str:
        return super().error(last["response"])

    def stream_path(self, id: str) -> str:
        return f"{self.path}/{id}?stream=true"


class Message(Api):
    path = "/v1/messages"
    stop = "stop_sequences"
    ends: ClassVar = {"itself": ("end_turn", None), "string": ("stop_sequence", ...), "token": ("end_turn", None)}
    ends |= {"limit": ("max_tokens", None)}

    def input(self, text: str) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": text}]}

    def whole(self, answer: Any) -> Told:
        (block,) = answer["content"]
        usage = answer["usage"]["input_tokens"], answer["usage"]["output_tokens"]
        return Told(answer["id"], block["text"], (answer["stop_reason"], answer["stop_sequence"]), usage)

    def streamed(self, events: list[Any]) -> Told:
        (end,) = [event for event in events if event["type"] == "message_delta"]
        (begun,) = [event["message"] for event in events if event["type"] == "message_start"]
        content = [{"type": "text", "text": "".join(map(self.text, events))}]
        return self.whole(begun | {"content": content, "usage": end["usage"]} | end["delta"])

    def text(self, event: Any) -> str:
        text: str = event["delta"]["text"] if event["type"] == "content_block_delta" else ""
        return text


APIS = [Chat(), Completion(), Response(), Message()]
EACH = pytest.mark.parametrize("api", APIS, ids=lambda api: type(api).__name__.lower())


def _usage(answer: Any) -> tuple[int, int]:
    return answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]


def data(events: list[Event]) -> list[Any]:
    return [event.json() for event in events if event != DONE]


# --- ends ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "text", "end", "stop"),
    [
        ({}, SAID, "itself", None),
        ({"stop": "🐳 t"}, "one né ", "string", "🐳 t"),
        ({"stop": "🐳 t", "include_stop_str_in_output": True}, "one né 🐳 t", "string", "🐳 t"),
        ({"stop": "zzz"}, SAID, "itself", None),
        ({"stop_token_ids": "w"}, "one né 🐳 t", "token", "w"),
        ({"stop_token_ids": "<eos>"}, SAID, "itself", None),
        ({"stop_token_ids": "<eos>", "ignore_eos": True}, SAID, "token", "<eos>"),
        ({"limit": 5}, "one n", "limit", None),
    ],
)
@EACH
def test_ends(
    stack: Stack, http: httpx.Client, api: Api, fields: dict[str, Any], text: str, end: str, stop: str | None
) -> None:
    """The whole answer and its stream say the same. No stop string and no half of a character is sent."""
    named: Any = stop
    if "stop_token_ids" in fields:
        fields = fields | {"stop_token_ids": stack.tokenizer.encode(fields["stop_token_ids"])}
        named = fields["stop_token_ids"][0] if stop else None
    whole = api.whole(http.post(api.path, json=api.body(WRITE + SAID, **fields)).json())
    events = data(read(http.post(api.path, json=api.body(WRITE + SAID, stream=True, **fields))))
    streamed = api.streamed(events)
    assert whole.text == streamed.text == text
    assert whole.end == streamed.end == tuple(named if part is ... else part for part in api.ends[end])
    assert whole.usage == streamed.usage
    assert not any("�" in api.text(event) for event in events)


# --- streams that break ------------------------------------------------------------------------------------


@pytest.mark.parametrize("post", [False, True], ids=["GET", "POST"])
@pytest.mark.parametrize("fields", [{"stop": "🐳 tw"}, {"limit": 12}, *full([{}])], ids=["string", "limit", "itself"])
@EACH
def test_a_stream_resumes_after_every_event_at_another_gateway(
    http: httpx.Client, other: httpx.Client, api: Api, fields: dict[str, Any], post: bool
) -> None:
    body = api.body(SLOW + WRITE + SAID, stream=True, **fields)
    whole = read(http.post(api.path, json=body, headers=RESUMABLE))
    told = api.streamed(data(whole))
    numbered = [event for event in whole if event.id]
    for index, event in enumerate(numbered):
        headers = {"Last-Event-ID": event.id or ""}
        how: Any = ("POST", api.path, body) if post else ("GET", api.stream_path(told.id), None)
        rest = read(other.request(how[0], how[1], json=how[2], headers=headers))
        assert api.streamed(data([*numbered[: index + 1], *rest])) == told
        ids = [said.id for said in [*numbered[: index + 1], *rest] if said.id]
        assert len(set(ids)) == len(ids)
        assert rest[-1:] == whole[-1:] or event == whole[-1]


@EACH
def test_a_stream_that_breaks_while_it_is_generated(http: httpx.Client, other: httpx.Client, api: Api) -> None:
    body = api.body(SLOW + WRITE + SAID)
    begun = first(http, api.path, api.body(SLOW + WRITE + SAID, stream=True), 6, Orca_Resumable="true")
    made = api.whole(http.post(api.path, json=body).json())
    asked = api.body(SLOW + WRITE + SAID, stream=True)
    rest = read(other.post(api.path, json=asked, headers={"Last-Event-ID": begun[-1].id or ""}))
    told = api.streamed(data([*begun, *rest]))
    assert (told.text, told.end, told.usage) == (made.text, made.end, made.usage)


@EACH
def test_a_plain_stream_has_no_ids(http: httpx.Client, api: Api) -> None:
    assert all(event.id is None for event in read(http.post(api.path, json=api.body("a", stream=True))))


@EACH
def test_a_position_is_of_one_request_and_its_stream(http: httpx.Client, api: Api) -> None:
    body = api.body("abcdef", limit=8, stream=True)
    id = [event.id for event in read(http.post(api.path, json=body, headers=RESUMABLE)) if event.id][1]
    request = id.partition(":")[0]
    unknown = request[:-32] + 32 * "0"
    wrong = {"nonsense": 400, f"{unknown}:3": 404, f"{request}:3.4": 400, f"{request}:1000000": api.beyond}
    for position, status in wrong.items():
        refused = http.post(api.path, json=body, headers={"Last-Event-ID": position})
        assert (position, refused.status_code) == (position, status)
    for another in (body | {api.limit: 9}, api.body("ho", limit=8, stream=True), body | {"stream": False}):
        assert http.post(api.path, json=another, headers={"Last-Event-ID": id}).status_code == 400


# --- keys --------------------------------------------------------------------------------------------------


@EACH
def test_an_idempotency_key_gives_the_same_answer(http: httpx.Client, other: httpx.Client, api: Api) -> None:
    headers = {KEY: f"same {api.path}"}
    made = api.whole(http.post(api.path, json=api.body("hello", limit=8), headers=headers).json())
    assert api.whole(other.post(api.path, json=api.body("hello", limit=8), headers=headers).json()) == made
    events = read(other.post(api.path, json=api.body("hello", limit=8, stream=True), headers=headers))
    assert events[0].id
    assert api.streamed(data(events)) == made
    refused = http.post(api.path, json=api.body("ho", limit=8), headers=headers)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert "another request" in error["message"]
    assert error.get("code", "idempotency_key_reused") == "idempotency_key_reused"


# --- failures ----------------------------------------------------------------------------------------------


@EACH
def test_a_failure_is_an_error(http: httpx.Client, api: Api) -> None:
    for said in ("", "abc"):
        whole = http.post(api.path, json=api.body(FAIL + said))
        assert whole.status_code == 500
        assert "the prompt said so" in whole.json()["error"]["message"]
    assert http.post(api.path, json=api.body(FAIL, stream=True)).status_code == api.first_failure
    *events, last = read(http.post(api.path, json=api.body(FAIL + "abc", stream=True)))
    assert "".join(api.text(event) for event in data(events)) == "abc"
    assert "the prompt said so" in api.error(last.json())


@EACH
def test_what_the_template_refuses_is_an_error(http: httpx.Client, api: Api) -> None:
    for stream in (False, True) if type(api) is not Completion else ():
        refused = http.post(api.path, json=api.body("refuse me", stream=stream))
        assert refused.status_code == 400
        assert "The template refuses this" in refused.json()["error"]["message"]
