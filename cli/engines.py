"""`orca engines`: shows the engines of a cluster; `orca engines N` lets it have N engines.

It talks to the pool alone, so it works wherever the pool's server can be reached, whether or not the API answers.
"""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import dataclass

from cli.arguments import Parser, hide_secrets
from cli.port_claim import running_clusters
from services.errors import OrcaError, UsageError
from services.overview import Seat
from services.pool.discovery import pools_at
from services.pool.pool import RequestPool
from services.seats import cluster_of, engine_of
from services.settings.sources import load

POLL = 0.2  # seconds between two looks at the pool
COLUMNS = "{:>4}  {:36}  {:>5}  {:24}  {:>8}  {:>14}"


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster with at least one living scheduler: its pool, its name, the engines that it is to have, its seats."""

    pool: str
    name: str
    wanted: int
    seats: list[Seat]

    @property
    def ready(self) -> int:
        return sum(map(is_ready, self.seats))

    @property
    def settled(self) -> bool:
        """Whether it has the engines that it is to have, all ready, and no other."""
        return self.ready == len(self.seats) == self.wanted


def run(arguments: list[str]) -> None:
    hide_secrets()
    parser = Parser("orca engines", "The engines of a cluster. With a number: let it have as many, and wait for that.")
    parser.add_argument("engines", nargs="?", type=_number, metavar="N", help="the number of engines to have")
    parser.add_argument("--no-wait", action="store_true", help="do not wait until the cluster has N engines")
    parser.add_argument(
        "--redis-url",
        metavar="URL",
        help="the pool's server (default: that of the settings, or of the server that runs)",
    )
    parser.add_argument(
        "--cluster", default="", help="the cluster, if several use the pool's server: the first letters suffice"
    )
    options = parser.read(arguments)
    url = options.redis_url or _url()
    asyncio.run(_show(url, options.cluster) if options.engines is None else _scale(url, options))


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"is a number of engines, at least 1, not {text!r}")
    return int(text)


def _url() -> str:
    """The URL of the pool's server: that of the settings, else that of the server that runs on the data folder.

    Raises UsageError if there is none, or several.
    """
    settings = load()
    if url := settings.redis_url.get_secret_value():
        return url
    files = [folder / "redis-url" for folder in running_clusters(settings.data_dir)]
    urls = {file.read_text() for file in files if file.is_file()}
    if len(urls) != 1:
        found = "several servers run" if urls else "no server runs"
        raise UsageError(f"{found} on {settings.data_dir}; name the pool's server: --redis-url or ORCA_REDIS_URL")
    return urls.pop()


async def _show(url: str, name: str) -> None:
    for cluster in await _clusters(url, name):
        print(f"cluster {cluster.name}, pool {cluster.pool}: {cluster.ready} of {cluster.wanted} engines are ready")
        print(COLUMNS.format("seat", "epoch", "ready", "scheduler", "requests", "KV blocks held"))
        for seat in cluster.seats:
            print(_row(seat).rstrip())


def _row(seat: Seat) -> str:
    figures = seat.figures
    held = f"{seat.gauges.get('kv_usage', 0.0) * figures.num_blocks:.0f} of {figures.num_blocks}" if figures else "-"
    ready = "yes" if is_ready(seat) else "no"
    return COLUMNS.format(engine_of(seat.name), seat.epoch or "-", ready, seat.owner or "-", seat.running, held)


async def _scale(url: str, options: argparse.Namespace) -> None:
    """Raises UsageError unless there is one cluster."""
    found = await _clusters(url, options.cluster)
    if len(found) != 1:
        names = ", ".join(f"{cluster.name} (pool {cluster.pool})" for cluster in found)
        raise UsageError(f"there are several clusters: {names}; name one: --cluster {found[0].name}")
    pool, name = RequestPool(url, found[0].pool), found[0].name
    try:
        await pool.scale(name, options.engines)
        if not options.no_wait:
            await _until_settled(pool, name)
    finally:
        await pool.close()


async def _until_settled(pool: RequestPool, name: str) -> None:
    """Print the state of the cluster each time that it has changed, until it has the engines that it is to have."""
    said = ""
    while True:
        cluster = next((one for one in await _clusters_of(pool) if one.name == name), None)
        line = _summary(cluster) if cluster else f"cluster {name} has no scheduler"
        if line != said:
            print(said := line, flush=True)
        if cluster and cluster.settled:
            return
        await asyncio.sleep(POLL)


def _summary(cluster: Cluster) -> str:
    leaving = [seat for seat in cluster.seats if int(engine_of(seat.name)) >= cluster.wanted]
    draining = sum(seat.running for seat in leaving)
    removed = f"; {len(leaving)} more to be removed, with {draining} running requests" if leaving else ""
    return f"{cluster.ready - sum(map(is_ready, leaving))} of {cluster.wanted} engines are ready{removed}"


async def _clusters(url: str, name: str) -> list[Cluster]:
    """The clusters in the pools of a server whose names begin with `name`. Raises OrcaError if there is none."""
    found: list[Cluster] = []
    async for pool in pools_at(url):
        found += [cluster for cluster in await _clusters_of(pool) if cluster.name.startswith(name)]
    if not found:
        raise OrcaError(f"no cluster {f'{name} ' if name else ''}has a scheduler in a pool of this server")
    return found


async def _clusters_of(pool: RequestPool) -> list[Cluster]:
    overview = await pool.overview()
    living = sorted({cluster_of(seat.name) for seat in overview.seats if seat.alive})
    seats = sorted(overview.seats, key=lambda seat: int(engine_of(seat.name)))
    return [
        Cluster(pool.name, name, overview.wanted.get(name, 0), [s for s in seats if cluster_of(s.name) == name])
        for name in living
    ]


def is_ready(seat: Seat) -> bool:
    return seat.alive and seat.gauges.get("ready") == 1
