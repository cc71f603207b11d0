"""The locustfile as a process, against a small HTTP server whose streams are whole or broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pytest

from tests.load.locust_run import run_locust
from tests.services.client.sse_server import Asked, Frames, Reply, SseServer, frame


@pytest.fixture
def server() -> Iterator[SseServer]:
    with SseServer() as server:
        yield server


def whole(body: dict) -> Frames:
    """Chunks of two tokens: only the usage chunk tells the number of tokens."""
    tokens = body["max_tokens"]
    chunks = [_choice(body, "tok tok ", None) for _ in range(tokens // 2)] + [_choice(body, "", "length")]
    usage = {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": tokens, "total_tokens": 4 + tokens}}
    return [frame(c) for c in chunks] + [frame(usage), frame(b"[DONE]")]


def _choice(body: dict, text: str, reason: str | None) -> dict:
    part = {"delta": {"content": text}} if "messages" in body else {"text": text}
    return {"choices": [{"index": 0, "finish_reason": reason, **part}]}


def test_whole_streams_are_counted_once_each(server: SseServer, tmp_path: Path) -> None:
    server.reply = lambda asked: Reply(whole(asked.body))
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "integer"}')
    run = run_locust(server.url, tmp_path, "--max-tokens", "6", "--schema", str(schema), requests=7)
    assert (run.exit_code, run.exceptions, run.failures) == (0, [], {}), run.output
    assert {name: run.stats[name].requests for name in ("ttft", "tpot", "e2e")} == dict.fromkeys(
        ("ttft", "tpot", "e2e"), 7
    )
    assert run.stats["e2e"].length == 7 * 6  # tokens of the usage chunk, not the four chunks
    assert run.stats["ttft"].average <= run.stats["e2e"].average
    assert {asked.path for asked in server.asked} == {"/v1/chat/completions", "/v1/completions"}
    for body in (asked.body for asked in server.asked):
        assert (body["model"], body["stream"], body["stream_options"]) == ("tiny", True, {"include_usage": True})
        assert body["response_format"]["json_schema"]["schema"] == {"type": "integer"}


def test_paper_trace_asks_for_its_lengths(server: SseServer, tmp_path: Path) -> None:
    server.reply = lambda asked: Reply(whole(asked.body))
    run = run_locust(server.url, tmp_path, "--trace", "paper", "CompletionUser", requests=64, users=4)
    assert (run.exit_code, run.stats["e2e"].requests) == (0, 64), run.output
    bodies = [asked.body for asked in server.asked]
    assert all(body["ignore_eos"] for body in bodies)
    assert sum(len(body["prompt"]) for body in bodies) == 17553
    assert sum(body["max_tokens"] for body in bodies) == 3871


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (lambda asked: Reply(whole(asked.body)[:-1]), "without [DONE]"),
        (lambda asked: Reply(whole(asked.body)[:2], cut=True), "no id to go on from"),
        (lambda asked: Reply([*whole(asked.body)[:2], frame({"error": {"message": "engine gone"}})]), "engine gone"),
        (lambda asked: Reply(status=400, body=b'{"error": {"message": "no such model"}}'), "no such model"),
        (lambda asked: Reply(status=502), "status 502"),
    ],
    ids=["no done", "connection cut", "error frame", "refused", "never there"],
)
def test_a_200_is_not_enough(server: SseServer, tmp_path: Path, reply: Callable[[Asked], Reply], message: str) -> None:
    server.reply = reply
    run = run_locust(server.url, tmp_path, "--patience", "0.1", requests=3)
    assert run.exceptions == [], run.output
    assert run.exit_code == 1, run.output
    assert (run.stats["e2e"].requests, run.stats["e2e"].failures) == (3, 3), run.output
    assert all(message in error for error in run.failures["e2e"]), run.failures
    assert sum(run.failures["e2e"].values()) == 3


def test_a_stream_that_breaks_is_resumed(server: SseServer, tmp_path: Path) -> None:
    server.reply = breaking
    run = run_locust(server.url, tmp_path, "--max-tokens", "6", requests=4)
    assert (run.exit_code, run.exceptions, run.failures) == (0, [], {}), run.output
    assert (run.stats["e2e"].requests, run.stats["e2e"].length) == (4, 4 * 6)
    keys = [asked.key for asked in server.asked]
    assert {keys.count(key) for key in keys} == {2}  # each reconnected once


def breaking(asked: Asked) -> Reply:
    """Two frames at first, and the rest after a reconnect."""
    chunks = [orjson.loads(data[6:]) for data in whole(asked.body)[:-1]]
    frames = [frame(chunk, f"r:{i}") for i, chunk in enumerate(chunks, 1)] + [frame(b"[DONE]")]
    return Reply(frames[2:]) if asked.last_id == "r:2" else Reply(frames[:2], cut=True)
