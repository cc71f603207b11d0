"""The worst bodies of each route: the longest, with the most values, and the deepest that a gateway reads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import orjson

LONGEST = 8 << 20  # bytes, the default of `max_body_bytes`
HEAD = 4096  # bytes for the rest of a body around its long part
STOPS = [f"stop {i} " * 90 for i in range(16)]
BIASES = {str(i): 1.0 for i in range(1024)}


@dataclass(frozen=True, slots=True)
class Attack:
    """A body and the route to which it is sent."""

    name: str
    path: str
    body: bytes


def attacks(longest: int = LONGEST) -> Iterator[Attack]:
    """All attacks, one after the other: together they have 200 MB."""
    room = longest - HEAD
    yield Attack("digits", "/tokenize", _field("prompt", _text("1", room)))
    yield Attack("digits, names", "/tokenize", _field("prompt", _text("1", room), return_token_strs=True))
    yield Attack("spaces", "/tokenize", _field("prompt", _text(" ", room)))
    yield Attack("chat", "/tokenize", _chat(room))
    yield Attack("ids", "/detokenize", _field("tokens", _many(b"12345", room)))
    yield Attack("small ids", "/detokenize", _field("tokens", _many(b"1", room)))
    completions = "/v1/completions"
    for name, long in {
        "text": _text("1", room),
        "escaped text": b'"' + b"\\u4e00" * (room // 6) + b'"',
        "ids": _many(b"12345", room),
        "prompts of 8,000 ids": _many(_many(b"12345", 48_000), room),
        "texts": _many(b'"hello"', room),
        "empty lists": _many(b"[]", room),
        "objects": _many(b"{}", room),
        "members": _members(room),
    }.items():
        yield Attack(name, completions, _field("prompt", long, max_tokens=1))
    yield Attack("text to cut", completions, _field("prompt", _text("1", room), max_tokens=1, truncate_prompt_tokens=9))
    yield Attack("2,048 choices", completions, _field("prompt", orjson.dumps([[1]] * 16), n=128, max_tokens=1))
    large = _field("prompt", orjson.dumps([[1]] * 16), n=128, max_tokens=1, stop=STOPS, logit_bias=BIASES)
    yield Attack("2,048 choices, stops and biases", completions, large)
    scored = _field("prompt", _many(b"12345", 47_900), max_tokens=1, prompt_logprobs=20, return_token_ids=True)
    yield Attack("a prompt scored", completions, scored)
    yield Attack("members of 'metadata'", completions, _field("metadata", _members(room), prompt="a"))
    yield Attack("JSON in a text", completions, _field("guided_json", _json_in_a_text(room), prompt="a"))
    yield Attack("lists of an unknown field", completions, _field("unknown", _many(b"[]", room), prompt="a"))
    call = b'{"function":{"name":"f","arguments":' + _json_in_a_text(room) + b"}}"
    called = _many(b'{"role":"assistant","tool_calls":[' + call + b"]}", room)
    yield Attack("arguments of a call", "/v1/chat/completions", _field("messages", called))
    for path, name in {
        "/v1/chat/completions": "messages",
        "/v1/messages": "messages",
        "/v1/messages/count_tokens": "messages",
        "/v1/responses": "input",
        "/v1/responses/input_tokens": "input",
    }.items():
        more = {"max_tokens": 1} if path == "/v1/messages" else {}
        yield Attack("text", path, _field(name, _said(_text("1", room)), **more))
        yield Attack("4,096 messages", path, _field(name, _many(_message(b'"hello"'), 4096 * 34, most=4096), **more))
        parts = _many(b'{"type":"text","text":"a"}'.replace(b"text", b"input_text", name == "input"), room)
        yield Attack("parts", path, _field(name, _said(parts), **more))
    yield Attack("members of 'metadata'", "/v1/batches", _field("metadata", _members(room)))


def _field(name: str, long: bytes, **more: object) -> bytes:
    """A JSON object whose field `name` is the JSON `long`."""
    return b"{" + orjson.dumps(name) + b":" + long + b"," * bool(more) + orjson.dumps(more)[1:]


def _text(character: str, length: int) -> bytes:
    return orjson.dumps(character * length)


def _many(item: bytes, length: int, most: int = LONGEST) -> bytes:
    return b"[" + b",".join([item] * min(most, length // (len(item) + 1))) + b"]"


def _members(length: int) -> bytes:
    return b"{" + b",".join(b'"%07d":"a"' % i for i in range(length // 14)) + b"}"


def _json_in_a_text(length: int) -> bytes:
    return orjson.dumps('{"a":' + _many(b"[]", length - HEAD).decode() + "}")


def _message(content: bytes) -> bytes:
    return b'{"role":"user","content":' + content + b"}"


def _said(content: bytes) -> bytes:
    return b"[" + _message(content) + b"]"


def _chat(length: int) -> bytes:
    return _field("messages", _said(_text("hello ", length // 6)))


LINE = 8 << 20  # bytes of a line, approximately
LINES = 4
PAUSE = 0.2  # seconds between checks of the batch
CHECKS = 300


async def send_batch(client: httpx.AsyncClient) -> str:
    """Upload a file of the longest lines that a batch takes, and run it; returns the status of the batch."""
    content = b"".join(_line(number) for number in range(LINES))
    sent = await client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", content)})
    sent.raise_for_status()
    batch_body = {"input_file_id": sent.json()["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    made = await client.post("/v1/batches", json=batch_body)
    made.raise_for_status()
    for _ in range(CHECKS):
        batch = (await client.get(f"/v1/batches/{made.json()['id']}")).json()
        if batch["status"] in ("completed", "failed"):
            break
        await asyncio.sleep(PAUSE)
    return str(batch["status"])


def _line(number: int) -> bytes:
    """A line with ids, with empty lists, with text, or longer than any body, by its number."""
    kinds = [[12345] * (LINE // 6 - 100), [[]] * (LINE // 3 - 100), "1" * (LINE - 1000), "1" * (31 << 20)]
    body = {"prompt": kinds[number % len(kinds)], "max_tokens": 1}
    return orjson.dumps({"custom_id": str(number), "method": "POST", "url": "/v1/completions", "body": body}) + b"\n"
