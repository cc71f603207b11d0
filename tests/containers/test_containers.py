"""docker-compose.yml run as it stands, from images that `make image` built: `make cluster-test`."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.containers import images
from tests.containers.compose_project import ComposeProject, composed
from tests.containers.daemon import Daemon, compose_command, running, timed

pytestmark = [pytest.mark.containers, pytest.mark.timeout(3600)]

STREAMS, TOKENS = 4, 200
WORKER_CPUS, WORKER_MEMORY = "1.5", 3 << 30
GRACE = 60  # stop_grace_period
PORT = "25080"
SERVICES = ("pool", "head", "worker", "deploy")
KILLED = 137  # the status of a process that SIGKILL ended

# by a shell in a running container: its user and rights as the kernel has them, and a file that cannot be written
RIGHTS = "grep -E '^(Uid|CapBnd|CapEff|NoNewPrivs):' /proc/1/status; touch /usr/file"
LIMITS = "from services.limits import total_memory, usable_cores; print(usable_cores(), total_memory())"

# threads and KV blocks that an engine takes by itself
LOADED = """
import torch
from pathlib import Path
from services.engine.engine import Engine
from services.engine.settings import EngineSettings
from services.models import resolve
engine = Engine.load(resolve("default", Path("/var/cache/orca")), EngineSettings(cache_dir=Path("/var/cache/orca")))
print("loaded", torch.get_num_threads(), engine.figures.num_blocks, engine.figures.numerics)
"""


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    compose_command()  # skips the tests before images are built for nothing
    with running() as daemon:
        print(images.prepare(daemon))
        yield daemon


@pytest.fixture(scope="module")
def project(daemon: Daemon) -> Iterator[ComposeProject]:
    """The services healthy, with two workers of which one has the engine."""
    settings = {
        "ORCA_PORT": PORT,
        "ORCA_GATEWAYS": "2",
        "ORCA_WORKER_CPUS": WORKER_CPUS,
        "ORCA_WORKER_MEMORY": str(WORKER_MEMORY),
    }
    with composed(daemon, **settings) as project:
        with timed("from the first container to a healthy API"):
            project.up("--scale", "worker=2", "pool", "prepare", "head", "worker", "deploy")
            project.healthy("deploy")
        yield project


def run(daemon: Daemon, *options: str) -> str:
    """Output of a container of the server's image, confined as in the compose file."""
    confined = ["--read-only", "--tmpfs=/tmp", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--network=none"]
    return daemon.run("docker", "run", "--rm", *confined, *options)


def loaded(daemon: Daemon, *limits: str) -> tuple[int, int]:
    """Threads and KV blocks that an engine takes by itself in a container with these limits."""
    said = run(daemon, *limits, "orca", "python", "-c", LOADED)
    (line,) = re.findall(r"^loaded (\d+) (\d+) (.*)$", said, re.MULTILINE)
    threads, blocks, numerics = line
    print(f"\n{' '.join(limits)}: {threads} threads, {blocks} KV blocks, {numerics}")
    assert "sdpa" not in numerics
    return int(threads), int(blocks)


def test_the_image_is_run_without_rights_and_without_what_a_server_does_not_need(daemon: Daemon) -> None:
    absent = "for each in g++ gcc locust; do command -v $each && exit 1; done; python -c 'import matplotlib' && exit 1"
    said = run(daemon, "orca", "sh", "-c", f"id -u; ({absent}) 2>/dev/null; touch /app/file; orca --version")
    assert re.search(r"^1000$", said, re.MULTILINE), said
    assert "Read-only file system" in said
    assert re.search(r"^orca \d", said, re.MULTILINE), said
    assert not re.search("/g\\+\\+|/gcc|/locust", said), said


def test_threads_and_kv_blocks_follow_the_limits_of_the_container(daemon: Daemon) -> None:
    two, quota, one_processor, small = [
        loaded(daemon, *limits)
        for limits in (
            ("--cpus=2", "--memory=2g"),
            ("--cpus=1.5", "--memory=2g"),
            ("--cpus=2", "--cpuset-cpus=0", "--memory=2g"),
            ("--cpus=2", "--memory=1g"),
        )
    ]
    assert [threads for threads, _ in (two, quota, one_processor, small)] == [2, 1, 1, 2]
    assert small[1] < 0.7 * two[1]


def test_no_container_has_rights_or_writes_to_its_image(project: ComposeProject) -> None:
    for service in SERVICES:
        for container in project.containers(service):
            said = project.docker("exec", container, "sh", "-c", f"{RIGHTS} && exit 1; true")
            kernel = dict(re.findall(r"^(Uid|CapBnd|CapEff|NoNewPrivs):\s+(\w+)", said, re.MULTILINE))
            assert kernel.pop("Uid") == ("999" if service == "pool" else "1000"), service
            assert kernel == {"CapBnd": "0" * 16, "CapEff": "0" * 16, "NoNewPrivs": "1"}, service
            assert "Read-only file system" in said, service


def test_workers_have_the_limits_of_the_compose_file(project: ComposeProject) -> None:
    for container in project.containers("worker"):
        said = project.docker("exec", container, "python", "-c", LIMITS)
        assert said.split() == [str(int(float(WORKER_CPUS))), str(WORKER_MEMORY)]


def test_a_chat_is_answered_by_the_model(project: ComposeProject) -> None:
    body = {
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "max_tokens": 30,
        "temperature": 0,
    }
    answer = project.ask("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]
    print(f"\n{answer}")
    assert "Paris" in answer


def test_prometheus_scrapes_and_has_our_rules(project: ComposeProject) -> None:
    project.compose("--profile", "monitoring", "up", "--detach", "--no-build", "--no-deps", "prometheus")
    prometheus = "http://127.0.0.1:9090/api/v1"

    def engines() -> list[Any]:
        try:
            found = project.ask(f"{prometheus}/query", params={"query": "orca:engines"}).json()["data"]["result"]
        except httpx.TransportError:
            return []
        return [each["value"][1] for each in found]

    project.until("Prometheus has scraped", lambda: engines() == ["1"])
    rules = project.ask(f"{prometheus}/rules").json()["data"]["groups"]
    assert [rule for group in rules for rule in group["rules"] if rule["health"] == "err"] == []
    assert sum(len(group["rules"]) for group in rules) > 10


def test_locust_loads_the_server(project: ComposeProject) -> None:
    options = ["--headless", "--users", "2", "--requests", "4", "--max-tokens", "8", "--run-time", "120s"]
    command = ["locust", "-f", "load/locustfile.py", "--host", "http://head:8000", *options]
    said = project.compose("--profile", "load", "run", "--rm", "--no-deps", "-T", "locust", *command)
    assert re.search(r"POST +/v1/chat/completions +4 +0\(0.00%\)", said), said


def test_nothing_is_lost_when_the_container_of_the_engine_is_killed_under_streams(project: ComposeProject) -> None:
    undisturbed = project.client(lambda: tokens_of(project, 0))
    (before,) = [each for each in project.containers("worker") if "EngineActor" in project.docker("top", each)]
    streams = [project.clients.submit(tokens_of, project, index) for index in range(STREAMS)]
    project.until("all are under way", lambda: running_requests(project) == STREAMS)
    project.docker("kill", before)
    with timed(f"from the kill to the end of {STREAMS} streams of {TOKENS} tokens"):
        answers = [stream.result() for stream in streams]
    assert answers == [undisturbed] * STREAMS
    project.docker("start", before)
    project.healthy("worker")


def test_containers_stop_by_themselves_in_time(project: ComposeProject) -> None:
    with timed("stop of all containers"):
        project.compose("stop", "--timeout", str(GRACE))
    ended = {name: [project.state(each) for each in project.containers(name)] for name in SERVICES}
    codes = {name: [state["ExitCode"] for state in states] for name, states in ended.items()}
    print(codes)
    assert codes["pool"] == [0]
    assert not [name for name, found in codes.items() if KILLED in found]
    assert not any(state["OOMKilled"] for states in ended.values() for state in states)


def running_requests(project: ComposeProject) -> int:
    (value,) = re.findall(r"^vllm:num_requests_running\{.*\} (\S+)$", project.ask("/metrics").text, re.MULTILINE)
    return int(float(value))


def tokens_of(project: ComposeProject, index: int) -> list[int]:
    """Token ids of a stream; where it broke with its gateway, the request is asked for again under its key."""
    body = {"prompt": "Once", "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    asked: dict[str, Any] = {"headers": {"Idempotency-Key": secrets.token_hex(8)}, "timeout": 120}
    tokens: list[int] = []
    end = time.monotonic() + 240
    try:
        with httpx.stream("POST", project.url + "/v1/completions", json=body | {"stream": True}, **asked) as reply:
            for line in reply.iter_lines():
                if line == "data: [DONE]":
                    return tokens
                if line.startswith("data: "):
                    (choice,) = json.loads(line[6:])["choices"]
                    tokens += choice["token_ids"]
    except httpx.HTTPError:
        pass
    while True:
        try:
            reply = httpx.post(project.url + "/v1/completions", json=body, **asked)
        except httpx.TransportError:
            reply = None
        if reply is not None and reply.is_success:
            (choice,) = reply.json()["choices"]
            assert choice["token_ids"][: len(tokens)] == tokens
            found: list[int] = choice["token_ids"]
            return found
        assert time.monotonic() < end, reply and reply.text
        time.sleep(0.5)
