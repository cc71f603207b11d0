"""One, two and four pools behind one API: processor time of the pools' servers and of the gateways for a token.

There are as many engines, gateways and streams in each row. The engines compute nothing but keep a pace, so an exchange
has as many commits in each row too, and what differs is how the work is divided.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import httpx
import redis

from load.bench.figures import Figures, rounds_of
from load.bench.live_processes import gateway, process, scheduler
from load.options import Options, model_folder
from load.over_http import run_over_http
from load.processes import busy_seconds, processor_seconds
from load.server import metrics, pool_servers, urls_of
from load.simulation.plan import GatewayPrice
from load.simulation.pool import Price
from load.trace import Request, Run
from services.pool.server.pool_server import PoolServer

ROUNDS = 1
SHARDS = (1, 2, 4)
ENGINES, GATEWAYS, STREAMS, TOKENS = 4, 2, 128, 512
PACE = 0.020  # seconds of an iteration
WARM_UP = [Request([5] * 32, 16)] * 16
MICRO = 1e-6

SPENT, PREDICTED = "Processor time of a token, µs", "The same beside the simulator's price"
ABOUT = (
    f"{ENGINES} engines of {PACE * 1e3:.0f} ms an iteration, {GATEWAYS} gateways and {STREAMS} streams of {TOKENS} "
    "tokens in all; servers and client on the same cores. The price is that of the simulator's plans, for the measured "
    "numbers of exchanges, reads of events and chunks. Others: the cores of what no other column shows, the client too."
)


def run(options: Options) -> str:
    return rounds_of(measure, options, ABOUT, ROUNDS)


def measure(options: Options) -> Figures:
    figures: Figures = {SPENT: {}, PREDICTED: {}}
    model = model_folder(options)
    for shards in SHARDS:
        name = f"{shards} shard{'s' * (shards > 1)}"
        figures[SPENT][name], figures[PREDICTED][name] = asyncio.run(_measure(model, shards))
    return figures


async def _measure(model: Path, shards: int) -> tuple[dict[str, float], dict[str, float]]:
    with tempfile.TemporaryDirectory() as folder:
        async with pool_servers(Path(folder), shards) as servers:
            return await asyncio.to_thread(_with_processes, model, Path(folder) / "files", servers)


def _with_processes(model: Path, files: Path, servers: list[PoolServer]) -> tuple[dict[str, float], dict[str, float]]:
    with ExitStack() as exits:
        url = urls_of(servers)
        seats = [(servers[index % len(servers)].url, f"bench/{index}") for index in range(ENGINES)]
        schedulers = [exits.enter_context(process(scheduler, at, model, PACE, False, seat))[0] for at, seat in seats]
        gateways = dict(exits.enter_context(process(gateway, url, model, files)) for _ in range(GATEWAYS))
        urls = list(gateways.values())
        _until_ready(urls)
        asyncio.run(_stream(urls, WARM_UP))

        pids, first = [*gateways, *schedulers], metrics(urls[0])
        before, pools, busy = processor_seconds(pids), _server_seconds(servers), busy_seconds()
        reads = _reads(servers)
        runs, seconds = asyncio.run(_stream(urls, [Request([5] * 32, TOKENS)] * STREAMS))
        after, worked, busy = processor_seconds(pids), _server_seconds(servers), busy_seconds() - busy
        last, reads = metrics(urls[0]), _reads(servers) - reads
    spent = {pid: after[pid] - before[pid] for pid in pids}
    served = [end - begin for begin, end in zip(pools, worked, strict=True)]
    of_gateways, of_schedulers = (sum(spent[pid] for pid in kind) for kind in (gateways, schedulers))
    tokens, chunks = sum(run.tokens for run in runs), sum(answer.chunks for run in runs for answer in run.answers)
    figures = {
        "servers": sum(served) / tokens / MICRO,
        "busiest server": max(served) / tokens / MICRO,
        "gateways": of_gateways / tokens / MICRO,
        "schedulers": of_schedulers / tokens / MICRO,
        "busiest server, % of the time": 100 * max(served) / seconds,
        "tokens/s": tokens / seconds,
        "others, cores": (busy - sum(served) - of_gateways - of_schedulers) / seconds,
    }
    exchanges = last["orca:exchange_seconds_count"] - first["orca:exchange_seconds_count"]
    price = Price()
    priced = STREAMS * price.submit + exchanges * price.seconds(tokens / exchanges, 0) + reads * price.read
    priced_gateways = GatewayPrice().seconds(GATEWAYS * seconds, reads, chunks)
    predicted = {
        "tokens of an exchange": tokens / exchanges,
        "servers, by the price": priced / tokens / MICRO,
        "servers, measured / price": sum(served) / priced,
        "reads a second": reads / seconds,
        "chunks a token": chunks / tokens,
        "gateways, by the price": priced_gateways / tokens / MICRO,
        "gateways, measured / price": of_gateways / priced_gateways,
    }
    return figures, predicted


async def _stream(urls: Sequence[str], requests: Sequence[Request]) -> tuple[list[Run], float]:
    """Run the requests, each gateway its share of them; also returns the seconds that it took."""
    began = time.perf_counter()
    runs = await asyncio.gather(*(run_over_http(url, requests[i :: len(urls)]) for i, url in enumerate(urls)))
    return runs, time.perf_counter() - began


def _until_ready(urls: Sequence[str]) -> None:
    """Wait until each gateway knows of an engine in each shard."""
    for url in urls:
        while (reply := httpx.get(f"{url}/ready")).status_code != 200 or reply.text:
            time.sleep(0.05)


def _reads(servers: Sequence[PoolServer]) -> int:
    """How often gateways have read events from the servers so far."""
    calls = 0
    for server in servers:
        with redis.Redis.from_url(server.url) as client:
            calls += client.info("commandstats").get("cmdstat_xread", {}).get("calls", 0)
    return calls


def _server_seconds(servers: Sequence[PoolServer]) -> list[float]:
    """Processor seconds of each server so far."""
    seconds = []
    for server in servers:
        with redis.Redis.from_url(server.url) as client:
            cpu = client.info("cpu")
        seconds.append(float(cpu["used_cpu_user"] + cpu["used_cpu_sys"]))
    return seconds
