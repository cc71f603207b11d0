"""What a web page can make a browser send: with its own name for this machine, and across origins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from stack import Stack

from services.settings.settings import Settings

BODY = {"prompt": "hello", "max_tokens": 2}
TEXT = b'{"prompt": "hello", "max_tokens": 2}'
PATH = "/v1/completions"
PAGE = "http://page.example"


@pytest.fixture(scope="module")
def named(redis_url: str, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A server for other machines with the name orca.example."""
    settings = Settings(
        host="0.0.0.0",
        allowed_hosts=["orca.example", "[FD00::0:9]"],
        allowed_origins=["http://friend.example"],
        files_dir=str(tmp_path_factory.mktemp("files")),
    )
    with Stack(redis_url, "named", tiny_folder, settings) as stack:
        yield stack.http


def refusal(response: httpx.Response, status: int, code: str) -> str:
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    return str(response.json()["error"]["message"])


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1:8000", "127.9.9.9", "[::1]:8000", "a.localhost"]
)
def test_a_server_on_this_machine_is_called_by_its_names(http: httpx.Client, host: str) -> None:
    assert http.post(PATH, json=BODY, headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["page.example", "page.example:8000", "192.168.0.7", "[fd00::7]:80", "localhost.page.example", "[", "@"]
)
def test_other_names_are_refused(http: httpx.Client, host: str) -> None:
    assert host in refusal(http.post(PATH, json=BODY, headers={"Host": host}), 403, "unknown_host")
    for probe in ("/health", "/ping", "/ready"):
        assert http.get(probe, headers={"Host": host}).status_code != 403


def test_metrics_may_be_asked_by_any_address_but_by_no_other_name(http: httpx.Client, named: httpx.Client) -> None:
    for server in (http, named):
        for address in ("10.1.2.3:8000", "10.1.2.3", "[fd00::7]:8000"):
            assert server.get("/metrics", headers={"Host": address}).status_code == 200
        for name in ("page.example", "10.1.2.3.page.example", "[fd00::7"):
            refusal(server.get("/metrics", headers={"Host": name}), 403, "unknown_host")


def test_the_refusal_is_in_the_shape_that_the_client_reads(http: httpx.Client) -> None:
    headers = {"Host": "page.example", "anthropic-version": "2023-06-01"}
    answer = http.post("/v1/messages", json={}, headers=headers)
    assert (answer.status_code, answer.json()["error"]["type"]) == (403, "permission_error")


def test_names_can_be_given(named: httpx.Client) -> None:
    for host in ("orca.example", "Orca.Example:8000", "localhost", "[fd00::9]:8000"):
        assert named.get("/v1/models", headers={"Host": host}).status_code == 200
    refusal(named.get("/v1/models", headers={"Host": "page.example"}), 403, "unknown_host")


@pytest.mark.parametrize("settings", [{"host": "0.0.0.0"}, {"allowed_hosts": ["*"]}])
def test_others_call_an_open_server_as_they_like(redis_url: str, tiny_folder: Path, settings: dict[str, Any]) -> None:
    with Stack(redis_url, "open", tiny_folder, Settings(**settings), engine=False) as stack:
        assert httpx.get(stack.url + "/v1/models", headers={"Host": "page.example"}).status_code == 200


@pytest.mark.parametrize(
    "kind", ["application/json", "Application/JSON; charset=utf-8", "application/vnd.x+json", None]
)
def test_json_is_taken_and_what_nothing_is_said_of(http: httpx.Client, kind: str | None) -> None:
    assert http.post(PATH, content=TEXT, headers={"content-type": kind} if kind else {}).status_code == 200


@pytest.mark.parametrize("path", [PATH, "/v1/chat/completions", "/v1/responses", "/v1/messages", "/tokenize"])
@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "nonsense", "text/x+json"])
def test_another_content_type_is_refused_with_what_to_send(http: httpx.Client, path: str, kind: str) -> None:
    answer = http.post(path, content=TEXT, headers={"content-type": kind})
    assert answer.status_code == 415
    message = answer.json()["error"]["message"]
    assert kind in message
    assert "-H 'Content-Type: application/json'" in message


@pytest.mark.parametrize("kind", [None, "text/plain", "multipart/form-data; boundary=x"])
@pytest.mark.parametrize("origin", [PAGE, "null"])
def test_what_browsers_send_unasked_for_a_foreign_page_is_refused(
    named: httpx.Client, kind: str | None, origin: str
) -> None:
    headers = {"Origin": origin} | ({"content-type": kind} if kind else {})
    for path in (PATH, "/v1/files"):
        assert origin in refusal(named.post(path, content=TEXT, headers=headers), 403, "unknown_origin")


@pytest.mark.parametrize("origin", ["http://[", "http://[x]", "http://[::1]x"])
def test_an_origin_that_is_no_url_is_foreign(http: httpx.Client, origin: str) -> None:
    refusal(
        http.post(PATH, content=TEXT, headers={"Origin": origin, "content-type": "text/plain"}), 403, "unknown_origin"
    )


def test_own_and_allowed_pages_may_upload(named: httpx.Client) -> None:
    file = {"file": ("a.jsonl", b'{"custom_id": "a"}')}
    for origin in (f"http://{named.base_url.netloc.decode()}", "http://friend.example"):
        sent = named.post("/v1/files", files=file, data={"purpose": "batch"}, headers={"Origin": origin})
        assert sent.status_code == 200, sent.text
    sent = named.post("/v1/files", files=file, data={"purpose": "batch"}, headers={"Origin": PAGE})
    refusal(sent, 403, "unknown_origin")
