"""`orca engines`: shows the engines of a cluster; `orca engines N` lets it have N engines.

It talks to the pool alone, so it works wherever the pool's server can be reached, whether or not the API answers.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import re
import sys
import time
from dataclasses import dataclass

from cli.arguments import Parser, hide_secrets
from cli.port_claim import running_servers
from services.errors import OrcaError, PoolUnavailable, UsageError
from services.overview import Overview, SeatOverview
from services.pool.address import without_password
from services.pool.discovery import pools_at
from services.pool.pool import RequestPool
from services.pool.shards import MAX_SHARDS, parse_shards
from services.seats import cluster_of, engine_of
from services.settings.settings import Settings
from services.settings.sources import from_values, read_values

POLL = 0.2  # seconds between two looks at the pool
PATIENCE = 30.0  # seconds without a change after which the user is told what the cluster may wait for
HINT = (
    "still waiting: an engine that is not ready loads its model, or waits for a free CPU or GPU of the Ray cluster for "
    "each of its ranks. A further node gives it one, a lower number gives it up. Ctrl-C ends this command only"
)
Overviews = dict[tuple[str, str], Overview]  # by URL of the server, and name of the pool
COLUMNS = "{:>4}  {:36}  {:>5}  {:24}  {:>8}  {:>14}"


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster with at least one living scheduler: its pools, its name, the engines that it is to have, its seats."""

    pools: list[tuple[str, str]]  # URL of the server, and name
    name: str
    wanted: int
    seats: list[SeatOverview]

    @property
    def shown(self) -> str:
        """The names of its pools."""
        return ", ".join(pool for _, pool in self.pools)

    @property
    def model(self) -> str:
        """What its engines say that they serve, once one has."""
        return next((f", model {seat.figures.model}" for seat in self.seats if seat.figures), "")

    @property
    def ready(self) -> int:
        return sum(seat.ready for seat in self.seats)

    @property
    def settled(self) -> bool:
        """Whether it has the engines that it is to have, all ready, and no other."""
        return self.ready == len(self.seats) == self.wanted


def run(arguments: list[str]) -> None:
    hide_secrets()
    logging.getLogger("services").addHandler(logging.NullHandler())  # what fails is printed once, as an error
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
    """The URLs of the servers of all shards: those given, else those of the settings, else those of the server that
    runs on the data folder.

    Raises UsageError if none is given and several servers run, or none.
    """
    settings = _settings(**({"redis_url": given} if given else {}))
    if settings.shards:
        return [shard.url for shard in settings.shards]
    files = [folder / "redis-url" for folder in running_servers(settings.data_dir)]
    lists = {file.read_text() for file in files if file.is_file()}
    if len(lists) != 1:
        found = "several servers run" if lists else "no server runs"
        raise UsageError(f"{found} on {settings.data_dir}; name the pool's server: --redis-url or ORCA_REDIS_URL")
    return [shard.url for shard in parse_shards(*lists)]


def _settings(**flags: str) -> Settings:
    """The settings that say where the pools are. The others may contradict them here, as `engines` does that is a flag
    of `orca serve`."""
    found = {name: value for name, value in read_values(**flags).items() if name in ("redis_url", "data_dir")}
    return from_values(found | {"engines": MAX_SHARDS})


async def _show(urls: list[str], name: str) -> None:
    """Print the engines of the clusters in these servers. A server that does not answer is named on stderr, unless none
    does."""
    overviews: Overviews = {}
    away: dict[str, PoolUnavailable] = {}
    for url in urls:
        try:
            overviews |= await _overviews(url)
        except PoolUnavailable as error:
            away[without_password(url)] = error
    for server, reason in away.items():
        if len(away) == len(urls):
            raise reason
        print(f"{server}: {reason}", file=sys.stderr)
    for cluster in _clusters(overviews, name):
        which = f"cluster {cluster.name}{cluster.model}, pool {cluster.shown}"
        print(f"{which}: {cluster.ready} of {cluster.wanted} engines are ready")
        print(COLUMNS.format("seat", "epoch", "ready", "scheduler", "requests", "KV blocks held"))
        for seat in cluster.seats:
            print(_row(seat).rstrip())


def _row(seat: SeatOverview) -> str:
    figures = seat.figures
    held = f"{seat.gauges.get('kv_usage', 0.0) * figures.num_blocks:.0f} of {figures.num_blocks}" if figures else "-"
    ready = (seat.level.name.lower() if seat.level else "yes") if seat.ready else "no"
    return COLUMNS.format(engine_of(seat.name), seat.epoch or "-", ready, seat.owner or "-", seat.running, held)


async def _scale(urls: list[str], options: argparse.Namespace) -> None:
    """Raises UsageError unless there is one cluster, and for fewer engines than it has pools."""
    overviews: Overviews = {}
    for url in urls:
        overviews |= await _overviews(url)
    found = _clusters(overviews, options.cluster)
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
    """Print the state of the cluster each time that it has changed, until it has the engines that it is to have; and
    what it may wait for, if nothing has changed for `PATIENCE` seconds.

    Raises OrcaError if something else changes the number of engines meanwhile.
    """
    said, hinted, name, since = "", False, scaled.name, time.monotonic()
    while True:
        overviews = [await pool.overview() for pool in pools]
        cluster = _cluster(name, dict(zip(scaled.pools, overviews, strict=True)))
        line = _summary(cluster) if cluster else f"cluster {name} has no scheduler"
        if line != said:
            print(said := line, flush=True)
            since = time.monotonic()
        if cluster and cluster.wanted != engines:
            changed = f"{engines} engines were asked for, and the cluster is to have {cluster.wanted}"
            raise OrcaError(f"{changed}: autoscaling (max_engines), a deployment or another command has set that")
        if cluster and cluster.settled:
            return
        if not hinted and time.monotonic() - since >= PATIENCE:
            hinted = True
            print(HINT, file=sys.stderr, flush=True)
        await asyncio.sleep(POLL)


def _summary(cluster: Cluster) -> str:
    leaving = [seat for seat in cluster.seats if int(engine_of(seat.name)) >= cluster.wanted]
    draining = sum(seat.running for seat in leaving)
    removed = f"; {len(leaving)} more to be removed, with {draining} running requests" if leaving else ""
    return f"{cluster.ready - sum(seat.ready for seat in leaving)} of {cluster.wanted} engines are ready{removed}"


async def _overviews(url: str) -> Overviews:
    """What the pools in a server know. Raises PoolUnavailable."""
    return {(url, pool.name): await pool.overview() async for pool in pools_at(url)}


def _clusters(overviews: Overviews, name: str) -> list[Cluster]:
    """The clusters in these pools whose names begin with `name`. Raises OrcaError if there is none."""
    names = sorted({known for overview in overviews.values() for known in overview.wanted if known.startswith(name)})
    found = [cluster for known in names if (cluster := _cluster(known, overviews))]
    if not found:
        raise OrcaError(f"no cluster {f'{name} ' if name else ''}has a scheduler in a pool of this server")
    return found


def _cluster(name: str, overviews: Overviews) -> Cluster | None:
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


def _seats(overview: Overview, cluster: str) -> list[SeatOverview]:
    return [seat for seat in overview.seats if cluster_of(seat.name) == cluster]


def _unsharded(pool: str) -> str:
    """The part of a pool's name that its shards share."""
    return re.sub(r"\.[0-9]{1,3}$", "", pool)
