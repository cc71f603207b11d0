"""How soon streams continue after the scheduler or the engine was killed, and where the time goes."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import aiohttp

from load.bench.figures import Figures, Table, rounds_of
from load.chaos.report import recovery
from load.chaos.site import loaded_engine, owning_schedulers
from load.chaos.streams import Outcome, Streams
from load.options import Options
from load.server import OrcaServer, until
from load.trace import HttpRequest
from load.workloads import any_prompt
from services.client.streaming import open_session

ROUNDS = 3
STREAMS = 16
PROMPTS = (24, 270, 500)  # tokens
OUTPUT = 40  # tokens of every answer
UNDER_WAY = 8  # tokens of each stream before the kill
PATIENCE = 120.0  # seconds
MOMENTS = ("noticed", "acquired", "attached", "first_iteration")
PHASES = ("detection", "seat", "attachment", "recomputation")
LONGEST = "longest gap"
VICTIMS: dict[str, Callable[[OrcaServer], list[int]]] = {
    "scheduler": owning_schedulers,
    "engine": lambda server: [loaded_engine(server)],
    "both": lambda server: [loaded_engine(server), *owning_schedulers(server)],
}


def request(number: int, prompt: list[int], output: int = OUTPUT) -> HttpRequest:
    """A greedy stream of `output` tokens, with its token ids."""
    body = {
        "prompt": prompt,
        "max_tokens": output,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
        "stream_options": {"include_usage": True},
    }
    return HttpRequest("/v1/completions", body, f"recovery {number}, {len(prompt)} tokens")


TITLE = "Seconds after SIGKILL"
ABOUT = (
    f"{STREAMS} streams with prompts of {', '.join(map(str, PROMPTS))} tokens. A spare takes over, so no process is "
    "started and nothing imported. Tokens held are those of prompts and answers at the time of the kill. Each kill "
    "waits for the spares that the one before has used up: one that comes sooner waits for what is left of that time."
)


def run(options: Options) -> str:
    return rounds_of(measure, options, ABOUT, ROUNDS)


def measure(options: Options) -> Figures:
    flags = ["--model", options.model, "--device", options.device, "--dtype", options.dtype, "--gateways", "2"]
    with tempfile.TemporaryDirectory() as folder, OrcaServer(Path(folder), *flags) as server:
        return {TITLE: asyncio.run(_all(server))}


def row(victim: str, prompt: int) -> str:
    return f"{victim}, prompts of {prompt}"


async def _all(server: OrcaServer) -> Table:
    kills = {}
    async with open_session(server.url) as session:
        for prompt in PROMPTS:
            requests = [request(number, any_prompt(prompt, number)) for number in range(STREAMS)]
            undisturbed = Streams(session, None, PATIENCE)
            await undisturbed.learn(requests)
            await until(server.has_spares, PATIENCE)
            for victim in VICTIMS:
                kills[row(victim, prompt)] = await _kill(server, session, victim, requests, undisturbed)
    return kills


async def _kill(
    server: OrcaServer, session: aiohttp.ClientSession, victim: str, requests: list[HttpRequest], undisturbed: Streams
) -> dict[str, float]:
    """One kill under new streams: seconds until they went on, of the phases of that, and until there were spares."""
    killed = await kill(server, session, victim, requests, undisturbed, UNDER_WAY)
    metrics = await asyncio.to_thread(server.metrics)
    moments = [killed.unix, *(metrics[f"orca:recovery_{name}_time_seconds"] for name in MOMENTS)]
    found = recovery(killed.at, killed.outcomes)
    assert found is not None, "all streams were open"
    await until(server.has_spares, PATIENCE)
    return {
        LONGEST: longest_gap(killed.at, killed.outcomes),
        "first token": found.first,
        "all streams": found.last,
        **{name: after - before for name, (before, after) in zip(PHASES, pairwise(moments), strict=True)},
        "of the attachment weights": metrics["orca:recovery_loading_seconds"],
        "spares again": time.monotonic() - killed.at,
        "tokens held": float(killed.held),
    }


@dataclass(frozen=True, slots=True)
class Kill:
    """Streams through a kill at `at` on the clock of `time.monotonic`, which is `unix` in Unix time; `held`: tokens of
    prompts and answers at that moment."""

    at: float
    unix: float
    held: int
    outcomes: list[Outcome]


async def kill(
    server: OrcaServer,
    session: aiohttp.ClientSession,
    victim: str,
    requests: list[HttpRequest],
    undisturbed: Streams,
    under_way: int,
) -> Kill:
    """Kill once each stream of `requests` has had `under_way` tokens, and wait for the streams' ends. Raises
    RuntimeError if the answer of one differs from the undisturbed one."""
    pids = await asyncio.to_thread(VICTIMS[victim], server)
    streams = Streams(session, None, PATIENCE)
    streams.expected = undisturbed.expected
    tasks = [asyncio.create_task(streams.run(request)) for request in requests]
    outcomes = streams.outcomes

    def all_under_way() -> bool:
        return len(outcomes) == len(requests) and all(_tokens(outcome) >= under_way for outcome in outcomes)

    await until(all_under_way, PATIENCE, every=0.01)
    held = sum(len(o.request.body["prompt"]) + _tokens(o) for o in outcomes)
    if ended := sum(bool(outcome.end) for outcome in outcomes):
        raise RuntimeError(f"{ended} of {len(requests)} streams ended before the kill: they need more tokens")
    killed = Kill(time.monotonic(), time.time(), held, outcomes)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    await asyncio.gather(*tasks)
    if bad := [o.error or o.wrong for o in outcomes if o.error or o.wrong]:
        raise RuntimeError(f"{len(bad)} of {len(requests)} streams are not as undisturbed: {bad[0]}")
    return killed


def longest_gap(at: float, outcomes: list[Outcome]) -> float:
    """The longest time between two tokens of a stream of which the second came after `at`, in seconds."""
    return max(after - before for outcome in outcomes for before, after in pairwise(outcome.arrivals) if after > at)


def _tokens(outcome: Outcome) -> int:
    return sum(len(choice.token_ids) for choice in outcome.answer.choices.values())
