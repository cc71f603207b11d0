"""API keys: all routes except health, readiness and metrics require one, and a tenant sees only its own requests."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sse_client import RESUMABLE, read
from stack import NAME, Stack

from gateway.http.middleware import OPERATOR_PATHS
from services.errors import OrcaError
from services.settings.settings import Settings

BODY: dict[str, Any] = {"prompt": "hello", "max_tokens": 3}
ALICE, BOB = {"Authorization": "Bearer key-of-alice"}, {"Authorization": "bearer key-of-bob"}
OWN = {"Authorization": "Bearer own-key"}


@pytest.fixture(scope="module")
def guarded(redis_url: str, tiny_folder: Path) -> Iterator[Stack]:
    tenants = {"key-of-alice": "alice", "key-of-bob": "bob", "second-of-bob": "bob"}
    settings = Settings(api_key=("own-key",), api_keys=tenants, operator_api_key=("operator-key",))
    with Stack(redis_url, "guarded", tiny_folder, settings) as stack:
        yield stack


@pytest.fixture(scope="module")
def client(guarded: Stack) -> httpx.Client:
    return guarded.http


@pytest.mark.parametrize("header", [None, "key-of-alice", "Bearer", "Bearer other", "Basic key-of-alice"])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/completions"),
        ("POST", "/v1/chat/completions"),
        ("GET", "/v1/models"),
        ("GET", "/v1/streams/x"),
        ("GET", "/version"),
        ("POST", "/tokenize"),
        ("GET", "/tokenizer_info"),
        ("GET", "/load"),
        ("GET", "/v1/health"),
        ("GET", "/nowhere"),
    ],
)
def test_a_request_without_a_key_is_refused(client: httpx.Client, method: str, path: str, header: str | None) -> None:
    response = client.request(method, path, json=BODY, headers={"Authorization": header} if header else {})
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    error = response.json()["error"]
    assert error["code"] == "invalid_api_key"
    assert "alice" not in error["message"]


@pytest.mark.parametrize("path", sorted(OPERATOR_PATHS))
def test_a_route_of_the_operator_needs_its_key(client: httpx.Client, stack: Stack, path: str) -> None:
    operator = {"Authorization": "Bearer operator-key"}
    assert client.post(path, json={}).status_code == 401
    refused = client.post(path, json={}, headers=ALICE)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "operator_only")
    assert client.post(path, json={}, headers=operator).status_code not in (401, 403)
    assert client.get("/v1/models", headers=operator).status_code == 200  # to see what it changes
    assert client.get(f"/v1/models/{NAME}", headers=operator).status_code == 200
    assert client.get("/v1/files", headers=operator).status_code == 401  # it is no tenant's
    off = httpx.post(stack.url + path, json={}, headers=operator)
    assert off.status_code == 404
    assert "operator_api_key" in off.json()["error"]["message"]


def test_probes_need_no_key(client: httpx.Client) -> None:
    assert client.get("/health").status_code == 200
    assert client.get("/ping").status_code == 200
    assert client.get("/ready").status_code in (200, 503)
    assert client.get("/metrics").status_code == 200


def test_the_documentation_needs_no_key(client: httpx.Client) -> None:
    paths = ("/docs", "/docs/swagger-ui.css", "/docs/swagger-ui-bundle.js", "/docs/favicon-32x32.png", "/openapi.json")
    assert {client.get(path).status_code for path in paths} == {200}


def test_a_stream_belongs_to_its_tenant(client: httpx.Client) -> None:
    stream = read(client.post("/v1/completions", json=BODY | {"stream": True}, headers=BOB | RESUMABLE))
    path, last = f"/v1/streams/{stream[0].json()['id']}", {"Last-Event-ID": stream[0].id or ""}
    again = read(client.get(path, headers={"Authorization": "Bearer second-of-bob"}))
    assert again[-2].id == stream[-2].id
    unknown = client.get("/v1/streams/cmpl-" + 32 * "0", headers=ALICE)
    for response in (
        client.get(path, headers=ALICE),
        client.delete(path, headers=ALICE),
        client.post("/v1/completions", json=BODY | {"stream": True}, headers=ALICE | last),
    ):
        assert response.status_code == unknown.status_code == 404
        assert response.json()["error"]["code"] == unknown.json()["error"]["code"] == "request_not_found"


def test_an_idempotency_key_belongs_to_its_tenant(client: httpx.Client) -> None:
    key = {"Idempotency-Key": "the same"}
    alice = client.post("/v1/completions", json=BODY, headers=ALICE | key).json()
    bob = client.post("/v1/completions", json=BODY | {"max_tokens": 2}, headers=BOB | key).json()
    assert alice["id"] != bob["id"]
    again = client.post("/v1/completions", json=BODY, headers=ALICE | key).json()
    assert again == alice


def test_a_single_key_belongs_to_the_tenant_default(client: httpx.Client) -> None:
    stream = read(client.post("/v1/completions", json=BODY | {"stream": True}, headers=OWN))
    path, last = f"/v1/streams/{stream[0].json()['id']}", {"Last-Event-ID": stream[0].id or ""}
    assert client.get(path, headers=OWN | last).status_code == 200
    assert client.get(path, headers=ALICE | last).status_code == 404


@pytest.mark.parametrize("command", ["chat", "status"])
def test_commands_send_the_key_that_they_are_given(
    guarded: Stack, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    run = importlib.import_module(f"cli.{command}").run
    arguments = ["--url", guarded.url, *(["hello", "--max-tokens", "2"] if command == "chat" else [])]
    with pytest.raises(OrcaError, match="asks for an API key"):
        run(arguments)
    monkeypatch.setenv("ORCA_API_KEY", "wrong")
    with pytest.raises(OrcaError, match="asks for an API key"):
        run(arguments)
    assert capsys.readouterr().out == ""
    run([*arguments, "--api-key", "key-of-alice"])
    assert capsys.readouterr().out
    monkeypatch.setenv("ORCA_API_KEY", "own-key")
    run(arguments)
    assert capsys.readouterr().out
    with pytest.raises(SystemExit, match="0"):
        run(["--help"])
    assert "own-key" not in capsys.readouterr().out
