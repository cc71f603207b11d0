"""How soon streams continue after the scheduler or the engine was killed, and where the time goes."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import aiohttp

from load.chaos.report import Recovery, recovery
from load.chaos.site import loaded_engine, owning_schedulers
from load.chaos.streams import Outcome, Streams
from load.options import Options
from load.report import table
from load.server import OrcaServer, until
from load.trace import HttpRequest
from load.workloads import any_prompt, paper
from services.client.streaming import open_session

ROUNDS = 5
STREAMS = 16
SHORT, OUTPUT = 16, 40  # tokens of a short prompt, and of every answer
UNDER_WAY = 8  # events of each stream before the kill
PATIENCE = 120.0  # seconds
MOMENTS = ("noticed", "acquired", "attached", "first_iteration")
VICTIMS: dict[str, Callable[[OrcaServer], list[int]]] = {
    "scheduler": owning_schedulers,
    "engine": lambda server: [loaded_engine(server)],
    "both": lambda server: [loaded_engine(server), *owning_schedulers(server)],
}


def _request(number: int, prompt: list[int]) -> HttpRequest:
    body = {
        "prompt": prompt,
        "max_tokens": OUTPUT,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
        "stream_options": {"include_usage": True},
    }
    return HttpRequest("/v1/completions", body, f"recovery {number}, {len(prompt)} tokens")


# short prompts, and those of the paper's trace with 32 to 512 tokens
LOADS = {
    "short": [_request(i, any_prompt(SHORT, i)) for i in range(STREAMS)],
    "paper's": [_request(i, request.prompt) for i, request in enumerate(paper(STREAMS))],
}


@dataclass(frozen=True, slots=True)
class Kill:
    """Seconds until streams continued, of the phases before the end of the first iteration, and until there were
    spares."""

    recovery: Recovery
    phases: list[float]  # detection, seat, attachment, recomputation
    loading: float  # of the attachment
    recomputed: int  # tokens
    spares: float


def run(options: Options) -> str:
    flags = ["--model", options.model, "--device", options.device, "--dtype", options.dtype, "--gateways", "2"]
    with tempfile.TemporaryDirectory() as folder, OrcaServer(Path(folder), *flags) as server:
        kills = asyncio.run(_all(server))
    rows = []
    for (prompts, victim), done in kills.items():
        rows.append([prompts, victim, "median", *map(statistics.median, zip(*map(_figures, done), strict=True))])
        rows.append([prompts, victim, "worst", *_figures(max(done, key=lambda kill: kill.recovery.first))])
    head = ["prompts", "killed", "", "first token", "all streams", "detection", "seat", "attach", "of it weights"]
    head += ["recomputation", "tokens recomputed", "spares again"]
    body = [[f"{value:.2f}" if isinstance(value, float) else value for value in row] for row in rows]
    return (
        f"Seconds after SIGKILL under {STREAMS} streams, {ROUNDS} times each. A spare takes over, so no process is "
        "started and nothing imported. The first iteration computes all requests anew, prompt and tokens. Each kill "
        "waits for the spares that the one before has used up: one that comes sooner waits for what is left of that "
        f"time. Prompts have {SHORT} tokens, or the lengths of the paper's trace.\n\n{table(head, body)}"
    )


def _figures(kill: Kill) -> list[float]:
    detection, seat, attach, recomputation = kill.phases
    each = [kill.recovery.first, kill.recovery.last, detection, seat, attach, kill.loading, recomputation]
    return [*each, kill.recomputed, kill.spares]


async def _all(server: OrcaServer) -> dict[tuple[str, str], list[Kill]]:
    kills = {}
    async with open_session(server.url) as session:
        for prompts, requests in LOADS.items():
            undisturbed = Streams(session, None, PATIENCE)
            await undisturbed.learn(requests)
            await until(server.has_spares, PATIENCE)
            for victim in VICTIMS:
                done = [await _kill(server, session, victim, requests, undisturbed) for _ in range(ROUNDS)]
                kills[prompts, victim] = done
    return kills


async def _kill(
    server: OrcaServer, session: aiohttp.ClientSession, victim: str, requests: list[HttpRequest], undisturbed: Streams
) -> Kill:
    """One kill under new streams. Raises RuntimeError if the answer of one differs from the undisturbed one."""
    streams = Streams(session, None, PATIENCE)
    streams.expected = undisturbed.expected
    tasks = [asyncio.create_task(streams.run(request)) for request in requests]
    outcomes = streams.outcomes
    await until(lambda: _under_way(outcomes), PATIENCE, every=0.01)
    recomputed = sum(len(o.request.body["prompt"]) + len(o.answer.choices[0].token_ids) for o in outcomes)
    pids = await asyncio.to_thread(VICTIMS[victim], server)
    at, unix = time.monotonic(), time.time()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    await asyncio.gather(*tasks)
    if bad := [o.error or o.wrong for o in outcomes if o.error or o.wrong]:
        raise RuntimeError(f"{len(bad)} of {STREAMS} streams are not as undisturbed: {bad[0]}")
    metrics = await asyncio.to_thread(server.metrics)
    moments = [unix, *(metrics[f"orca:recovery_{name}_time_seconds"] for name in MOMENTS)]
    phases = [after - before for before, after in pairwise(moments)]
    found = recovery(at, outcomes)
    assert found is not None, "all streams were open"
    await until(server.has_spares, PATIENCE)
    loading = metrics["orca:recovery_loading_seconds"]
    return Kill(found, phases, loading, recomputed, time.monotonic() - at)


def _under_way(outcomes: list[Outcome]) -> bool:
    return len(outcomes) == STREAMS and all(len(outcome.arrivals) >= UNDER_WAY for outcome in outcomes)
