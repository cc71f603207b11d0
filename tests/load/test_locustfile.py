"""The locustfile as a process against a small HTTP server that streams well or badly."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.load.locust_run import run_locust

Frames = list[bytes]


def frame(data: object) -> bytes:
    return b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n"


def whole(body: dict) -> Frames:
    """Two tokens a chunk: only the usage chunk tells how many there were."""
    tokens = body["max_tokens"]
    chunks = [_choice(body, "tok tok ", None) for _ in range(tokens // 2)] + [_choice(body, "", "length")]
    usage = {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": tokens, "total_tokens": 4 + tokens}}
    return [frame(c) for c in chunks] + [frame(usage), frame(b"[DONE]")]


def _choice(body: dict, text: str, reason: str | None) -> dict:
    part = {"delta": {"content": text}} if "messages" in body else {"text": text}
    return {"choices": [{"index": 0, "finish_reason": reason, **part}]}


def without_done(body: dict) -> Frames:
    return whole(body)[:-1]


def with_error_frame(body: dict) -> Frames:
    return [*whole(body)[:2], frame({"error": {"message": "the engine is gone", "type": "server_error"}})]


class Server(ThreadingHTTPServer):
    """Answers as `frames` says; remembers the bodies it was sent."""

    daemon_threads = True

    def __init__(self, frames: Callable[[dict], Frames], cut: bool = False, status: int = 200) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.frames, self.cut, self.status = frames, cut, status
        self.bodies: list[tuple[str, dict]] = []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *args: object) -> None: ...

    def do_GET(self) -> None:
        self._json(200, {"object": "list", "data": [{"id": "tiny", "object": "model"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.bodies.append((self.path, body))
        if self.server.status != 200:
            self._json(self.server.status, {"error": {"message": "the pool is full"}})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for data in self.server.frames(body):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        if self.server.cut:
            self.close_connection = True
        else:
            self.wfile.write(b"0\r\n\r\n")

    def _json(self, status: int, value: dict) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def serve() -> Iterator[Callable[..., tuple[str, Server]]]:
    servers: list[Server] = []

    def start(*args: object, **kwargs: object) -> tuple[str, Server]:
        server = Server(*args, **kwargs)  # type: ignore[arg-type]
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}", server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_whole_streams_are_counted_once_each(serve: Callable, tmp_path: Path) -> None:
    url, server = serve(whole)
    run = run_locust(url, tmp_path, "--max-tokens", "6", requests=7)
    assert (run.exit_code, run.exceptions, run.failures) == (0, [], {}), run.output
    assert {name: run.stats[name].requests for name in ("ttft", "tpot", "e2e")} == dict.fromkeys(
        ("ttft", "tpot", "e2e"), 7
    )
    assert run.stats["e2e"].length == 7 * 6  # tokens of the usage chunk, not the four chunks
    assert run.stats["ttft"].average <= run.stats["e2e"].average
    assert {path for path, _ in server.bodies} == {"/v1/chat/completions", "/v1/completions"}
    for _, body in server.bodies:
        assert (body["model"], body["stream"], body["stream_options"]) == ("tiny", True, {"include_usage": True})


def test_paper_trace_asks_for_its_lengths(serve: Callable, tmp_path: Path) -> None:
    url, server = serve(whole)
    run = run_locust(url, tmp_path, "--trace", "paper", "CompletionUser", requests=64, users=4)
    assert (run.exit_code, run.stats["e2e"].requests) == (0, 64), run.output
    assert all(body["ignore_eos"] for _, body in server.bodies)
    assert sum(len(body["prompt"]) for _, body in server.bodies) == 17553
    assert sum(body["max_tokens"] for _, body in server.bodies) == 3871


@pytest.mark.parametrize(
    ("frames", "settings", "message"),
    [
        (without_done, {}, "without [DONE]"),
        (whole, {"cut": True}, ""),
        (lambda body: whole(body)[:2], {"cut": True}, ""),
        (with_error_frame, {}, "the engine is gone"),
        (whole, {"status": 429}, "status 429"),
    ],
    ids=["no done", "connection cut after done", "connection cut", "error frame", "refused"],
)
def test_a_200_is_not_enough(serve: Callable, tmp_path: Path, frames: Callable, settings: dict, message: str) -> None:
    url, _ = serve(frames, **settings)
    run = run_locust(url, tmp_path, requests=3)
    assert run.exceptions == [], run.output
    assert run.exit_code == 1, run.output
    assert (run.stats["e2e"].requests, run.stats["e2e"].failures) == (3, 3), run.output
    assert all(message in error for error in run.failures["e2e"]), run.failures
    assert sum(run.failures["e2e"].values()) == 3
