"""Prometheus beside a server under load: does each panel of the dashboard have data, and are the sums right?

python -m load.monitoring [--seconds 60]

Starts a server with two gateways and two tenants, and Prometheus, which scrapes it at two addresses. Clients stream
answers, a batch runs, one request is refused, and the engine is killed once. Then the expressions of the dashboard are
asked for the time of the run, and the sums are compared with what the clients counted. The exit status is 1 if an
expression has no data or a sum is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import yaml

from load.report import table
from load.server import ROOT, OrcaServer, free_port, until
from services.client.sse import Event, StreamedAnswer
from services.client.streaming import follow, open_session
from services.metrics.declared import COUNTERS, HISTOGRAMS

FOLDER = ROOT / "deploy" / "monitoring"
TENANTS = ("red", "blue")
CLIENTS = 3  # of each tenant, each with one stream at a time
LINES = 4  # of the batch
TOKENS = 24
PATIENCE = 120.0  # seconds
STEP = 5  # seconds between the points that are asked for


@dataclass
class Counted:
    """What the clients counted, by tenant."""

    requests: Counter[str] = field(default_factory=Counter)
    prompt: Counter[str] = field(default_factory=Counter)
    output: Counter[str] = field(default_factory=Counter)


@contextmanager
def prometheus(folder: Path, *targets: str) -> Iterator[str]:
    """Prometheus with the configuration of `deploy/monitoring`, which scrapes `targets` each second; its address."""
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(FOLDER / "alerts.yml")]
    config["scrape_configs"][0]["static_configs"] = [{"targets": list(targets)}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    flags = {"config.file": f"{folder}/prometheus.yml", "storage.tsdb.path": f"{folder}/data"}
    flags |= {"web.listen-address": address, "log.level": "error"}
    process = subprocess.Popen(["prometheus", *(f"--{name}={value}" for name, value in flags.items())])
    try:
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(30)


async def client(url: str, tenant: str, end: float, counted: Counted) -> None:
    async with open_session(url, f"key-{tenant}") as session:
        number = 0
        while time.monotonic() < end:
            number += 1
            body = {"prompt": f"Count to {number}: one, two", "max_tokens": TOKENS, "stream": True}
            body |= {"ignore_eos": True, "stream_options": {"include_usage": True}}
            await _stream(session, body, tenant, counted)


async def _stream(session: aiohttp.ClientSession, body: dict[str, Any], tenant: str, counted: Counted) -> None:
    usage: dict[str, int] = {}

    def on_event(event: Event) -> None:
        if event.data.startswith("{"):
            usage.update(json.loads(event.data).get("usage") or {})

    await follow(session, "/v1/completions", body, StreamedAnswer(), on_event)
    counted.requests[tenant] += 1
    counted.prompt[tenant] += usage["prompt_tokens"]
    counted.output[tenant] += usage["completion_tokens"]


async def batch(url: str) -> int:
    """Run a batch; return the lines that it answered."""
    line = {"method": "POST", "url": "/v1/completions", "body": {"prompt": "Hello", "max_tokens": 4}}
    lines = "\n".join(json.dumps(line | {"custom_id": str(i)}) for i in range(LINES))
    async with httpx.AsyncClient(base_url=url, headers={"Authorization": "Bearer key-red"}, timeout=PATIENCE) as http:
        sent = await http.post("/v1/files", files={"file": ("lines.jsonl", lines)}, data={"purpose": "batch"})
        ask = {"input_file_id": sent.json()["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
        id = (await http.post("/v1/batches", json=ask)).json()["id"]
        ended = False
        while not ended:
            await asyncio.sleep(0.5)
            found = (await http.get(f"/v1/batches/{id}")).json()
            ended = found["status"] in ("completed", "failed")
    return int(found["request_counts"]["completed"])


async def load(server: OrcaServer, seconds: float) -> tuple[Counted, int]:
    """All clients for so many seconds; the engine is killed half way. Returns what they counted, and the lines of the
    batch."""
    counted, end = Counted(), time.monotonic() + seconds
    async with asyncio.TaskGroup() as tasks:
        for tenant in TENANTS:
            for _ in range(CLIENTS):
                tasks.create_task(client(server.url, tenant, end, counted))
        async with httpx.AsyncClient(headers={"Authorization": "Bearer key-red"}) as http:
            refused = await http.post(f"{server.url}/v1/completions", json={"prompt": "a", "max_tokens": -1})
            assert refused.status_code == 400, refused.text
        await asyncio.sleep(seconds / 2)
        os.kill(await asyncio.to_thread(server.engine), signal.SIGKILL)
    return counted, await batch(server.url)  # its lines wait while there are other requests


def panels(address: str, instance: str, began: float, ended: float) -> list[tuple[str, str, int, float | None]]:
    """Each expression of the dashboard: its panel, its legend, its points in that time, the largest value."""
    board = json.loads((FOLDER / "orca.json").read_text())
    model = ask(address, "query", query="orca:engines")[0]["metric"]["model_name"]
    values = {"$__rate_interval": "15s", "$model": model, "$instance": instance, "$engine": ".*", "$tenant": ".*"}
    found = []
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"]
            for name, value in values.items():
                expression = expression.replace(name, value)
            series = ask(address, "query_range", query=expression, start=began, end=ended, step=STEP)
            points = [float(value) for each in series for _, value in each["values"] if value != "NaN"]
            found.append((panel["title"], target["legendFormat"], len(points), max(points, default=None)))
    return found


def ask(address: str, kind: str, **parameters: Any) -> list[dict[str, Any]]:
    answer = httpx.get(f"{address}/api/v1/{kind}", params=parameters, timeout=PATIENCE)
    answer.raise_for_status()
    result: list[dict[str, Any]] = answer.json()["data"]["result"]
    return result


def sums(address: str, instance: str, counted: Counted, lines: int) -> list[tuple[str, float, float]]:
    """What was counted: its name, by the clients, by Prometheus."""

    def total(name: str, labels: str = "") -> float:
        found = ask(address, "query", query=f'sum({name}{{instance="{instance}"{labels}}})')
        return float(found[0]["value"][1]) if found else 0.0

    rows = []
    for tenant in TENANTS:
        of = f', tenant="{tenant}", priority="0"'
        rows += [
            (f"requests of {tenant}", counted.requests[tenant], total("orca:tenant_requests_total", of)),
            (f"prompt tokens of {tenant}", counted.prompt[tenant], total("orca:tenant_prompt_tokens_total", of)),
            (f"output tokens of {tenant}", counted.output[tenant], total("orca:tenant_generation_tokens_total", of)),
        ]
    requests = counted.requests.total()
    return [
        *((name, float(here), there) for name, here, there in rows),
        ("ended requests of all engines", requests + lines, total("vllm:request_success_total")),
        ("times to first token", requests, total("vllm:time_to_first_token_seconds_count")),
        ("end-to-end times", requests, total("vllm:e2e_request_latency_seconds_count")),
        ("lines of batches", lines, total("orca:batch_lines_total")),
        ("refused requests", 1, total("vllm:admission_rejections_total")),
        ("engines killed", 1, total("orca:engine_losses_total")),
        ("gateways with figures of their own", 2, gateways(address, instance)),
        ("counters that went backwards", 0, backwards(address)),
    ]


def gateways(address: str, instance: str) -> float:
    return float(len(ask(address, "query", query=f'orca:gateway_requests{{instance="{instance}"}}')))


def backwards(address: str) -> float:
    """Series of sums that were ever smaller than before."""
    sums = [f"{name}_total" for name in COUNTERS]
    sums += [f"{name}_{part}" for name in HISTOGRAMS for part in ("bucket", "sum")]
    return float(sum(len(ask(address, "query", query=f"resets({name}[1h]) > 0")) for name in sums))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="of load (default 60)")
    seconds = parser.parse_args().seconds
    if shutil.which("prometheus") is None:
        sys.exit("prometheus is not on the PATH")
    keys = json.dumps({f"key-{tenant}": tenant for tenant in TENANTS})
    flags = ("--gateways", "2", "--api-keys", keys, "--metrics-tenants", " ".join(TENANTS))
    with tempfile.TemporaryDirectory() as name, OrcaServer(Path(name), *flags) as server:
        asyncio.run(until(lambda: server.metrics().get("orca:gateways") == 2 and server.has_spares(), PATIENCE, 0.5))
        (folder := Path(name, "prometheus")).mkdir()
        instance = f"127.0.0.1:{server.port}"
        with prometheus(folder, instance, f"localhost:{server.port}") as address:
            began = time.time()
            counted, lines = asyncio.run(load(server, seconds))
            assert server.until_idle(PATIENCE)
            time.sleep(5)  # heartbeats bring what the gateways counted, and Prometheus reads it
            shown = panels(address, instance, began, time.time())
            compared = sums(address, instance, counted, lines)
            alerts = ask(address, "query", query='count by (alertname) (ALERTS{alertstate="firing"})')
    empty = [f"{title}: {legend}" for title, legend, points, _ in shown if not points]
    wrong = [title for title, here, there in compared if here != there]
    print(
        table(
            ["panel", "series", "points", "largest"],
            [[t, g, f"{p:,}", "" if v is None else f"{v:.4g}"] for t, g, p, v in shown],
        )
    )
    print()
    print(
        table(
            ["", "clients", "Prometheus"], [[title, f"{here:,.0f}", f"{there:,.0f}"] for title, here, there in compared]
        )
    )
    print(f"\nAlerts that fire: {', '.join(each['metric']['alertname'] for each in alerts) or 'none'}")
    print(f"Without data: {', '.join(empty) or 'none'}\nWrong sums: {', '.join(wrong) or 'none'}")
    return 1 if empty or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
