"""CORS: the settings alone determine which web pages can call the API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from stack import Stack

from cli.arguments import parse_serve
from services.errors import UsageError
from services.settings.settings import Settings

PAGE, OTHER = "http://localhost:3000", "http://elsewhere.example"
PREFLIGHT = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,idempotency-key,last-event-id",
}
PATH = "/v1/chat/completions"
CHAT = {"messages": [{"role": "user", "content": "hi"}]}
KEY = {"Authorization": "Bearer key-of-alice"}


@pytest.fixture(scope="module")
def opened(redis_url: str, tiny_folder: Path) -> Iterator[httpx.Client]:
    settings = Settings(allowed_origins=[PAGE], api_keys={"key-of-alice": "alice"})
    with Stack(redis_url, "opened", tiny_folder, settings) as stack:
        yield stack.http


def allowed(response: httpx.Response) -> str | None:
    return response.headers.get("access-control-allow-origin")


def test_a_preflight_needs_no_key(opened: httpx.Client) -> None:
    answer = opened.options(PATH, headers=PREFLIGHT | {"Origin": PAGE})
    assert answer.status_code == 200
    assert allowed(answer) == PAGE
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert answer.headers["access-control-allow-headers"] == PREFLIGHT["Access-Control-Request-Headers"]
    assert "access-control-allow-credentials" not in answer.headers


def test_a_page_of_another_origin_gets_no_headers(opened: httpx.Client) -> None:
    refused = opened.options(PATH, headers=PREFLIGHT | {"Origin": OTHER})
    assert refused.status_code == 400
    assert allowed(refused) is None
    assert allowed(opened.post(PATH, json=CHAT, headers=KEY | {"Origin": OTHER})) is None


@pytest.mark.parametrize("stream", [False, True])
def test_a_page_may_read_answers(opened: httpx.Client, stream: bool) -> None:
    answer = opened.post(PATH, json=CHAT | {"stream": stream}, headers=KEY | {"Origin": PAGE})
    assert answer.status_code == 200
    assert allowed(answer) == PAGE
    assert "Origin" in answer.headers["vary"]
    exposed = {name.strip().lower() for name in answer.headers["access-control-expose-headers"].split(",")}
    assert exposed == {"orca-request", "retry-after", "x-request-id", "request-id"}


def test_a_page_may_read_errors(opened: httpx.Client) -> None:
    for path, headers, status in ((PATH, {}, 401), ("/nowhere", KEY, 404), (PATH, KEY, 400)):
        answer = opened.post(path, content=b"{", headers=headers | {"Origin": PAGE})
        assert (answer.status_code, allowed(answer)) == (status, PAGE)


def test_without_the_setting_there_are_no_headers(http: httpx.Client) -> None:
    asked = http.options(PATH, headers=PREFLIGHT | {"Origin": PAGE})
    assert asked.status_code == 405
    plain = http.get("/health", headers={"Origin": PAGE})
    for response in (asked, plain):
        assert not [name for name in response.headers if name.startswith("access-control")]


@pytest.mark.parametrize("words", [[PAGE, OTHER], [f'["{PAGE}", "{OTHER}"]']])
def test_the_command_line_takes_words_or_json(words: list[str]) -> None:
    assert parse_serve(["--allowed-origins", *words]).allowed_origins == [PAGE, OTHER]


def test_values_that_are_not_json_are_refused() -> None:
    with pytest.raises(UsageError, match="allowed_origins"):
        parse_serve(["--allowed-origins", "[http"])


@pytest.mark.parametrize("words", [f"{PAGE} {OTHER}", f'["{PAGE}", "{OTHER}"]'])
def test_a_variable_or_a_file_takes_words_or_json(words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "given.yaml").write_text(f"allowed-origins: '{words}'")
    assert parse_serve(["--config", "given.yaml"]).allowed_origins == [PAGE, OTHER]
    monkeypatch.setenv("ORCA_ALLOWED_ORIGINS", words)
    assert parse_serve([]).allowed_origins == [PAGE, OTHER]
