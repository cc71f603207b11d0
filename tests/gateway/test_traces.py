"""Traces of a gateway and a scheduler: real requests, and a collector that receives real exports."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from span_collector import Collector, ReceivedSpan
from stack import SEAT, Stack

from services.settings.settings import Settings
from services.tracing import tracer

GATEWAY = ["llm_request", "validate", "submit"]
SCHEDULER = ["queue", "tenure", "engine", "prefill"]
BODY = {"prompt": "a b c", "max_tokens": 4, "ignore_eos": True}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


@pytest.fixture(scope="module")
def stack(redis_url: str, tiny_folder: Path, collector: Collector) -> Iterator[Stack]:
    with pytest.MonkeyPatch.context() as variables:
        variables.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")  # milliseconds until an export
        settings = Settings(otlp_traces_endpoint=collector.endpoint)
        with Stack(redis_url, "traced", tiny_folder, settings) as stack:
            yield stack


def traced(http: httpx.Client, body: dict[str, object] = BODY, flags: str = "01", **headers: str) -> tuple[str, str]:
    """Post a completion within a new trace. Returns the trace and the span of the client."""
    trace, span = secrets.token_hex(16), secrets.token_hex(8)
    reply = http.post("/v1/completions", json=body, headers={"traceparent": f"00-{trace}-{span}-{flags}", **headers})
    assert reply.status_code == 200, reply.text
    return trace, span


def by_name(spans: list[ReceivedSpan]) -> dict[str, ReceivedSpan]:
    assert len({span.name for span in spans}) == len(spans)
    return {span.name: span for span in spans}


def test_a_request_is_followed_through_gateway_pool_scheduler_and_engine(
    http: httpx.Client, collector: Collector
) -> None:
    trace, client = traced(http)
    spans = by_name(collector.until([*GATEWAY, *SCHEDULER, "decode"], trace))
    root, tenure, engine = spans["llm_request"], spans["tenure"], spans["engine"]
    assert root.parent == client
    assert {spans[name].parent for name in ("validate", "submit", "queue", "tenure")} == {root.id}
    assert engine.parent == tenure.id
    assert {spans[name].parent for name in ("prefill", "decode")} == {engine.id}
    assert {name: span.process for name, span in spans.items()} == (
        dict.fromkeys(GATEWAY, "gateway") | dict.fromkeys([*SCHEDULER, "decode"], "scheduler")
    )
    assert all(root.begin <= span.begin <= span.end <= root.end + 1 for span in spans.values())
    assert spans["queue"].end <= tenure.begin + 1e-3
    assert tenure.attributes["orca.seat"] == SEAT
    assert tenure.attributes["orca.ended_by"] == "finished"
    assert tenure.attributes["gen_ai.response.finish_reasons"] == ["length"]
    assert tenure.attributes["gen_ai.usage.completion_tokens"] == 4
    assert engine.attributes["orca.iterations"] == 4
    assert spans["prefill"].attributes["orca.prompt_chunks"] == 1
    assert root.attributes["gen_ai.request.id"].startswith("cmpl-")
    assert root.attributes["gen_ai.usage.completion_tokens"] == 4
    assert root.begin < root.events["first_token"] < root.end


def test_no_text_of_a_request_is_in_its_trace(http: httpx.Client, collector: Collector) -> None:
    trace, _ = traced(http, BODY | {"prompt": "secretword secretword", "user": "secretword"})
    assert "secretword" not in str(collector.until([*GATEWAY, *SCHEDULER], trace))


def test_each_choice_has_its_own_queue_and_tenure(http: httpx.Client, collector: Collector) -> None:
    trace, _ = traced(http, BODY | {"n": 2})
    spans = collector.until(["llm_request", "queue", "queue", "tenure", "tenure"], trace)
    request = next(span for span in spans if span.name == "llm_request").attributes["gen_ai.request.id"]
    tenures = {span.attributes["orca.sequence"] for span in spans if span.name == "tenure"}
    assert tenures == {f"{request}/0", f"{request}/1"}


def test_a_client_that_does_not_sample_has_no_spans(http: httpx.Client, collector: Collector) -> None:
    silent, _ = traced(http, flags="00")
    later, _ = traced(http)
    collector.until([*GATEWAY, *SCHEDULER], later)
    assert collector.of(silent) == []


@pytest.mark.parametrize("header", ["", "none", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "00-" + "f" * 400])
def test_a_request_without_a_valid_context_has_a_trace_of_its_own(
    http: httpx.Client, collector: Collector, header: str
) -> None:
    reply = http.post("/v1/completions", json=BODY, headers={"traceparent": header})
    request, before = reply.json()["id"], secrets.token_hex(8)
    marker, _ = traced(http, BODY | {"user": before})
    collector.until(GATEWAY, marker)
    (root,) = [span for span in collector.spans if span.attributes.get("gen_ai.request.id") == request]
    assert root.parent == ""
    assert {span.name for span in collector.until([*GATEWAY, *SCHEDULER], root.trace)} >= set(SCHEDULER)


def test_a_resumed_stream_is_linked_to_the_first_trace(http: httpx.Client, collector: Collector) -> None:
    body, headers = BODY | {"stream": True}, {"orca-resumable": "true"}
    first, again = secrets.token_hex(16), secrets.token_hex(16)
    made = http.post("/v1/completions", json=body, headers=headers | {"traceparent": f"00-{first}-{'1' * 16}-01"})
    stream = f"/v1/streams/{made.headers['orca-request']}"
    assert http.get(stream, headers={"traceparent": f"00-{again}-{'2' * 16}-01"}).status_code == 200
    (resumed,) = collector.until(["llm_request resumed"], again)
    assert resumed.links == (first,)
    assert [span.name for span in collector.of(first)].count("llm_request") == 1


def test_a_request_that_fails_says_why(http: httpx.Client, collector: Collector) -> None:
    trace = secrets.token_hex(16)
    body = BODY | {"prompt": "FAIL a b", "max_tokens": 8}
    http.post("/v1/completions", json=body, headers={"traceparent": f"00-{trace}-{'3' * 16}-01"})
    tenure = by_name(collector.until(["llm_request", "tenure"], trace))["tenure"]
    assert tenure.error
    assert tenure.attributes["gen_ai.response.finish_reasons"] == ["error"]


def test_requests_are_answered_while_the_collector_is_away(
    redis_url: str, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracer, "FLUSH_TIME", 0.1)
    settings = Settings(otlp_traces_endpoint="http://127.0.0.1:9/v1/traces")
    with Stack(redis_url, "lonely", tiny_folder, settings) as stack, httpx.Client(base_url=stack.url) as http:
        traced(http)
