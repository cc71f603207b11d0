"""The longest gap of 8 streams from a running server while a prompt of 6,000 tokens arrives."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from pathlib import Path

from load.bench.figures import Figures, rounds_of
from load.options import Options
from load.over_http import OverHttp
from load.server import OrcaServer
from load.trace import Answer, Request
from load.workloads import any_prompt
from services.client.streaming import open_session

ROUNDS = 3
STREAMS, PROMPT, TOKENS = 8, 64, 640  # they outlast the long prompt
LONG, ANSWER = 6000, 8
BEFORE = 2.0  # seconds of the streams alone, from when all have a token
FLAGS = ("--no-prefix-caching",)  # otherwise the prompt would be computed once only

TITLE, DEFAULT = "Milliseconds between tokens of the streams, and seconds to first tokens", "default settings"
SETTINGS: dict[str, tuple[str, ...]] = {DEFAULT: ()}
ABOUT = (
    f"{STREAMS} streams of {PROMPT} tokens in and {TOKENS} out; {BEFORE:.0f} s after all have begun, a prompt of "
    f"{LONG:,} tokens arrives. Gaps are those from its arrival to its first token."
)


def run(options: Options) -> str:
    return rounds_of(measure, options, ABOUT, ROUNDS)


def measure(options: Options) -> Figures:
    rows = {}
    for name, settings in SETTINGS.items():
        flags = ["--model", options.model, "--device", options.device, "--dtype", options.dtype, *FLAGS, *settings]
        with tempfile.TemporaryDirectory() as folder, OrcaServer(Path(folder), *flags) as server:
            rows[name] = asyncio.run(_arrival(server.url))
    return {TITLE: rows}


async def _arrival(url: str) -> dict[str, float]:
    async with open_session(url) as session:
        system = OverHttp(session)
        await system.ask(Request(any_prompt(PROMPT, STREAMS), ANSWER))  # warm up
        streams = [Request(any_prompt(PROMPT, number), TOKENS) for number in range(STREAMS)]
        asked = [asyncio.create_task(system.ask(request)) for request in streams]
        await asyncio.sleep(BEFORE)
        long = await system.ask(Request(any_prompt(LONG, STREAMS + 1), ANSWER))
        return cells(await asyncio.gather(*asked), long)


def cells(streams: list[Answer], long: Answer) -> dict[str, float]:
    """The gaps of the streams before the long prompt arrives and until it has a token; the waits for first tokens."""
    arrived, first = long.arrived, long.times[0]
    # tokens of one chunk come at the same time
    alone = [gap for stream in streams for gap in stream.gaps(stream.times[0], arrived) if gap]
    meanwhile = [gap for stream in streams for gap in stream.gaps(arrived, first) if gap]
    return {
        "alone, median": statistics.median(alone) * 1e3,
        "meanwhile, median": statistics.median(meanwhile) * 1e3,
        "longest": max(meanwhile) * 1e3,
        "streams that ended before": float(sum(stream.times[-1] < first for stream in streams)),
        "TTFT of the prompt, s": long.ttft,
        "TTFT of the streams, s": statistics.median(stream.ttft for stream in streams),
    }
