"""Logs of a gateway as JSON: each line is an object, and names the request that it is about."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from stack import Stack

from services.logs import PACKAGES, about, configure, describe
from services.settings.settings import Settings

TRACE = "0af7651916cd43dd8448eb211c80319c"
BODY = {"prompt": "a b c", "max_tokens": 4, "ignore_eos": True}


@pytest.fixture(scope="module")
def stack(redis_url: str, tiny_folder: Path) -> Iterator[Stack]:
    settings = Settings(enable_log_requests=True, unknown_fields="ignore", otlp_traces_endpoint="http://127.0.0.1:9")
    with pytest.MonkeyPatch.context() as patches, Stack(redis_url, "logged", tiny_folder, settings) as stack:
        patches.setattr("services.tracing.tracer.FLUSH_TIME", 0.1)
        yield stack


@pytest.fixture(autouse=True)
def _own_handlers() -> Iterator[None]:
    """What `configure` changes is restored."""
    root, ray, own = logging.getLogger(), logging.getLogger("ray"), list(map(logging.getLogger, PACKAGES))
    levels = [logger.level for logger in own]
    handlers, level, of_ray, propagate = root.handlers[:], root.level, ray.handlers[:], ray.propagate
    yield
    root.handlers[:], ray.handlers[:], ray.propagate = handlers, of_ray, propagate
    root.setLevel(level)
    for logger, before in zip(own, levels, strict=True):
        logger.setLevel(before)


def lines_of(capfd: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capfd.readouterr().err.splitlines()]


def test_the_line_of_a_request_has_its_ids_and_figures(http: httpx.Client, capfd: pytest.CaptureFixture[str]) -> None:
    configure(Settings(log_format="json"), "gateway")
    headers = [("x-request-id", "mine-é".encode("latin-1")), ("traceparent", f"00-{TRACE}-{'1' * 16}-01".encode())]
    id = http.post("/v1/completions", json=BODY | {"prompt": "secretword"}, headers=headers).json()["id"]
    text = capfd.readouterr().err
    (line,) = [entry for entry in map(json.loads, text.splitlines()) if entry.get("request_id") == id]
    assert "secretword" not in text
    assert (line["x_request_id"], line["trace_id"]) == ("mine-é", TRACE)
    assert (line["level"], line["process"], line["logger"]) == ("info", "gateway", "gateway.pool_client.request_record")
    assert (line["completion_tokens"], line["finish_reasons"], line["error"]) == (4, ["length"], None)
    assert 0 < line["ttft_seconds"] <= line["seconds"]
    assert line["ts"].endswith("+00:00")


def test_a_message_within_a_request_names_it(http: httpx.Client, capfd: pytest.CaptureFixture[str]) -> None:
    configure(Settings(log_format="json"), "gateway")
    http.post("/v1/completions", json=BODY | {"not_known_yet": 1}, headers={"x-request-id": "mine"})
    (line,) = [line for line in lines_of(capfd) if "not_known_yet" in line["message"]]
    assert (line["level"], line["x_request_id"]) == ("warning", "mine")


def test_a_request_that_is_left_is_logged_as_abandoned(http: httpx.Client, capfd: pytest.CaptureFixture[str]) -> None:
    configure(Settings(log_format="json"), "gateway")
    body = BODY | {"prompt": "SLOW a b", "max_tokens": 200, "stream": True}
    with http.stream("POST", "/v1/completions", json=body) as reply:
        id = reply.headers["orca-request"]
    found: list[dict[str, Any]] = []
    while not found:
        http.get("/health")
        found = [line for line in lines_of(capfd) if line.get("request_id") == id]
    assert found[0]["finish_reasons"] == ["abandoned"]


def test_messages_have_what_describes_the_process_and_what_they_are_about(capfd: pytest.CaptureFixture[str]) -> None:
    configure(Settings(log_format="json", log_level="warning"), "scheduler", rank="0")
    describe(seat="0", epoch="7:x")
    log = logging.getLogger("a.b")
    log.warning("two\nlines of %s", "them", extra=about("r/0", "r/1"))
    log.info("below the level")
    describe(seat="", epoch="")
    try:
        raise ValueError("why")
    except ValueError:
        log.exception("failed", extra=about("r/2"))
    first, second = lines_of(capfd)
    assert (first["message"], first["request_ids"]) == ("two\nlines of them", ["r/0", "r/1"])
    assert (first["seat"], first["epoch"], first["rank"], first["process"]) == ("0", "7:x", "0", "scheduler")
    assert "seat" not in second
    assert (second["request_id"], second["level"]) == ("r/2", "error")
    assert second["exception"].endswith("ValueError: why")


def test_the_level_is_that_of_our_messages_alone(capfd: pytest.CaptureFixture[str]) -> None:
    configure(Settings(log_level="debug"), "scheduler")
    logging.getLogger("services.a").debug("ours")
    logging.getLogger("another").info("theirs")
    logging.getLogger("another").warning("theirs, a warning")
    configure(Settings(log_level="error"), "scheduler")
    logging.getLogger("services.a").warning("ours, too low")
    messages = [line.partition(" -- ")[2] for line in capfd.readouterr().err.splitlines()]
    assert messages == ["ours", "theirs, a warning"]


def test_text_has_level_time_and_process(capfd: pytest.CaptureFixture[str]) -> None:
    configure(Settings(), "scheduler")
    logging.getLogger("a.b").warning("careful")
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("WARNING ")
    assert line.endswith("a.b -- careful")
    assert " scheduler " in line
