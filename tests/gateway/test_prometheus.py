"""A real Prometheus that scrapes two gateways of one pool."""

from __future__ import annotations

import shutil
from pathlib import Path

import httpx
import pytest
from clients import wait_until
from stack import Stack

from load.monitoring import ask, backwards, prometheus
from services.settings.settings import Settings

pytestmark = pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed")

TOKENS = 7
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
