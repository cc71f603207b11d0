"""A small HTTP server whose streams break where a test wants it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Frames = list[bytes]


def frame(data: object, id: str = "") -> bytes:
    head = f"id: {id}\n".encode() if id else b""
    return head + b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n"


@dataclass
class Reply:
    """One answer: `frames` as a stream, whose connection may be `cut` at the end; or a `body`, with `status`."""

    frames: Frames = field(default_factory=list)
    cut: bool = False
    status: int = 200
    body: bytes = b""
    retry_after: str = ""


@dataclass
class Asked:
    path: str
    body: dict[str, Any]
    key: str | None
    last_id: str | None
    authorization: str | None = None


class SseServer(ThreadingHTTPServer):
    """`with SseServer() as server`: answers each POST with the result of `reply`, and records it in `asked`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.reply: Callable[[Asked], Reply] = lambda asked: Reply(status=500)
        self.asked: list[Asked] = []
        self.url = f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> SseServer:
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: SseServer

    def log_message(self, *args: object) -> None: ...

    def do_GET(self) -> None:
        self._whole(200, b'{"object": "list", "data": [{"id": "tiny", "object": "model"}]}')

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        asked = Asked(self.path, body, self.headers["Idempotency-Key"], self.headers["Last-Event-ID"])
        asked.authorization = self.headers["Authorization"]
        self.server.asked.append(asked)
        reply = self.server.reply(asked)
        if reply.status != 200 or reply.body:
            self._whole(reply.status, reply.body, reply.retry_after)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for data in reply.frames:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        if reply.cut:
            self.close_connection = True
        else:
            self.wfile.write(b"0\r\n\r\n")

    def _whole(self, status: int, data: bytes, retry_after: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        if retry_after:
            self.send_header("Retry-After", retry_after)
        self.end_headers()
        self.wfile.write(data)
