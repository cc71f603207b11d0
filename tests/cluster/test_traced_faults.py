"""A traced request whose scheduler or engine dies, and the logs of all processes meanwhile."""

from __future__ import annotations

import json
import os
import secrets
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from span_collector import Collector, ReceivedSpan

from actors.cluster.environment import RAY_FOLDER
from load.server import OrcaServer
from services.tracing import names

pytestmark = [pytest.mark.cluster, pytest.mark.chaos]

TOKENS = 240
PROMPT = "Tell me about the ocean."
SPANS = [names.REQUEST, names.TENURE, names.ENGINE]


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with pytest.MonkeyPatch.context() as variables, Collector() as collector:
        variables.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")  # milliseconds until an export
        yield collector


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[OrcaServer]:
    flags = ("--gateways", "1", "--log-format", "json", "--enable-log-requests")
    endpoint = ("--otlp-traces-endpoint", collector.endpoint)
    with OrcaServer(tmp_path_factory.mktemp("traced"), *flags, *endpoint) as server:
        yield server


def follow(server: OrcaServer, collector: Collector, tokens: int, kill: str = "") -> list[ReceivedSpan]:
    """Stream a completion of so many tokens and return the spans of its trace. `kill`: the process, scheduler or
    engine, that is killed when half of the tokens have arrived; empty: none."""
    trace = secrets.token_hex(16)
    headers = {"traceparent": f"00-{trace}-{secrets.token_hex(8)}-01"}
    body = {"prompt": PROMPT, "max_tokens": tokens, "stream": True, "ignore_eos": True, "temperature": 0}
    arrived = 0
    server.until_spares()
    victim = server.scheduler() if kill == "scheduler" else server.engine()  # asked before: asking takes its time
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, headers=headers, timeout=120) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if line.startswith("data: {") and json.loads(line[6:])["choices"]:
                arrived += 1
                if kill and arrived == tokens // 2:
                    os.kill(victim, signal.SIGKILL)
    return collector.until([*SPANS, *([names.TENURE] if kill else [])], trace)


def tenures(spans: list[ReceivedSpan]) -> list[ReceivedSpan]:
    return [span for span in spans if span.name == "tenure"]


def test_the_trace_shows_both_schedulers_of_a_request(server: OrcaServer, collector: Collector) -> None:
    first, second = tenures(follow(server, collector, TOKENS, kill="scheduler"))
    assert (first.attributes["orca.ended_by"], second.attributes["orca.ended_by"]) == ("taken", "finished")
    assert first.attributes["orca.epoch"] < second.attributes["orca.epoch"]
    assert first.pid == second.pid  # the second scheduler writes what the first could not
    made = second.attributes["orca.resumed_tokens"] + second.attributes["gen_ai.usage.completion_tokens"]
    assert made == TOKENS


def test_the_trace_shows_the_engine_that_died(server: OrcaServer, collector: Collector) -> None:
    first, second = tenures(follow(server, collector, TOKENS, kill="engine"))
    assert (first.attributes["orca.ended_by"], second.attributes["orca.ended_by"]) == ("engine_lost", "finished")


def test_every_process_logs_json(server: OrcaServer) -> None:
    printed = [json.loads(line) for line in server.lines]
    assert any("ready at" in entry["message"] for entry in printed)
    entries = [*printed, *logged(server)]
    assert {entry["process"] for entry in entries} >= {"supervisor", "gateway", "scheduler"}
    assert all({"ts", "level", "logger", "message", "pid"} <= set(entry) for entry in entries)
    requests = [entry for entry in entries if entry["logger"] == "gateway.pool_client.request_record"]
    assert {entry["finish_reasons"][0] for entry in requests} == {"length"}
    assert all(entry["trace_id"] for entry in requests)
    lost = [entry for entry in entries if entry["process"] == "scheduler" and entry["level"] == "warning"]
    assert any(entry.get("request_id") and entry["seat"] and entry["epoch"] for entry in lost)


def logged(server: OrcaServer) -> list[dict[str, Any]]:
    """What our processes have logged. Ray begins each file with lines of its own, which begin with a colon."""
    folder = server.cluster_folder()
    assert folder is not None
    lines = (folder / "driver.log").read_text().splitlines()
    for file in folder.glob(f"{RAY_FOLDER}/session_latest/logs/worker-*.err"):
        lines += file.read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]
