"""A chaos run from the server's start to the verdict."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx

from load.chaos import history
from load.chaos.aof import read_transactions
from load.chaos.checker import Verdict, check
from load.chaos.faults import Fault, NoTarget, Site, plan
from load.chaos.pool_server import keep_history
from load.chaos.report import Injection, faults_table, requests_table
from load.chaos.streams import Outcome, Streams
from load.chaos.workload import jobs, poison
from load.server import OrcaServer
from load.stream_client import open_session
from load.until import until

PATIENCE = 180.0  # seconds without a sign of life after which a client gives up
IDLE = 120.0  # seconds within which the pool must be empty once all clients have ended
SHOWN = 20  # violations


@dataclass(frozen=True, slots=True)
class ChaosOptions:
    """As `python -m load.chaos --help` says; the server's data and the histories go to `folder`."""

    folder: Path
    seconds: float
    every: float
    rate: float
    seed: int
    length: int
    model: str
    engines: int
    deadly_token: int
    durability: str
    faults: list[str]
    serve: list[str]


async def run(options: ChaosOptions) -> bool:
    """Prints the tables; whether all rules held."""
    data = options.folder / "data"
    data.mkdir()
    flags = ["--model", options.model, "--dtype", "float32", "--engines", str(options.engines), "--gateways", "2"]
    flags += ["--durability", options.durability, "--deadly-token", str(options.deadly_token)]
    flags += ["--max-pool-bytes", str(1 << 32), "--keep-ended", "3600", *options.serve]
    server = await asyncio.to_thread(start, data, flags)
    draw = random.Random(options.seed)
    clients = options.folder / "clients.jsonl"
    site: Site | None = None
    try:
        async with open_session(server.url) as session:
            with history.Recorder(clients, time.time) as recorder:
                streams = Streams(session, recorder, PATIENCE)
                site = make_site(server, flags, streams, options.deadly_token)
                kinds = jobs(options.length, options.deadly_token)
                await streams.learn(kinds)
                faults = plan(options.faults, int(options.seconds / options.every), draw)
                hurting = asyncio.create_task(
                    hurt(site, faults, options.every, options.seconds, lambda: streams.at_work)
                )
                await streams.arrive(kinds, options.rate, options.seconds, draw)
                injections = await hurting
            await idle(site)
    finally:
        await asyncio.to_thread((site.server if site else server).__exit__)
    verdict = check(history.read(clients), read_transactions(data), keeps_all=options.durability == "strict")
    return tell(options, injections, streams.outcomes, verdict)


def start(data: Path, flags: list[str], port: int = 0) -> OrcaServer:
    """A server that is ready and keeps its file's history."""
    server = OrcaServer(data, *flags, port=port)
    server.__enter__()
    keep_history(data)
    return server


def make_site(server: OrcaServer, flags: list[str], streams: Streams, deadly_token: int) -> Site:
    def start_again() -> None:
        site.server = start(server.data_dir, flags, server.port)

    async def send_poison() -> None:
        await streams.run(poison(deadly_token))

    site = Site(server, start_again, send_poison)
    return site


async def hurt(
    site: Site, faults: list[Fault], every: float, seconds: float, at_work: Callable[[], bool]
) -> list[Injection]:
    """One fault after the other, `every` seconds apart or when the one before is over, for so many seconds. Each waits
    until a stream is `at_work`, for it to hurt."""
    injections, end = [], time.monotonic() + seconds
    for fault in faults:
        began = time.monotonic()
        await asyncio.sleep(every / 2)
        with contextlib.suppress(TimeoutError):
            await until(at_work, end - time.monotonic(), every=0.01)
        if time.monotonic() > end:
            break
        injections.append(await inject(site, fault))
        await asyncio.sleep(max(0.0, began + every - time.monotonic()))
    return injections


async def inject(site: Site, fault: Fault) -> Injection:
    at, skipped = time.monotonic(), ""
    try:
        await fault.inject(site)
    except NoTarget as error:
        skipped = f"no {error}"
    print(f"{fault.name}: {skipped or f'{time.monotonic() - at:.1f} s'}", file=sys.stderr, flush=True)
    return Injection(fault.name, at, skipped)


async def idle(site: Site) -> None:
    """Wait until nothing waits or runs in the pool, for `IDLE` seconds at most: what is left then is a violation."""
    end = time.monotonic() + IDLE
    while time.monotonic() < end:
        try:
            metrics = await asyncio.to_thread(site.server.metrics)
        except httpx.HTTPError:
            metrics = {}
        if metrics.get("vllm:num_requests_running") == metrics.get("vllm:num_requests_waiting") == 0:
            return
        await asyncio.sleep(0.5)


def tell(options: ChaosOptions, injections: list[Injection], outcomes: list[Outcome], verdict: Verdict) -> bool:
    """Prints the tables and whatever is wrong."""
    unexpected = [o for o in outcomes if is_unexpected(o)]
    wrong = [o for o in outcomes if o.wrong]
    skipped = Counter(f"{i.fault} ({i.skipped})" for i in injections if i.skipped)
    print(
        f"{options.seconds:.0f} s, a fault every {options.every:.0f} s, {options.rate} requests/s, "
        f"seed {options.seed}, model {options.model}, engines {options.engines}, durability {options.durability}.\n"
    )
    print(faults_table(injections, outcomes) + "\n")
    if skipped:
        print("Not possible just then: " + ", ".join(f"{name} {times}x" for name, times in skipped.items()) + "\n")
    print(requests_table(outcomes, verdict, unexpected) + "\n")
    found = [f"failed: {o.number} {o.job.name}: {o.error}" for o in unexpected]
    found += [f"not as undisturbed: {o.number} {o.job.name}: {o.wrong}" for o in wrong]
    found += [str(violation) for violation in verdict.violations]
    for line in found[:SHOWN]:
        print(line[:500])
    if len(found) > SHOWN:
        print(f"... and {len(found) - SHOWN} more")
    print(
        "History checker: " + ("all rules held." if not verdict.violations else f"{len(verdict.violations)} violations")
    )
    return not found


def is_unexpected(outcome: Outcome) -> bool:
    """Only poison fails, and it says why."""
    if outcome.job.name == "poison":
        return "died" not in outcome.error
    return bool(outcome.error)
