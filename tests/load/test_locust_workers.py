"""Locust's master and workers as processes of their own, of which one dies."""

from __future__ import annotations

import threading
from pathlib import Path

from load.server import free_port
from tests.load.locust_run import locust_process, read_record
from tests.services.client.sse_server import Asked, Reply, SseServer, frame

USERS, REQUESTS = 2, 8


def test_the_test_ends_when_a_worker_dies_that_has_requests_left(tmp_path: Path) -> None:
    died, all_asked = threading.Event(), threading.Semaphore(0)

    def reply(asked: Asked) -> Reply:
        all_asked.release()
        died.wait(60)
        return Reply([frame({"choices": [{"index": 0, "finish_reason": "stop", "text": "tok"}]}), frame(b"[DONE]")])

    with SseServer() as server:
        server.reply = reply
        record, port = tmp_path / "locust.json", str(free_port())
        address = ["--master-host", "127.0.0.1", "--master-port", port]
        options = ["--users", str(USERS), "--spawn-rate", str(USERS), "--requests", str(REQUESTS), "CompletionUser"]
        master = ["--master", "--master-bind-port", port, "--expect-workers", "2", "--headless", "--only-summary"]
        workers = [locust_process(server.url, record, "--worker", *address) for _ in range(2)]
        leader = locust_process(server.url, record, *master, *options)
        try:
            for _ in range(USERS):  # one of each worker
                assert all_asked.acquire(timeout=60)
            workers[0].kill()
            died.set()
            output, _ = leader.communicate(timeout=60)
        finally:
            for process in (leader, *workers):
                process.kill()
                process.wait()
    run = read_record(record, leader.returncode, output)
    assert (run.exit_code, run.aggregated) == (1, REQUESTS // 2), output
    assert "gone before all requests were sent; the test ends" in output
    assert f"{REQUESTS // 2} of {REQUESTS} requests are in no figure" in output
