"""How many engines one pool server carries, how many gateways they need, and what more servers gain."""

from __future__ import annotations

import asyncio
import math
import random
import statistics
from dataclasses import dataclass
from pathlib import Path

from gateway.pool_client.event_reader import PAUSE
from load.plots import Line, Panel, draw
from load.report import table
from load.simulation.cost import IterationTime, RequestState
from load.simulation.pool import Price, PricedPool, Users
from load.simulation.world import Policy, Window, World, percentile
from load.workloads import sized
from services.loop.clock import run_in_virtual_time
from services.progress import Bar

HELP = "where one pool server saturates, and what more shards gain"
ENGINES = (1, 5, 10, 15, 20, 30)  # on one pool
SHARDS = ((1, 1), (10, 1), (30, 1), (30, 2), (30, 3), (100, 5), (100, 10), (1000, 50), (1000, 100))
PROMPT = 256
OUTPUTS = (1, 255)  # tokens, uniform
SPREAD = 0.2  # of an iteration's time, in both directions


@dataclass(frozen=True, slots=True)
class GatewayPrice:
    """Seconds of a gateway's processor, of the part `shards` with one shard (docs/sharding.md)."""

    second: float = 0.044  # each second under load, whatever it answers
    read: float = 0.27e-3  # a read of events
    chunk: float = 28e-6  # a chunk of a stream, with one token

    def seconds(self, seconds: float, reads: float, chunks: float) -> float:
        """Of all gateways: `seconds` is the sum of the time that they ran."""
        return self.second * seconds + self.read * reads + self.chunk * chunks


@dataclass(frozen=True, slots=True)
class Load:
    """Enough users to keep all engines full; each sends the next request as soon as it is answered."""

    iteration: float = 0.020  # mean seconds, independent of the batch
    running: int = 64  # requests of an engine
    waiting: float = 0.25  # users beyond those that run, as a share
    warm_up: float = 2.0  # seconds
    seconds: float = 2.0  # of the measurement; more if there are few engines

    def gateways(self, engines: int) -> int:
        """How many gateways these engines need, each a whole processor: a chunk for each token."""
        price = GatewayPrice()
        left = 1 - price.seconds(1, 1 / PAUSE, 0)
        return math.ceil(price.chunk * engines * self.running / self.iteration / left)

    def measured(self, engines: int) -> float:
        return self.seconds * min(10.0, max(1.0, 20.0 / engines))


@dataclass(frozen=True, slots=True)
class Carried:
    """The figures of one pool with `engines` engines."""

    engines: int
    gateways: int
    server_busy: float  # share of the time
    exchange: float  # seconds, mean
    exchange_p99: float
    filled: float  # share of the places in an iteration that are taken
    tokens: float  # per second
    gap_p99: float  # seconds between two commits of a request's tokens


class Jittered:
    """A cost of about the same time for all iterations, so that engines do not run in step. Counts the iterations and
    the tokens that they sample."""

    def __init__(self, seconds: float) -> None:
        self.iterations = self.sampled = 0
        self._seconds = seconds
        self._draws = random.Random(1)

    def iteration(self, rows: list[RequestState], sampled: int) -> IterationTime:
        self.iterations += 1
        self.sampled += sampled
        return IterationTime((self._seconds * self._draws.uniform(1 - SPREAD, 1 + SPREAD),))


def run(out: Path | None) -> str:
    return report(Load(), ENGINES, SHARDS, out)


def report(load: Load, engines: tuple[int, ...], shards: tuple[tuple[int, int], ...], out: Path | None) -> str:
    """`shards`: the number of engines, and of pools over which they are spread evenly."""
    counts = sorted({*engines, *(total // pools for total, pools in shards)})
    with Bar(desc="plan", total=sum(counts), unit="engines") as bar:  # the time grows with the number of engines
        carried = {}
        for count in counts:
            carried[count] = carry(count, load)
            bar.update(count)
    if out:
        draw(out / "plan.png", _panels(load, [carried[n] for n in engines]))
    return (
        f"Engines of {load.running} running requests and {load.iteration * 1e3:.0f} ms an iteration (± {SPREAD:.0%}), "
        f"always asked for {load.waiting:.0%} more than they run; {PROMPT} tokens in, {OUTPUTS[0]} to {OUTPUTS[1]} out."
        "\n\n"
        f"### One pool\n\n{_one_pool(load, [carried[n] for n in engines])}\n\n"
        f"### Shards\n\n{_shards(load, carried, shards)}"
    )


def carry(engines: int, load: Load) -> Carried:
    """Simulate `engines` engines on one pool."""
    return run_in_virtual_time(_carry(engines, load))


async def _carry(engines: int, load: Load) -> Carried:
    gateways = load.gateways(engines)
    pool, cost = PricedPool(Price(), gateways), Jittered(load.iteration)
    sizes = random.Random(0)
    policy = Policy(load.running, num_slots=load.running * 512, max_model_len=512)
    async with World(pool, cost, policy, engines):
        users = round(engines * load.running * (1 + load.waiting))
        async with Users(pool, users, lambda: sized(PROMPT, sizes.randint(*OUTPUTS))):
            await asyncio.sleep(load.iteration)
            pool.begin()
            await asyncio.sleep(load.warm_up)
            window = Window(load.iteration + load.warm_up, load.iteration + load.warm_up + load.measured(engines))
            iterations, sampled, busy = cost.iterations, cost.sampled, pool.busy
            await asyncio.sleep(window.end - window.begin)
            iterations, sampled, busy = cost.iterations - iterations, cost.sampled - sampled, pool.busy - busy
    gaps = [gap for gap in window.gaps(pool.answers) if gap]  # tokens of one commit arrive together
    exchanges = [call.seconds for call in pool.exchanges if call.at in window]
    return Carried(
        engines,
        gateways,
        server_busy=busy / (window.end - window.begin),
        exchange=statistics.mean(exchanges),
        exchange_p99=percentile(exchanges, 99),
        filled=sampled / (iterations * load.running),
        tokens=window.token_throughput(pool.answers),
        gap_p99=percentile(gaps, 99),
    )


# --- tables --------------------------------------------------------------------------------------------------


def _one_pool(load: Load, carried: list[Carried]) -> str:
    head = [
        "engines",
        "gateways",
        "server busy",
        "exchange mean, ms",
        "p99, ms",
        "places filled",
        "tokens/s",
        "p99 between commits, ms",
    ]
    return table(head, [[one.engines, one.gateways, *_cells(one)] for one in carried])


def _shards(load: Load, carried: dict[int, Carried], shards: tuple[tuple[int, int], ...]) -> str:
    head = [
        "engines",
        "pools",
        "gateways",
        "server busy",
        "exchange mean, ms",
        "places filled",
        "tokens/s",
        "of what engines can",
    ]
    rows = []
    for engines, pools in shards:
        one = carried[engines // pools]
        tokens, most = one.tokens * pools, engines * load.running / load.iteration
        row = [
            f"{engines:,}",
            pools,
            one.gateways * pools,
            f"{one.server_busy:.0%}",
            f"{one.exchange * 1e3:.1f}",
            f"{one.filled:.1%}",
        ]
        rows.append([*row, f"{tokens:,.0f}", f"{tokens / most:.1%}"])
    return table(head, rows)


def _cells(one: Carried) -> list[str]:
    times = [f"{seconds * 1e3:.1f}" for seconds in (one.exchange, one.exchange_p99)]
    return [f"{one.server_busy:.0%}", *times, f"{one.filled:.1%}", f"{one.tokens:,.0f}", f"{one.gap_p99 * 1e3:.0f}"]


def _panels(load: Load, carried: list[Carried]) -> list[Panel]:
    engines = [one.engines for one in carried]
    most = [one.engines * load.running / load.iteration for one in carried]
    tokens = [Line("one pool", engines, [one.tokens for one in carried]), Line("engines alone", engines, most, True)]
    waits = [
        Line("exchange, mean", engines, [one.exchange * 1e3 for one in carried]),
        Line("between commits, p99", engines, [one.gap_p99 * 1e3 for one in carried]),
    ]
    return [Panel("throughput", "engines", "tokens/s", tokens), Panel("waiting", "engines", "ms", waits)]
