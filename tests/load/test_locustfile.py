"""The locustfile as a process, against a small HTTP server whose streams are whole or broken."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from load.server import free_port
from tests.load.locust_run import run_locust
from tests.services.client.sse_server import Asked, Frames, Reply, SseServer, frame

CHATS, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@pytest.fixture
def server() -> Iterator[SseServer]:
    with SseServer() as server:
        yield server


def whole(body: dict) -> Frames:
    """Chunks of two tokens: only the usage chunk tells the number of tokens."""
    tokens = body["max_tokens"]
    chunks = [_choice(body, "tok tok ", None) for _ in range(tokens // 2)] + [_choice(body, "", "length")]
    return [frame(c) for c in chunks] + [frame({"choices": [], "usage": usage(tokens)}), frame(b"[DONE]")]


def usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": 4, "completion_tokens": tokens, "total_tokens": 4 + tokens}


def _choice(body: dict, text: str, reason: str | None) -> dict:
    part = {"delta": {"content": text}} if "messages" in body else {"text": text}
    return {"choices": [{"index": 0, "finish_reason": reason, **part}]}


def test_whole_streams_are_counted_once_each(server: SseServer, tmp_path: Path) -> None:
    server.reply = lambda asked: Reply(whole(asked.body))
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "integer"}')
    options = ["--max-tokens", "6", "--schema", str(schema), "--extra-body", '{"temperature": null, "top_p": 0.5}']
    run = run_locust(server.url, tmp_path, *options, "ChatUser", "CompletionUser", requests=7)
    assert (run.exit_code, run.exceptions, run.failures) == (0, [], []), run.output
    assert run.aggregated == 7
    counted = {row: sum(run.stats[f"{row} {path}"].requests for path in (CHATS, COMPLETIONS)) for row in ROWS}
    assert counted == dict.fromkeys(ROWS, 7)
    chats = run.stats[f"POST {CHATS}"]
    assert chats.length == chats.requests * 6  # tokens of the usage chunk, not the four chunks
    assert run.stats[f"TTFT {CHATS}"].average <= chats.average
    for body in (asked.body for asked in server.asked):
        assert (body["model"], body["stream"], body["stream_options"]) == ("tiny", True, {"include_usage": True})
        assert (body["top_p"], "temperature" in body) == (0.5, False)
        if "messages" in body:
            assert body["response_format"]["json_schema"]["schema"] == {"type": "integer"}


ROWS = ("POST", "TTFT", "TPOT", "MAX GAP")


def test_a_200_is_not_enough(server: SseServer, tmp_path: Path) -> None:
    def broken(asked: Asked) -> Reply:
        match next(numbers) % 5:
            case 0:
                return Reply(whole(asked.body)[:-1])
            case 1:
                return Reply(whole(asked.body)[:2], cut=True)
            case 2:
                return Reply([*whole(asked.body)[:2], frame({"error": {"message": "engine gone"}})])
            case 3:
                return Reply(status=400, body=b'{"error": {"message": "no such model"}}')
        return Reply(status=502)

    numbers = itertools.count()
    server.reply = broken
    run = run_locust(server.url, tmp_path, requests=5, users=1)
    assert (run.exit_code, run.exceptions) == (1, []), run.output
    assert (run.aggregated, run.stats[f"POST {CHATS}"].failures, f"TTFT {CHATS}" in run.stats) == (5, 5, False)
    messages = ("without [DONE]", "Incomplete response", "engine gone", "status 400: no such model", "status 502")
    assert [sum(message in error for error in run.failures) for message in messages] == [1] * 5, run.failures


def test_a_stream_that_breaks_is_resumed_by_users_that_do(server: SseServer, tmp_path: Path) -> None:
    server.reply = breaking
    run = run_locust(server.url, tmp_path, "--max-tokens", "6", "ResumingChatUser", requests=4)
    assert (run.exit_code, run.exceptions, run.failures) == (0, [], []), run.output
    assert (run.aggregated, run.stats[f"POST {CHATS}"].length) == (4, 4 * 6)
    keys = [asked.key for asked in server.asked]
    assert {keys.count(key) for key in keys} == {2}  # each reconnected once


def breaking(asked: Asked) -> Reply:
    """Two frames at first, and the rest after a reconnect."""
    chunks = [orjson.loads(data[6:]) for data in whole(asked.body)[:-1]]
    frames = [frame(chunk, f"r:{i}") for i, chunk in enumerate(chunks, 1)] + [frame(b"[DONE]")]
    return Reply(frames[2:]) if asked.last_id == "r:2" else Reply(frames[:2], cut=True)


def test_answers_that_are_not_streamed_and_calls_of_tools(server: SseServer, tmp_path: Path) -> None:
    calls = itertools.cycle(['{"topic": "bees"}', '{"topic'])

    def answer(asked: Asked) -> Reply:
        body = asked.body
        if "tools" in body:
            assert body["tool_choice"] == "required"
            piece = {"index": 0, "id": "c", "function": {"name": "look_up", "arguments": next(calls)}}
            chunk = {"index": 0, "delta": {"tool_calls": [piece]}, "finish_reason": "tool_calls"}
            return Reply([frame({"choices": [chunk]}), frame(b"[DONE]")])
        assert "stream" not in body
        said = {"message": {"role": "assistant", "content": "hi"}} if "messages" in body else {"text": "hi"}
        choice = {"index": 0, "finish_reason": "stop", **said}
        return Reply(body=orjson.dumps({"choices": [choice], "usage": usage(3)}))

    server.reply = answer
    users = ["UnstreamedChatUser", "UnstreamedCompletionUser", "ToolUser"]
    run = run_locust(server.url, tmp_path, "--api-key", "secret", *users, requests=12, users=3)
    assert run.exceptions == [], run.output
    tools = [asked for asked in server.asked if "tools" in asked.body]
    assert 0 < len(run.failures) == len(tools) // 2
    assert all("no JSON object" in error for error in run.failures)
    assert run.stats[f"POST {COMPLETIONS}"].length == 3 * run.stats[f"POST {COMPLETIONS}"].requests > 0
    assert f"TTFT {COMPLETIONS}" not in run.stats
    assert run.aggregated == 12
    assert all(asked.authorization == "Bearer secret" for asked in server.asked)


def test_a_conversation_grows_by_each_question_and_answer(server: SseServer, tmp_path: Path) -> None:
    server.reply = lambda asked: Reply(whole(asked.body))
    options = ["--workload", "multi_turn", "--turns", "3", "--max-tokens", "2"]
    run = run_locust(server.url, tmp_path, *options, requests=5, users=1)
    assert run.exit_code == 0, run.output
    messages = [asked.body["messages"] for asked in server.asked]
    assert [len(one) for one in messages] == [1, 3, 5, 1, 3]
    assert messages[2][:3] == messages[1]
    assert messages[2][3] == {"role": "assistant", "content": "tok tok "}


def test_two_workers_send_one_open_loop_and_the_master_writes_the_samples(server: SseServer, tmp_path: Path) -> None:
    server.reply = lambda asked: Reply(whole(asked.body))
    samples = tmp_path / "samples.jsonl"
    port = str(free_port())
    workers = ["--processes", "2", "--master-bind-port", port, "--master-port", port]
    workers += ["-f", "tests/load/locust_late_end.py,load/locustfile.py,tests/load/locust_record.py"]
    options = ["--request-rate", "100", "--burstiness", "2", "--samples", str(samples), "--workload", "equal_size"]
    run = run_locust(server.url, tmp_path, *workers, *options, "--goodput", "e2el:60000", "--stages", "2", requests=12)
    assert (run.exit_code, run.aggregated, run.failures) == (0, 12, []), run.output
    assert "asked 12" in run.output
    assert "of the 12 requests met e2el:60000" in run.output
    lines = [json.loads(line) for line in samples.read_text().splitlines()]
    assert len(lines) == 12
    assert all(0 < line["ttft"] <= line["e2e"] and line["output_tokens"] == 128 for line in lines)
    assert all(len(line["gaps"]) == 63 and line["worst_gap"] == max(line["gaps"]) for line in lines)
    prompts = {asked.body["messages"][0]["content"] for asked in server.asked}
    assert len(prompts) == 12  # no request was sent by both


def test_a_rate_that_is_not_reached_is_said_and_latency_begins_when_it_was_due(
    server: SseServer, tmp_path: Path
) -> None:
    delays = itertools.chain([0.5], itertools.repeat(0))

    def slow(asked: Asked) -> Reply:
        time.sleep(next(delays))
        return Reply(whole(asked.body))

    server.reply = slow
    samples = tmp_path / "samples.jsonl"
    options = ["--request-rate", "1000", "--samples", str(samples)]
    run = run_locust(server.url, tmp_path, *options, requests=10, users=1)
    said = "the rate was not held: 0 of 10 requests were not sent, and"
    assert f"{said} 9 late" in run.output or f"{said} 10 late" in run.output  # a busy machine begins late
    lines: list[Any] = [json.loads(line) for line in samples.read_text().splitlines()]
    assert all(line["e2e"] > line["ttft"] > line["late"] > 100 for line in lines[1:])
