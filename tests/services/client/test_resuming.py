"""Clients resume a stream that broke, and give up if another attempt is useless."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx
import orjson
import pytest

from cli.chat import Chat
from services.client.resuming import ResumableRequest
from services.client.sse import Event, StreamedAnswer, StreamError
from services.client.streaming import follow, open_session
from services.errors import OrcaError
from tests.services.client.sse_server import Asked, Reply, SseServer, frame
from tests.services.client.streams import chunks_of, events

CHOICES = [[5, 6, 7, 8], [9, 10]]
NOT_FOUND = orjson.dumps({"error": {"message": "no such request", "code": "request_not_found"}})


@pytest.fixture
def server() -> Iterator[SseServer]:
    with SseServer() as server:
        yield server


def frames(start: list[int] | None = None, request: str = "r") -> list[bytes]:
    return [frame(event.data.encode(), event.id) for event in events(chunks_of(request, CHOICES, start))]


def start(asked: Asked) -> list[int] | None:
    return [int(n) for n in asked.last_id.partition(":")[2].split(".")] if asked.last_id else None


def ask(server: SseServer, patience: float = 10.0) -> StreamedAnswer:
    async def run() -> StreamedAnswer:
        async with open_session(server.url) as session:
            await follow(session, "/v1/completions", {"prompt": "x"}, answer, patience=patience)
            return answer

    answer = StreamedAnswer()
    return asyncio.run(run())


def in_turn(*replies: Reply) -> Iterator[Reply]:
    yield from replies


def test_a_stream_is_resumed_over_any_number_of_connections(server: SseServer) -> None:
    def reply(asked: Asked) -> Reply:
        if len(server.asked) < 5:
            return Reply(frames(start(asked))[:2], cut=len(server.asked) % 2 == 1)
        return Reply(frames(start(asked)))

    server.reply = reply
    answer = ask(server)
    assert [answer.choices[i].token_ids for i in (0, 1)] == CHOICES
    assert len({asked.key for asked in server.asked}) == 1
    assert [asked.last_id for asked in server.asked] == [None, "r:1.0", "r:1.1", "r:2.1", "r:2.2"]


def test_passing_errors_are_waited_for(server: SseServer) -> None:
    replies = in_turn(
        Reply(status=503, body=b'{"error": {"message": "no engine"}}', retry_after="0"),
        Reply(status=404, body=b"no route"),
        Reply(status=502),
        Reply(status=500, body=b"<html>"),
        Reply(status=429, body=b'{"error": {"message": "full"}}', retry_after="0"),
        Reply(frames()),
    )
    server.reply = lambda asked: next(replies)
    assert ask(server).choices[0].token_ids == CHOICES[0]
    assert [asked.last_id for asked in server.asked] == [None] * 6


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, b'{"error": {"message": "bad"}}'),
        (404, NOT_FOUND),
        (429, b'{"error": {"message": "quota"}}'),
        (408, b'{"error": {"message": "too late"}}'),
        (500, b'{"error": {"message": "it failed", "code": "generation_failed"}}'),
        (401, b"who are you"),
    ],
)
def test_lasting_errors_end_the_request(server: SseServer, status: int, body: bytes) -> None:
    server.reply = lambda asked: Reply(status=status, body=body)
    with pytest.raises(StreamError, match=f"status {status}") as error:
        ask(server)
    assert error.value.status == status
    assert len(server.asked) == 1


def test_a_server_that_stays_full_is_given_up_with_its_status(server: SseServer) -> None:
    server.reply = lambda asked: Reply(status=429, body=b'{"error": {"message": "full"}}', retry_after="0")
    with pytest.raises(StreamError, match="status 429: full") as error:
        ask(server, patience=0.3)
    assert error.value.status == 429
    assert len(server.asked) > 1


def test_an_error_frame_ends_the_request(server: SseServer) -> None:
    server.reply = lambda asked: Reply([*frames()[:2], frame({"error": {"message": "it failed", "code": 408}})])
    with pytest.raises(StreamError, match="it failed") as error:
        ask(server)
    assert error.value.status == 408
    assert len(server.asked) == 1


def test_a_request_that_was_forgotten_is_posted_again_without_an_id(server: SseServer) -> None:
    replies = in_turn(Reply(frames()[:4], cut=True), Reply(status=404, body=NOT_FOUND), Reply(frames(request="s")))
    server.reply = lambda asked: next(replies)
    answer = ask(server)
    assert (answer.request, answer.choices[0].token_ids) == ("s", CHOICES[0])
    assert [asked.last_id for asked in server.asked] == [None, "r:2.1", None]


def test_a_server_that_is_not_there_is_given_up_at_last() -> None:
    with SseServer() as server:
        pass
    with pytest.raises(StreamError, match="no sign of life"):
        ask(server, patience=0.3)


def test_patience_is_counted_from_the_last_sign_of_life() -> None:
    now = 0.0
    answer = StreamedAnswer()
    resumable = ResumableRequest(answer, patience=10, clock=lambda: now)
    pauses = []
    for _ in range(9):
        now += 1
        pauses.append(resumable.broken("cut"))
    assert pauses[-1] > pauses[0]
    answer.feed(Event('{"choices": []}', "r:0"))
    for _ in range(10):
        now += 1
        resumable.broken("cut")
    now += 2
    with pytest.raises(StreamError, match="no sign of life for 11 s, at last: cut"):
        resumable.broken("cut")


def test_a_chat_resumes_where_it_stopped(server: SseServer, capsys: pytest.CaptureFixture[str]) -> None:
    def said(text: str, count: int, reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": reason}
        return frame({"choices": [choice]}, f"r:{count}")

    replies = in_turn(
        Reply([said("", 0), said("Good ", 2)], cut=True),
        Reply(status=503, retry_after="0"),
        Reply([said("morning", 4)]),
        Reply([said("", 5, "stop"), frame(b"[DONE]")]),
    )
    server.reply = lambda asked: next(replies)
    with httpx.Client(base_url=server.url) as client:
        Chat(client, "m").say("hello")
    assert capsys.readouterr().out == "Good morning\n"
    assert [asked.last_id for asked in server.asked] == [None, "r:2", "r:2", "r:4"]


def test_a_chat_says_why_it_ended(server: SseServer) -> None:
    server.reply = lambda asked: Reply(status=400, body=b'{"error": {"message": "too long"}}')
    with httpx.Client(base_url=server.url) as client, pytest.raises(OrcaError, match="too long"):
        Chat(client, "m").say("hello")
