"""Prompts that depend on more than the body: on the date, with templates that write it, and on the model's defaults.

The engine repeats the prompt, so the output has the date with which the prompt was made.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from sse_client import DONE, Event, first, read
from stack import Stack
from test_resume import check_refused
from tiny_text import make_folder

from services.settings.settings import Settings
from services.text import chat_template

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 30}
TEMPLATE = "{{ strftime_now('%Y-%m-%d') }} {{ messages[0].content }}"
KEY = "Idempotency-Key"


class Clock:
    """Stands for `datetime` in templates, on a day that a test chooses."""

    day = 1

    @classmethod
    def now(cls) -> datetime:
        return datetime(2026, 1, cls.day)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> type[Clock]:
    monkeypatch.setattr(chat_template, "datetime", Clock)
    Clock.day = 1
    return Clock


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_folder(tmp_path_factory.mktemp("dated"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "eos_token": "<eos>"}))
    return folder


@pytest.fixture(scope="module")
def stack(redis_url: str, folder: Path) -> Iterator[Stack]:
    with Stack(redis_url, "dated", folder, Settings()) as stack:
        stack.engine.pace = 0.005  # so that a stream is not over when it breaks
        yield stack


def text(stream: list[Event]) -> str:
    parts = [event.json()["choices"][0]["delta"].get("content") for event in stream if event != DONE]
    return "".join(part or "" for part in parts)


def ask(http: httpx.Client, key: str, last: Event | None = None, **fields: Any) -> httpx.Response:
    headers = {KEY: key} | ({"Last-Event-ID": last.id or ""} if last else {})
    return http.post(CHAT, json=BODY | fields | {"stream": True}, headers=headers)


def begun(http: httpx.Client, key: str) -> list[Event]:
    """The first events of a stream that breaks then."""
    said = first(http, CHAT, BODY, 4, Idempotency_Key=key)
    assert text(said)
    return said


def lost(http: httpx.Client, stack: Stack, key: str) -> list[Event]:
    """The first events of a stream whose request the pool has lost."""
    whole = read(ask(http, key))
    assert stack.call(stack.pool.delete(whole[0].json()["id"]))
    return whole[: len(whole) // 2]


def check_day(stream: list[Event], day: int) -> None:
    """Asserts that it is whole, and that the prompt was made on this day."""
    assert stream[-1] == DONE
    said = text(stream)
    assert len(said) >= 30
    assert (f"2026-01-0{day} hello" * 10).startswith(said)


def test_a_stream_resumes_on_another_day(http: httpx.Client, other: httpx.Client, clock: type[Clock]) -> None:
    said = begun(http, "resumed")
    clock.day = 2
    check_day(said + read(ask(other, "resumed", said[-1])), 1)


def test_a_key_finds_the_request_of_another_day(http: httpx.Client, other: httpx.Client, clock: type[Clock]) -> None:
    said = begun(http, "repeated")
    clock.day = 2
    again = read(ask(other, "repeated"))
    check_day(again, 1)
    assert again[0].json()["id"] == said[0].json()["id"]
    check_refused(ask(other, "repeated", max_tokens=49), 400, "was used with another request")


def test_a_lost_request_is_not_continued_with_another_prompt(
    http: httpx.Client, stack: Stack, clock: type[Clock]
) -> None:
    said = lost(http, stack, "lost")
    clock.day = 2
    check_refused(ask(http, "lost", said[-1]), 404, "There is no request")
    clock.day = 1
    check_day(said + read(ask(http, "lost", said[-1])), 1)


def test_a_lost_request_begins_anew_on_another_day(http: httpx.Client, stack: Stack, clock: type[Clock]) -> None:
    lost(http, stack, "anew")
    clock.day = 2
    check_day(read(ask(http, "anew")), 2)


def test_an_event_of_a_request_that_was_made_anew_is_not_found(
    http: httpx.Client, stack: Stack, clock: type[Clock]
) -> None:
    said = lost(http, stack, "twice")
    clock.day = 2
    check_day(read(ask(http, "twice")), 2)
    clock.day = 1
    check_refused(ask(http, "twice", said[-1]), 404, "There is no request")


def test_a_gateway_with_other_defaults_follows_a_request_and_does_not_continue_it_with_other_tokens(
    http: httpx.Client, stack: Stack, redis_url: str, folder: Path
) -> None:
    settings = Settings(override_generation_config={"temperature": 0.5})
    with Stack(redis_url, "dated", folder, settings, engine=False) as later:
        others = later.http
        said = begun(http, "defaults")
        whole = read(ask(others, "defaults"))
        check_day(whole, 1)
        assert whole[0].json()["id"] == said[0].json()["id"]
        assert stack.engine.asked[-1].sampling.temperature == 1.0
        check_refused(ask(others, "gone", lost(http, stack, "gone")[-1]), 404, "There is no request")
