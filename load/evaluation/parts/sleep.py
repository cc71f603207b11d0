"""An engine that sleeps: the memory of its processes in each state, and the time to the first token from there."""

from __future__ import annotations

import asyncio
import statistics
from functools import partial

import psutil

from load.chaos.site import ENGINE
from load.chaos.streams import Streams
from load.evaluation.bench import Bench, Found
from load.evaluation.parts.recovery import request
from load.options import model_folder
from load.report import Table
from load.server import OrcaServer, until
from services.client.streaming import open_session
from services.models.info import ModelInfo
from services.overview import SleepLevel

HELP = "an engine without requests in each state: the memory of its processes, and seconds from a request to its token"
IDLE = 15.0  # seconds that each state lasts
STREAMS, PROMPT, ASKED, TOKENS = 8, 512, 16, 16  # `ASKED`: tokens of the prompt whose first token is awaited
TIMES = 5  # times that each state is measured with `Bench.seconds` as usual
PATIENCE = 120.0  # seconds
TITLE = "Processes of the engine, MiB in all (PSS: pages that several share count once), and a request's first token"


def measure(bench: Bench) -> Found:
    longest = ModelInfo.load(model_folder(bench.options), bench.options.cache_dir).max_model_len
    flags = ("--sleep-idle-seconds", str(IDLE), "--min-engines", "0", "--gateways", "1")
    with bench.server(*flags, spares=False) as server:
        return asyncio.run(_all(server, min(PROMPT, longest - TOKENS), bench.shorter(TIMES)))


async def _all(server: OrcaServer, prompt: int, times: int) -> Found:
    rows = Table()
    async with open_session(server.url) as session:
        streams = Streams(session, None, PATIENCE)
        first = request(STREAMS, ASKED, TOKENS)
        others = [request(number, prompt, TOKENS) for number in range(STREAMS)]
        await streams.learn([first, *others])
        while not await asyncio.to_thread(server.has_spares):  # an engine without requests would sleep
            await streams.run(first)
        for level in SleepLevel:
            memory: list[dict[str, float]] = []
            seconds: list[float] = []
            for _ in range(times):
                await asyncio.gather(*(streams.run(one) for one in others))  # the KV cache holds their prefixes
                await until(partial(_is, server, level), PATIENCE)
                memory.append(_memory(server))
                outcome = await streams.run(first)
                if reason := outcome.error or outcome.wrong:
                    raise RuntimeError(f"an answer of an engine that was {level.name.lower()}: {reason}")
                seconds.append(outcome.arrivals[0] - outcome.began)
            median = {what: statistics.median(one[what] for one in memory) for what in memory[0]}
            rows[level.name.lower()] = median | {"first token (s)": statistics.median(seconds), "longest": max(seconds)}
    return Found({TITLE: rows})


def _is(server: OrcaServer, level: SleepLevel) -> bool:
    return server.metrics()["orca:sleep_level"] == level


def _memory(server: OrcaServer) -> dict[str, float]:
    """MiB of the processes of the engine, which may have a spare."""
    found = [psutil.Process(pid).memory_full_info() for pid in server.pids(ENGINE)]
    return {
        "processes": len(found),
        "RSS": sum(one.rss for one in found) / 2**20,
        "PSS": sum(one.pss for one in found) / 2**20,
    }
