"""`orca engines`: shows the engines of a cluster; `orca engines N` lets it have N engines.

It talks to the pool alone, so it works wherever the pool's server can be reached, whether or not the API answers.
"""

from __future__ import annotations

import argparse
import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass

from cli.arguments import Parser, hide_secrets
from cli.port_claim import running_clusters
from services.errors import OrcaError, UsageError
from services.overview import Overview, Seat
from services.pool.discovery import pools_at
from services.pool.pool import RequestPool
from services.seats import cluster_of, engine_of
from services.settings.sources import load

POLL = 0.2  # seconds between two looks at the pool
COLUMNS = "{:>4}  {:36}  {:>5}  {:24}  {:>8}  {:>14}"


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster with at least one living scheduler: its pools, its name, the engines that it is to have, its seats."""

    pools: list[tuple[str, str]]  # URL of the server, and name
    name: str
    wanted: int
    seats: list[Seat]

    @property
    def shown(self) -> str:
        """The names of its pools."""
        return ", ".join(pool for _, pool in self.pools)

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
        help="the pool's server, or all shards (default: those of the settings, or of the server that runs)",
    )
    parser.add_argument(
        "--cluster", default="", help="the cluster, if several use the pool's server: the first letters suffice"
    )
    options = parser.read(arguments)
    urls = _urls(options.redis_url)
    asyncio.run(_show(urls, options.cluster) if options.engines is None else _scale(urls, options))


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"is a number of engines, at least 1, not {text!r}")
    return int(text)


def _urls(given: str | None) -> list[str]:
    """The URLs of the servers of all shards: those given, else those of the settings, else that of the server that runs
    on the data folder.

    Raises UsageError if none is given and several servers run, or none.
    """
    settings = load(**({"redis_url": given} if given else {}))
    if settings.shards:
        return [shard.url for shard in settings.shards]
    files = [folder / "redis-url" for folder in running_clusters(settings.data_dir)]
    urls = {file.read_text() for file in files if file.is_file()}
    if len(urls) != 1:
        found = "several servers run" if urls else "no server runs"
        raise UsageError(f"{found} on {settings.data_dir}; name the pool's server: --redis-url or ORCA_REDIS_URL")
    return list(urls)


async def _show(urls: list[str], name: str) -> None:
    for cluster in await _clusters(urls, name):
        print(f"cluster {cluster.name}, pool {cluster.shown}: {cluster.ready} of {cluster.wanted} engines are ready")
        print(COLUMNS.format("seat", "epoch", "ready", "scheduler", "requests", "KV blocks held"))
        for seat in cluster.seats:
            print(_row(seat).rstrip())


def _row(seat: Seat) -> str:
    figures = seat.figures
    held = f"{seat.gauges.get('kv_usage', 0.0) * figures.num_blocks:.0f} of {figures.num_blocks}" if figures else "-"
    ready = "yes" if is_ready(seat) else "no"
    return COLUMNS.format(engine_of(seat.name), seat.epoch or "-", ready, seat.owner or "-", seat.running, held)


async def _scale(urls: list[str], options: argparse.Namespace) -> None:
    """Raises UsageError unless there is one cluster, and for fewer engines than it has pools."""
    found = await _clusters(urls, options.cluster)
    if len(found) != 1:
        names = ", ".join(f"{cluster.name} (pool {cluster.shown})" for cluster in found)
        raise UsageError(f"there are several clusters: {names}; name one: --cluster {found[0].name}")
    (cluster,) = found
    if options.engines < len(cluster.pools):
        raise UsageError(f"each of its {len(cluster.pools)} pools needs an engine, so N cannot be {options.engines}")
    pools = [RequestPool(*pool) for pool in cluster.pools]
    try:
        for pool in pools:
            await pool.scale(cluster.name, options.engines)
        if not options.no_wait:
            await _until_settled(pools, cluster, options.engines)
    finally:
        for pool in pools:
            await pool.close()


async def _until_settled(pools: list[RequestPool], scaled: Cluster, engines: int) -> None:
    """Print the state of the cluster each time that it has changed, until it has this number of engines.

    Raises OrcaError if the number was replaced meanwhile, as autoscaling does.
    """
    said, name = "", scaled.name
    while True:
        overviews = [await pool.overview() for pool in pools]
        cluster = _cluster(name, dict(zip(scaled.pools, overviews, strict=True)))
        line = _summary(cluster) if cluster else f"cluster {name} has no scheduler"
        if line != said:
            print(said := line, flush=True)
        if cluster and cluster.wanted != engines:
            by = "autoscaling, a configuration or another call"
            raise OrcaError(f"cluster {name} is to have {cluster.wanted} engine(s) now: {by} has set this number")
        if cluster and cluster.settled:
            return
        await asyncio.sleep(POLL)


def _summary(cluster: Cluster) -> str:
    leaving = [seat for seat in cluster.seats if int(engine_of(seat.name)) >= cluster.wanted]
    draining = sum(seat.running for seat in leaving)
    removed = f"; {len(leaving)} more to be removed, with {draining} running requests" if leaving else ""
    return f"{cluster.ready - sum(map(is_ready, leaving))} of {cluster.wanted} engines are ready{removed}"


async def _clusters(urls: list[str], name: str) -> list[Cluster]:
    """The clusters in the pools of these servers whose names begin with `name`. Raises OrcaError if there is none."""
    overviews = {(url, pool.name): await pool.overview() for url in urls async for pool in pools_at(url)}
    names = sorted({known for overview in overviews.values() for known in overview.wanted if known.startswith(name)})
    found = [cluster for known in names if (cluster := _cluster(known, overviews))]
    if not found:
        raise OrcaError(f"no cluster {f'{name} ' if name else ''}has a scheduler in a pool of this server")
    return found


def _cluster(name: str, overviews: Mapping[tuple[str, str], Overview]) -> Cluster | None:
    """The cluster of this name; None if it has no living scheduler. Its pools are those in which it has one, and the
    other shards of these."""
    known = {pool: _seats(overview, name) for pool, overview in overviews.items() if name in overview.wanted}
    living = {_unsharded(pool[1]) for pool, seats in known.items() if any(seat.alive for seat in seats)}
    pools = [pool for pool in known if _unsharded(pool[1]) in living]
    if not pools:
        return None
    # if the list of shards has changed, two pools may have a seat of the same name; its owner has the engine
    owned_last = sorted((seat for pool in pools for seat in known[pool]), key=lambda seat: seat.alive)
    seats = {seat.name: seat for seat in owned_last}.values()
    wanted = max(overviews[pool].wanted[name] for pool in pools)
    return Cluster(pools, name, wanted, sorted(seats, key=lambda seat: int(engine_of(seat.name))))


def _seats(overview: Overview, cluster: str) -> list[Seat]:
    return [seat for seat in overview.seats if cluster_of(seat.name) == cluster]


def _unsharded(pool: str) -> str:
    """The part of a pool's name that its shards share."""
    return re.sub(r"\.[0-9]{1,3}$", "", pool)


def is_ready(seat: Seat) -> bool:
    return seat.alive and seat.gauges.get("ready") == 1
