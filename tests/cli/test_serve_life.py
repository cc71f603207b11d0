"""`orca serve` and its processes are killed, each time with a stream under way: no request and no token is lost.

One server follows the other on one data folder. They run the null engine, whose tokens the test computes itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import waiting
from openai import OpenAI

from load.server import OrcaServer
from services.engine.null import NullEngine
from services.engine.settings import EngineSettings
from services.messages import Iteration, NewRequest
from services.models import resolve
from services.pool.server.binaries import choose_server
from services.pool.server.pool_server import PoolServer
from services.requests import SamplingParams
from services.settings.settings import Settings

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

DEADLY = 5  # a token that the null engine never draws
JOINED = ("--null-engine", "--gateways", "1", "--deadly-token", str(DEADLY))
FLAGS = (*JOINED, "--durability", "strict")
CONSTANTS = {"grace": 600.0}
LENGTH = 4000  # tokens; more than a second
LONG = 2 * LENGTH  # of streams beside which something else happens before or while a process dies
PATIENCE = 120.0  # seconds
wait_until = partial(waiting.wait_until, seconds=PATIENCE)
PATH = "/v1/completions"
PROMPT = [10, 11, 12]
ENGINE, SCHEDULER, GATEWAY = "ray::EngineActor", "ray::ServeReplica:orca:scheduler", "ray::ServeReplica:orca:gateway"
UNUSED = ("/dashboard/", "monitor.py", "/runtime_env/agent/", "ray::DashboardAgent", "ray::RuntimeEnvAgent")  # of Ray


class Life:
    """The servers on one data folder, one after the other; `server` is the current one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = self.start(drain_timeout=1)

    def start(self, *flags: str, port: int = 0, drain_timeout: int = 100) -> OrcaServer:
        """Start a new server, which becomes the current one; return when it is ready."""
        self.server = OrcaServer(
            self.folder, *FLAGS, "--drain-timeout", str(drain_timeout), *flags, port=port, **CONSTANTS
        )
        self.server.until("ready at")
        return self.server


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Life]:
    life = Life(tmp_path_factory.mktemp("life"))
    yield life
    life.server.__exit__()


@pytest.fixture
def server(life: Life) -> OrcaServer:
    return life.server if life.server.process.poll() is None else life.start()


class Request:
    """A completion with an Idempotency-Key: sent again, it is answered from its first token."""

    def __init__(self, key: str, length: int = LENGTH) -> None:
        self.tokens: list[int] = []
        self.id = ""
        self._headers = {"Idempotency-Key": key}
        self._body = {"prompt": PROMPT, "max_tokens": length, "ignore_eos": True, "return_token_ids": True}

    def broken_by(self, server: OrcaServer, fault: Callable[[], object]) -> list[int]:
        """The tokens of a stream that breaks; `fault` is called when the first tokens have arrived."""
        with pytest.raises(httpx.TransportError):
            self.stream(server, fault)
        return self.tokens

    def stream(self, server: OrcaServer, at_first: Callable[[], object]) -> list[int]:
        """All tokens of a stream; `at_first` is called when the first have arrived."""
        happened = False
        for some in self._events(server):
            self.tokens += some
            if self.tokens and not happened:
                happened = True
                at_first()
        assert self.tokens == undisturbed(self.id, self._body["max_tokens"])
        return self.tokens

    def _events(self, server: OrcaServer) -> Iterator[list[int]]:
        body = self._body | {"stream": True}
        with httpx.stream("POST", server.url + PATH, json=body, headers=self._headers, timeout=PATIENCE) as reply:
            for line in reply.iter_lines():
                if line.startswith("data: {"):
                    event = orjson.loads(line[6:])
                    assert "error" not in event, event
                    self.id = event["id"]
                    yield event["choices"][0]["token_ids"]

    def again(self, server: OrcaServer) -> list[int]:
        """All tokens of the request, which must be the undisturbed ones. The server may still be starting."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                url, asked = server.url + PATH, {"json": self._body, "headers": self._headers}
                # called often: loading certificates is slow
                reply = httpx.post(url, **asked, timeout=PATIENCE, verify=False)
                if reply.is_success:
                    break
            except httpx.TransportError:
                pass
            assert time.monotonic() < end, f"no answer within {PATIENCE} s"
            time.sleep(0.1)
        (choice,) = reply.json()["choices"]
        assert choice["token_ids"] == undisturbed(reply.json()["id"], self._body["max_tokens"])
        return choice["token_ids"]


class BackgroundResponse:
    """A background response of the `openai` package, whose stream is closed after the first text."""

    def __init__(self, server: OrcaServer) -> None:
        self._text = ""
        with api(server) as client:
            model = client.models.list().data[0].id
            events = client.responses.create(
                model=model,
                input="Once",
                background=True,
                stream=True,
                max_output_tokens=LONG,
                extra_body={"ignore_eos": True},
            )
            while not self._text:
                self._take(next(events))

    def _take(self, event: Any) -> None:
        self._last_event = event.sequence_number
        if event.type == "response.created":
            self.id = event.response.id
        elif event.type == "response.output_text.delta":
            self._text += event.delta

    def resume(self, server: OrcaServer) -> None:
        """Read the rest of the stream, and check that the text is complete."""
        with api(server) as client:
            for event in client.responses.retrieve(self.id, stream=True, starting_after=self._last_event):
                self._take(event)
            whole = client.responses.retrieve(self.id)
        assert whole.status == "incomplete"  # it has reached `max_output_tokens`
        assert whole.usage.output_tokens == LONG
        assert self._text == whole.output_text


def api(server: OrcaServer) -> OpenAI:
    return OpenAI(base_url=server.url + "/v1", api_key="none", timeout=PATIENCE)


def undisturbed(answer_id: str, length: int) -> list[int]:
    """The tokens of a null engine without faults: a function of the id and the position."""
    engine, sequence = NullEngine.load(resolve("default", Settings().cache_dir), EngineSettings()), answer_id + "/0"
    engine.reset("")
    new = [NewRequest(sequence, PROMPT, len(PROMPT), SamplingParams(length))]
    results = [engine.run(Iteration("", 0, {sequence: len(PROMPT)}, new))]
    results += [engine.run(Iteration("", step, {sequence: 1})) for step in range(1, length)]
    return [result.tokens[sequence] for result in results]


def kill(pids: list[int]) -> None:
    (pid,) = pids
    os.kill(pid, signal.SIGKILL)


def ready(server: OrcaServer) -> bool:
    """Whether `/ready` says ready; its answer must be one of the two documented ones."""
    reply = httpx.get(server.url + "/ready", timeout=PATIENCE, verify=False)
    assert reply.is_success or (reply.status_code, reply.json()["error"]["code"]) == (503, "no_engine")
    return reply.is_success


def test_rays_head_has_only_processes_that_a_server_uses(server: OrcaServer) -> None:
    server.until_spares()
    titles = [Path(f"/proc/{pid}/cmdline").read_text() for pid in server.descendants()]
    assert any("raylet" in title for title in titles)
    assert [title for title in titles if any(name in title for name in UNUSED)] == []


def test_an_idle_engines_death_is_noticed_without_a_request(server: OrcaServer) -> None:
    server.until_spares()
    engine = server.engine()
    kill([engine])
    wait_until(lambda: server.engine() not in (0, engine))
    wait_until(lambda: server.metrics().get("orca:ready") == 1)
    wait_until(lambda: ready(server))  # as of the last second, when it may not have been
    while_busy: list[bool] = []
    Request("idle").stream(server, lambda: while_busy.append(ready(server)))
    assert while_busy == [True]


def test_without_an_engine_a_server_is_not_ready(server: OrcaServer) -> None:
    server.until_spares()

    def not_ready_without_engines() -> bool:  # Ray starts new ones, and `/ready` may miss a pause of less than 1 s
        for engine in server.pids(ENGINE):
            kill([engine])
        return not ready(server)

    wait_until(not_ready_without_engines)
    wait_until(lambda: ready(server))


def test_a_request_that_kills_engines_fails_alone(server: OrcaServer) -> None:
    """A stream beside it goes on, on one engine after the other."""
    server.until_spares()
    losses = server.metrics().get("orca:engine_losses_total", 0)
    replies: list[httpx.Response] = []
    url, body = server.url + PATH, {"prompt": [10, DEADLY, 11], "max_tokens": 4}
    Request("beside", LONG).stream(server, lambda: replies.append(httpx.post(url, json=body, timeout=PATIENCE)))
    (reply,) = replies
    assert reply.is_server_error
    assert (
        "the engine died, or the scheduler failed, 3 times while it ran this request"
        in reply.json()["error"]["message"]
    )
    assert server.metrics()["orca:engine_losses_total"] == losses + 3


def test_a_stream_goes_on_while_rays_gcs_dies_and_its_next_one_knows_the_cluster(server: OrcaServer) -> None:
    server.until_spares()
    (gcs,), (gateway,) = server.cluster("gcs_server"), server.pids(GATEWAY)
    Request("gcs_server").stream(server, lambda: kill([gcs]))  # raises if the connection breaks
    wait_until(lambda: server.cluster("gcs_server") not in ([], [gcs]))
    kill([gateway])
    wait_until(lambda: server.pids(GATEWAY) not in ([], [gateway]))
    Request("after gcs_server").again(server)


@pytest.mark.chaos
def test_a_gcs_that_dies_again_at_once_is_replaced_with_its_cluster(server: OrcaServer) -> None:
    deaths = sum("ready again" in line for line in server.lines)
    first = server.cluster("gcs_server")
    kill(first)
    wait_until(lambda: server.cluster("gcs_server") not in ([], first))
    kill(server.cluster("gcs_server"))
    server.until("ready again", deaths + 1)
    Request("twice").again(server)


@pytest.mark.chaos
def test_the_death_of_rays_raylet(server: OrcaServer) -> None:
    request, deaths = Request("raylet"), sum("ready again" in line for line in server.lines)
    pool = server.pool_server()
    before = request.broken_by(server, lambda: kill(server.cluster("raylet")))
    after = request.again(server)
    assert after[: len(before)] == before
    server.until("ready again", deaths + 1)
    assert server.pool_server() == pool


@pytest.mark.chaos
def test_orca_serve_itself_is_killed_and_the_next_one_replaces_its_cluster(life: Life, server: OrcaServer) -> None:
    request, cluster = Request("orca serve", LONG), server.cluster()
    server.process.kill()
    server.process.wait()
    before = request.broken_by(server, lambda: life.start(port=server.port))
    after = request.again(life.server)
    assert after[: len(before)] == before
    assert not set(cluster) & set(life.server.cluster())
    assert not [pid for pid in cluster if Path(f"/proc/{pid}").exists()]


def test_everything_is_killed_at_once(life: Life, server: OrcaServer) -> None:
    """The next server has two engines, two gateways and another policy."""
    request, response = Request("everything", LONG), BackgroundResponse(server)
    before = request.broken_by(server, server.kill_all)
    life.start("--engines", "2", "--gateways", "2", "--policy", "request", port=server.port)
    response.resume(life.server)
    after = request.again(life.server)
    assert after[: len(before)] == before
    wait_until(lambda: len(life.server.pids(ENGINE)) == 4)  # for each engine one with weights and a spare
    wait_until(lambda: [len(life.server.pids(title)) for title in (SCHEDULER, GATEWAY)] == [3, 2])


def test_a_second_server_names_the_port_in_use(server: OrcaServer) -> None:
    second = OrcaServer(server.data_dir, *FLAGS, port=server.port, **CONSTANTS)
    assert second.process.wait(60) == 1
    assert f"port={server.port}" in "".join(second.lines)


def test_an_interrupt_lets_streams_end(server: OrcaServer) -> None:
    cluster, folder = server.cluster(), server.cluster_folder()
    Request("interrupt").stream(server, lambda: server.process.send_signal(signal.SIGINT))
    assert server.process.wait(60) == 0
    assert folder is not None
    assert not folder.exists()
    assert not [pid for pid in cluster if Path(f"/proc/{pid}").exists()]
    assert not server.pool_server()


@pytest.mark.chaos
def test_a_second_server_on_the_data_folder_does_not_disturb_the_first(life: Life, server: OrcaServer) -> None:
    """The second one is killed with its pool and started again while the first one streams."""

    def try_a_setting() -> None:
        with OrcaServer(server.data_dir, *FLAGS, "--max-model-len", "128", **CONSTANTS) as second:
            for at in range(4):  # none of them goes to the first server
                reply = httpx.post(second.url + PATH, json={"prompt": PROMPT, "max_tokens": 1000}, timeout=PATIENCE)
                assert (at, reply.status_code) == (at, 400)
            kept = Request("second", 100)
            second.kill_all()
        with OrcaServer(server.data_dir, *FLAGS, "--max-model-len", "128", port=second.port, **CONSTANTS) as again:
            kept.again(again)
            files = {"file": ("a.jsonl", b"{}")}
            made = httpx.post(again.url + "/v1/files", data={"purpose": "batch"}, files=files, timeout=PATIENCE)
            assert made.status_code == 200
            assert httpx.get(f"{server.url}/v1/files/{made.json()['id']}", timeout=PATIENCE).status_code == 404

    with ThreadPoolExecutor(1) as other:
        trying, streams = other.submit(try_a_setting), 0
        while not trying.done():
            Request(f"first {streams}", LENGTH).stream(server, lambda: None)
            streams += 1
        trying.result()
    assert streams > 1
    assert server.process.poll() is None
    assert not any("died" in line for line in server.lines)


@pytest.mark.chaos
def test_two_servers_on_one_pool_are_replaced_one_after_the_other(tmp_path: Path) -> None:
    """Their lengths differ. Each is killed while streams are open at both, and starts again with other settings."""
    pool = PoolServer(choose_server(), tmp_path / "pool", "strict")
    url = asyncio.run(pool.start())
    try:
        with contextlib.ExitStack() as exits:

            def started(*flags: str, port: int = 0) -> OrcaServer:
                return exits.enter_context(
                    OrcaServer(tmp_path, "--redis-url", url, *JOINED, *flags, port=port, **CONSTANTS)
                )

            first, shorter = started(), LENGTH + len(PROMPT)
            second = started("--max-model-len", str(shorter))
            (said,) = (line for line in second.lines if "other settings" in line)
            assert f":{first.port} serves the same pool" in said
            assert f"max_model_len=default (here {shorter})" in said
            asked = [
                (Request(f"{at} {one}", LONG), server) for at in range(4) for one, server in enumerate((first, second))
            ]
            with ThreadPoolExecutor(len(asked)) as threads:  # none is cut at the shorter length
                list(threads.map(lambda pair: pair[0].again(pair[1]), asked))
            replace_while_streaming(second, first, lambda: started("--max-model-len", "5000", port=second.port))
            replace_while_streaming(first, second, lambda: started("--block-size", "32", port=first.port))
    finally:
        asyncio.run(pool.stop())


def replace_while_streaming(killed: OrcaServer, other: OrcaServer, successor: Callable[[], OrcaServer]) -> None:
    """Kill one of two servers on a pool, with streams at both: what was open at it goes on at the other one and at its
    successor."""
    beside, begun = [Request(f"{killed.port} beside {at}", LONG) for at in range(2)], threading.Barrier(3)
    with ThreadPoolExecutor(len(beside)) as threads:
        streams = [threads.submit(one.stream, other, lambda: begun.wait(PATIENCE)) for one in beside]
        begun.wait(PATIENCE)
        request = Request(f"{killed.port} killed")
        before = request.broken_by(killed, killed.kill_all)
        assert request.again(other)[: len(before)] == before
        request.again(successor())
        for stream in streams:
            stream.result()
