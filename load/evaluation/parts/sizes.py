"""Models of real sizes beside other servers and the floor: a few streams, lone prompts, memory, start and kills."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory

from load.bench.bench import Bench as EngineBench
from load.bench.bench import Budget
from load.bench.floor import Span, floor
from load.bench.timing import FULL, Scale
from load.chaos.streams import Streams
from load.evaluation.bench import Bench, Found
from load.evaluation.parts.peers import FORMAT, servers
from load.evaluation.parts.recovery import PATIENCE, PLOTTED, kill, request
from load.options import Options, release_memory
from load.over_http import run_over_http
from load.peers import PeerServer
from load.processes import memory
from load.report import Table
from load.server import OrcaServer
from load.trace import Answer, Request
from load.workloads import any_prompt
from services.client.streaming import open_session
from services.progress import print_beside

HELP = (
    "models of 135M and 1B, or of --shape, with random weights: streams, prompts, memory, start and kills beside peers"
)
SIZES = ("smollm2-135m", "llama-1b")
STREAMS, PROMPT, TOKENS = (1, 2, 4, 8), 16, 64
PROMPTS, TIMES = (250, 500), 3  # lone ones, each so many times
KILLED, UNDER_WAY, LASTING = 4, 20, 80  # streams, and tokens of each before the kill and in all
# each token is an iteration, and no prompt is known
FLAGS = ("--speculative-config", "off", "--no-prefix-caching", "--gateways", "1")
MIB = 2**20


def measure(bench: Bench) -> Found:
    shapes = [bench.options.shape] if bench.options.shape else SIZES
    return Found({shape: _of(bench, replace(bench.options, shape=shape)) for shape in shapes})


def _of(bench: Bench, options: Options) -> Table:
    rows: Table = {}
    bench.release()
    for form in [options.format] if options.format else ("", FORMAT):
        rows[f"floor of {form or options.weights_dtype}"] = floors(replace(options, format=form))
    with TemporaryDirectory() as folder:
        Path(folder, "kernels").symlink_to(options.cache_dir / "kernels")  # all but these is made anew at a first start
        flags, began = (*FLAGS, "--cache-dir", folder), time.monotonic()
        for name, start in servers(of_shape(bench, options), Path(folder), *flags, spares=False):
            with start() as server:
                rows[name] = {"ready, s": time.monotonic() - began} | asyncio.run(_asked(server))
            print_beside(json.dumps({name: rows[name]}))
            began = time.monotonic()
    return rows


def of_shape(bench: Bench, options: Options) -> Bench:
    """What is measured beside the floors of `options`: their random weights, and no file of --gguf."""
    return Bench(options, bench.seconds, replace(bench.peers, gguf=None))


def floors(options: Options, scale: Scale = FULL) -> dict[str, float]:
    """What the bytes and products of this model need at least on this machine."""
    engine = EngineBench(options, Budget(inf), scale)
    spans = {name: [Span(PROMPT, 1)] * count for name, count in streams()}
    found = {name: 1e3 * floor(engine.shape, engine.rates, [each]).seconds for name, each in spans.items()}
    found |= {name: n / floor(engine.shape, engine.rates, [[Span(0, n)]]).seconds for name, n in prompts()}
    found["weights, MiB"] = engine.shape.stored / MIB
    engine.release()
    release_memory()
    return found


def streams() -> Iterator[tuple[str, int]]:
    return ((f"{count} streams, ms/token", count) for count in STREAMS)


def prompts() -> Iterator[tuple[str, int]]:
    return ((f"prompt of {tokens}, tokens/s", tokens) for tokens in PROMPTS)


async def _asked(server: OrcaServer | PeerServer) -> dict[str, float]:
    """How fast this server answers, what its processes take of memory then, and how long kills of ours are seen."""
    found: dict[str, float] = {}
    if isinstance(server, OrcaServer):
        await asyncio.to_thread(server.until_spares)  # their start takes a core for seconds
    await _run(server.url, [Request(any_prompt(PROMPT, 0), TOKENS)])  # warm up
    for name, count in streams():
        answers = await _run(server.url, [Request(any_prompt(PROMPT, count + i), TOKENS) for i in range(count)])
        found[name] = 1e3 * statistics.median(each.latency - each.ttft for each in answers) / (TOKENS - 1)
    for name, tokens in prompts():
        lone = [(await _run(server.url, [Request(any_prompt(tokens, tokens + i), 2)]))[0] for i in range(TIMES)]
        found[name] = tokens / statistics.median(answer.ttft for answer in lone)
    found["memory, MiB"] = memory(server.process.pid) / MIB
    if isinstance(server, OrcaServer):
        found["weights, MiB"] = server.metrics()["orca:weight_bytes"] / MIB
        found |= await _gaps(server)
    return found


async def _run(url: str, requests: list[Request]) -> Sequence[Answer]:
    return (await run_over_http(url, requests, reuse=False)).answers


async def _gaps(server: OrcaServer) -> dict[str, float]:
    """The longest time between two tokens of a stream around a kill."""
    requests = [request(number, PROMPT, LASTING) for number in range(KILLED)]
    async with open_session(server.url) as session:
        streams = Streams(session, None, PATIENCE)
        await streams.learn(requests)
        return {
            f"{victim} killed, longest gap, s": (await kill(server, streams, victim, requests, UNDER_WAY)).longest_gap
            for victim in PLOTTED
        }
