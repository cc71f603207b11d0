"""A server that is restarted with fewer KV blocks than a request in its pool needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from waiting import wait_until

from load.reference.pool import RETURN_TIME
from load.server import OrcaServer

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.timeout(400)]

FLAGS = ("--null-engine", "--durability", "strict", "--gateways", "1")
KEYS = ("--api-keys", '{"key-a": "a", "key-b": "b"}')
A, B = ({"authorization": f"Bearer key-{tenant}"} for tenant in "ab")
LONG = 8000  # tokens; more than 100 blocks hold, fewer than the longest request of the model
SMALL = 3
PATIENCE = 60.0  # seconds


def test_the_large_request_ends_with_an_error_and_others_are_answered(tmp_path: Path) -> None:
    with OrcaServer(tmp_path, *FLAGS, *KEYS) as server:
        body = {"input": "Tell me all.", "background": True, "max_output_tokens": LONG}
        made = httpx.post(f"{server.url}/v1/responses", json=body, headers=A, timeout=PATIENCE)
        made.raise_for_status()
        path = f"/v1/responses/{made.json()['id']}"
        wait_until(lambda: response(server, path)["status"] != "queued")
        server.kill_all()  # a server that stops would compute the rest meanwhile
    with OrcaServer(tmp_path, *FLAGS, *KEYS, "--kv-blocks", "100", port=server.port) as server:
        model = httpx.get(f"{server.url}/v1/models", headers=B, timeout=PATIENCE).json()["data"][0]["id"]
        small = {"model": model, "prompt": "Hello", "max_tokens": 8}
        for _ in range(SMALL):
            answer = httpx.post(f"{server.url}/v1/completions", json=small, headers=B, timeout=PATIENCE)
            assert answer.status_code == 200, answer.text
            assert answer.json()["usage"]["completion_tokens"] == 8
        age_dead_seats(server)
        wait_until(lambda: response(server, path)["status"] not in ("queued", "in_progress"))
        ended = response(server, path)
        assert ended["status"] == "failed"
        assert "more KV blocks, than any engine has" in ended["error"]["message"]


def response(server: OrcaServer, path: str) -> dict[str, Any]:
    answer = httpx.get(server.url + path, headers=A, timeout=PATIENCE)
    answer.raise_for_status()
    found: dict[str, Any] = answer.json()
    return found


def age_dead_seats(server: OrcaServer) -> None:
    """Let the pool forget that the seat of the server that was killed might have an owner again. Its lease began anew
    when the pool's server came back, and has to be over first.
    """
    with redis.Redis(unix_socket_path=str(server.pool_dir / "server.sock")) as client:
        (seats,) = client.keys("*:seats")
        wait_until(lambda: client.zrangebyscore(seats, "-inf", "(inf"))
        for seat in client.zrangebyscore(seats, "-inf", "(inf"):
            client.zincrby(seats, -RETURN_TIME * 1e6, seat)
