"""How soon streams go on when the scheduler, or the engine, is killed under them, and where the time goes."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import aiohttp

from load.chaos.faults import ENGINE, SCHEDULER, loaded_engine, owning_schedulers
from load.chaos.report import Recovery, recovery
from load.chaos.streams import Outcome, Streams
from load.chaos.workload import ChaosJob
from load.markdown import table
from load.options import Options
from load.server import OrcaServer
from load.stream_client import open_session

ROUNDS = 5
STREAMS, PROMPT, OUTPUT = 16, 16, 40  # tokens
UNDER_WAY = 8  # events that each stream has had when the kill comes
PATIENCE = 120.0  # seconds
MOMENTS = ("noticed", "acquired", "attached", "first_iteration")
VICTIMS = {"scheduler": lambda server: owning_schedulers(server)[0], "engine": loaded_engine}
JOB = ChaosJob(
    "recovery",
    "/v1/completions",
    {
        "prompt": [5] * PROMPT,
        "max_tokens": OUTPUT,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
        "stream_options": {"include_usage": True},
    },
)


@dataclass(frozen=True, slots=True)
class Kill:
    """Seconds: until streams went on, and of the phases before the first iteration was done."""

    recovery: Recovery
    phases: list[float]  # detection, seat, attachment, recomputation
    loading: float  # of the attachment
    recomputed: int  # tokens


def run(options: Options) -> str:
    flags = ["--model", options.model, "--device", options.device, "--dtype", options.dtype, "--gateways", "2"]
    with tempfile.TemporaryDirectory() as folder, OrcaServer(Path(folder), *flags) as server:
        kills = asyncio.run(_all(server))
    rows = [_row(victim, done) for victim, done in kills.items()]
    head = ["killed", "first token", "(max)", "all streams", "(max)", "detection", "seat", "attach", "of it weights"]
    return (
        f"Seconds after SIGKILL under {STREAMS} streams, {ROUNDS} times each, medians and the worst. A spare takes "
        "over, so no process is started and nothing imported. The first iteration computes all requests anew, prompt "
        f"and tokens.\n\n{table([*head, 'recomputation', 'tokens recomputed'], rows)}"
    )


def _row(victim: str, kills: list[Kill]) -> list[object]:
    first, last = [k.recovery.first for k in kills], [k.recovery.last for k in kills]
    phases = zip(*(k.phases for k in kills), strict=True)
    detection, seat, attach, recomputation = (statistics.median(phase) for phase in phases)
    loading, tokens = statistics.median(k.loading for k in kills), statistics.median(k.recomputed for k in kills)
    seconds = [statistics.median(first), max(first), statistics.median(last), max(last)]
    seconds += [detection, seat, attach, loading, recomputation]
    return [victim, *(f"{value:.2f}" for value in seconds), f"{tokens:.0f}"]


async def _all(server: OrcaServer) -> dict[str, list[Kill]]:
    async with open_session(server.url) as session:
        undisturbed = Streams(session, None, PATIENCE)
        await undisturbed.learn([JOB])
        return {
            victim: [await _kill(server, session, victim, undisturbed) for _ in range(ROUNDS)] for victim in VICTIMS
        }


async def _kill(server: OrcaServer, session: aiohttp.ClientSession, victim: str, undisturbed: Streams) -> Kill:
    """One kill under fresh streams. Raises RuntimeError if any of them is not as undisturbed."""
    await _until_there_are_spares(server)
    streams = Streams(session, None, PATIENCE)
    streams.expected = undisturbed.expected
    tasks = [asyncio.create_task(streams.run(JOB)) for _ in range(STREAMS)]
    outcomes = streams.outcomes
    while not _under_way(outcomes):  # noqa: ASYNC110 - a stream sets no event
        await asyncio.sleep(0.01)
    recomputed = sum(PROMPT + len(o.answer.choices[0].token_ids) for o in outcomes)
    pid = await asyncio.to_thread(VICTIMS[victim], server)
    at, unix = time.monotonic(), time.time()
    os.kill(pid, signal.SIGKILL)
    await asyncio.gather(*tasks)
    if bad := [o.error or o.wrong for o in outcomes if o.error or o.wrong]:
        raise RuntimeError(f"{len(bad)} of {STREAMS} streams are not as undisturbed: {bad[0]}")
    metrics = await asyncio.to_thread(server.metrics)
    moments = [unix, *(metrics[f"orca:recovery_{name}_time_seconds"] for name in MOMENTS)]
    phases = [after - before for before, after in pairwise(moments)]
    found = recovery(at, outcomes)
    assert found is not None, "all streams were open"
    return Kill(found, phases, metrics["orca:recovery_loading_seconds"], recomputed)


def _under_way(outcomes: list[Outcome]) -> bool:
    return len(outcomes) == STREAMS and all(len(outcome.arrivals) >= UNDER_WAY for outcome in outcomes)


async def _until_there_are_spares(server: OrcaServer) -> None:
    while True:
        metrics = await asyncio.to_thread(server.metrics)
        schedulers, engines = server.pids(SCHEDULER), server.pids(ENGINE)
        if metrics.get("orca:spare_ready") and len(schedulers) == len(engines) == 2:
            await asyncio.sleep(3)  # its imports are done, other processes' may not be
            return
        await asyncio.sleep(0.5)
