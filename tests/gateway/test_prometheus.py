"""A real Prometheus that scrapes two gateways of one pool."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from stack import Stack
from waiting import wait_until

from load.server import ROOT, free_port
from services.metrics.declared import COUNTERS, HISTOGRAMS
from services.settings.settings import Settings

pytestmark = pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed")

TOKENS = 7
FOLDER = ROOT / "deploy" / "monitoring"
PATIENCE = 30.0  # seconds for Prometheus to start, and to read what was counted


def test_each_gateway_gives_the_sums_of_both_and_none_goes_backwards(
    redis_url: str, tiny_folder: Path, tmp_path: Path
) -> None:
    with (
        Stack(redis_url, "scraped", tiny_folder, Settings()) as first,
        Stack(redis_url, "scraped", tiny_folder, Settings(), engine=False) as second,
    ):
        instances = [stack.url.removeprefix("http://") for stack in (first, second)]
        with prometheus(tmp_path, *instances) as address:

            def seen(query: str) -> dict[str, float]:
                try:
                    found = ask(address, "query", query=query)
                except httpx.HTTPError:  # it starts
                    return {}
                return {each["metric"].get("instance", ""): float(each["value"][1]) for each in found}

            wait_until(lambda: len(seen("orca:gateways == 2")) == 2, PATIENCE)
            for stack in (first, second):
                asked = {"prompt": "hello", "max_tokens": TOKENS}
                assert httpx.post(f"{stack.url}/v1/completions", json=asked).status_code == 200
                assert httpx.post(f"{stack.url}/v1/completions", json={"n": "x"}).status_code == 400
            for name, value in (
                ("orca:tenant_generation_tokens_total", 2 * TOKENS),
                ("vllm:time_to_first_token_seconds_count", 2),
                ("vllm:admission_rejections_total", 2),
            ):
                wait_until(
                    lambda name=name, value=value: seen(name) == dict.fromkeys(instances, float(value)), PATIENCE
                )
            assert len(ask(address, "query", query=f'orca:gateway_requests{{instance="{instances[0]}"}}')) == 2
            assert backwards(address) == 0


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


def ask(address: str, kind: str, **parameters: Any) -> list[dict[str, Any]]:
    answer = httpx.get(f"{address}/api/v1/{kind}", params=parameters, timeout=PATIENCE)
    answer.raise_for_status()
    result: list[dict[str, Any]] = answer.json()["data"]["result"]
    return result


def backwards(address: str) -> float:
    """Series of sums that were ever smaller than before."""
    sums = [f"{name}_total" for name in COUNTERS]
    sums += [f"{name}_{part}" for name in HISTOGRAMS for part in ("bucket", "sum")]
    return float(sum(len(ask(address, "query", query=f"resets({name}[1h]) > 0")) for name in sums))
