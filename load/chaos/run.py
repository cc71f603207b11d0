"""A chaos run, from the start of the server to the verdict."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import time
from collections import Counter, deque
from dataclasses import dataclass
from pathlib import Path

from load.chaos import history
from load.chaos.aof import read_transactions
from load.chaos.checker import Circumstances, Least, Verdict, check
from load.chaos.faults import FAULTS, Fault, plan
from load.chaos.planted import PLANTS, missed_plants
from load.chaos.report import Injection, faults_table, requests_table
from load.chaos.site import SCHEDULER, NoTarget, Site, facts, keep_history
from load.chaos.streams import Outcome, Streams
from load.chaos.structured import constrained
from load.chaos.workload import paper_prompts, poison, requests
from load.server import OrcaServer, until
from load.trace import HttpRequest
from services.client.streaming import open_session
from services.progress import Bar

PATIENCE = 180.0  # seconds without a sign of life after which a client gives up
IDLE = 120.0  # seconds within which the pool must be empty after all clients have ended
SHOWN = 20  # violations that are printed
ATTEMPTS = 3  # to inject a fault that had no target, or no open stream


@dataclass(frozen=True, slots=True)
class ChaosOptions:
    """The options of `python -m load.chaos --help`. The server's data and the histories are written to `folder`."""

    folder: Path
    seconds: float
    every: float
    streams: int
    seed: int
    length: int
    model: str
    engines: int
    tenants: int
    deadly_token: int
    durability: str
    faults: list[str]
    refusals: list[int]
    serve: list[str]

    @property
    def least(self) -> Least:
        """One answer per minute for each stream, a quarter of the usual tokens for each answer, one fault in four times
        `every` seconds: more than half of the time may be lost to faults."""
        answers = max(1, int(self.streams * self.seconds / 60))
        return Least(answers, answers * self.length // 4, max(1, int(self.seconds / (4 * self.every))))

    @property
    def keys(self) -> list[str]:
        """An API key for each tenant; none if there is only one tenant."""
        return [f"key-{number}" for number in range(self.tenants)] if self.tenants > 1 else []


async def run(options: ChaosOptions) -> bool:
    """Run and print the tables; returns whether all rules held and the checker found all planted violations."""
    data = options.folder / "data"
    data.mkdir()
    flags = ["--model", options.model, "--dtype", "float32", "--engines", str(options.engines), "--gateways", "2"]
    flags += ["--durability", options.durability, "--deadly-token", str(options.deadly_token)]
    flags += ["--max-pool-bytes", str(1 << 32), "--keep-ended", "3600"]
    if options.keys:
        flags += ["--api-keys", json.dumps({key: f"tenant-{key}" for key in options.keys})]
    flags += options.serve
    server = await asyncio.to_thread(start, data, flags)
    draw = random.Random(options.seed)
    clients = options.folder / "clients.jsonl"
    seen: dict[int, float] = {}
    site: Site | None = None
    try:
        async with open_session(server.url) as session:
            with history.Recorder(clients, time.time) as recorder:
                streams = Streams(session, recorder, PATIENCE, options.keys)
                site = make_site(server, flags, streams, options.deadly_token)
                others = constrained(options.length)
                kinds = requests(options.length, options.deadly_token, paper_prompts(), others)
                kinds = random.Random(options.seed).sample(kinds, len(kinds))  # the constrained ones among the others
                await streams.learn(kinds)
                print(await asyncio.to_thread(facts, server, options.keys) + "\n", flush=True)
                watching = asyncio.create_task(watch_schedulers(site, seen))
                injections = await under_load(options, site, streams, kinds, draw)
            await asyncio.to_thread(site.server.until_idle, IDLE)  # what is left then is a violation
            watching.cancel()
    finally:
        await asyncio.to_thread((site.server if site else server).__exit__)
    records, transactions = list(history.read(clients)), list(read_transactions(data))
    made = [i for i in injections if not i.skipped]
    known = Circumstances(losses(options, made), seen, len(made))
    verdict = check(records, transactions, options.least, known)
    held = print_results(options, injections, streams.outcomes, verdict)
    missed = missed_plants(verdict, records, transactions, draw)
    print(f"Planted violations: {len(PLANTS) - len(missed)} of {len(PLANTS)} found.", *missed, sep="\n")
    return held and not missed


async def under_load(
    options: ChaosOptions, site: Site, streams: Streams, kinds: list[HttpRequest], draw: random.Random
) -> list[Injection]:
    """Keep streams open for the time of the run and inject faults meanwhile; returns when all streams have ended."""
    faults = plan(options.faults, int(options.seconds / options.every), draw)
    over = asyncio.Event()
    load = asyncio.create_task(streams.keep(kinds, options.streams, over))
    try:
        began = time.monotonic()
        passing = asyncio.create_task(show_time(options.seconds))
        injections = await inject_faults(site, faults, options.every, options.seconds, streams, options.streams)
        await asyncio.sleep(max(0.0, began + options.seconds - time.monotonic()))
    finally:
        passing.cancel()
        over.set()
    await load
    return injections


async def show_time(seconds: float) -> None:
    """Draw a bar of the time that has passed, until cancelled."""
    began = time.monotonic()
    with Bar(desc="faults under load", total=round(seconds), unit="s") as bar:
        while True:
            bar.reach(min(round(time.monotonic() - began), round(seconds)))
            await asyncio.sleep(1.0)


async def watch_schedulers(site: Site, seen: dict[int, float]) -> None:
    """Record in `seen` when each scheduler process was last seen alive, until cancelled."""
    while True:
        now = time.time()
        for pid in await asyncio.to_thread(site.server.pids, SCHEDULER):
            seen[pid] = now
        await asyncio.sleep(0.25)


def losses(options: ChaosOptions, made: list[Injection]) -> list[float]:
    """When the pool's server died (Unix time, s) and may have forgotten something: a second after the fault began,
    which is the time to find and kill it."""
    if options.durability == "strict":
        return []
    unix = time.time() - time.monotonic()
    return [unix + i.time + 1.0 for i in made if FAULTS[i.fault].takes_pool]


def start(data: Path, flags: list[str], port: int = 0) -> OrcaServer:
    """A server that is ready and keeps the history of its pool's file."""
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


async def inject_faults(
    site: Site, faults: list[Fault], every: float, seconds: float, streams: Streams, count: int
) -> list[Injection]:
    """Inject one fault after the other for `seconds` seconds, `every` seconds apart or when the last one is over. Each
    fault waits until half of `count` streams are open. A fault that had no target, or no open stream, is repeated
    later."""
    injections, end = [], time.monotonic() + seconds
    waiting = deque((fault, ATTEMPTS) for fault in faults)
    while waiting:
        fault, attempts = waiting.popleft()
        began = time.monotonic()
        await asyncio.sleep(every / 2)
        with contextlib.suppress(TimeoutError):
            await until(lambda: streams.open >= (count + 1) // 2, end - time.monotonic(), every=0.01)
        if time.monotonic() > end:
            break
        injections.append(await inject(site, fault, streams))
        if injections[-1].skipped and attempts > 1:
            waiting.append((fault, attempts - 1))
        await asyncio.sleep(max(0.0, began + every - time.monotonic()))
    return injections


async def inject(site: Site, fault: Fault, streams: Streams) -> Injection:
    at, hit, documents = time.monotonic(), streams.open, streams.documents
    skipped = "" if hit else "no open stream"
    try:
        await fault.inject(site)
    except NoTarget as error:
        skipped = f"no {error}"
    outcome = skipped or f"{time.monotonic() - at:.1f} s, {hit} streams, {documents} documents"
    Bar.write(f"{fault.name}: {outcome}", file=sys.stderr)
    return Injection(fault.name, at, skipped, hit, documents)


def print_results(
    options: ChaosOptions, injections: list[Injection], outcomes: list[Outcome], verdict: Verdict
) -> bool:
    """Print the tables and everything that is wrong; returns whether nothing is."""
    least = options.least
    refused = [o for o in outcomes if o.status in options.refusals]
    unexpected = [o for o in outcomes if o not in refused and is_unexpected(o)]
    wrong = [o for o in outcomes if o.wrong]
    skipped = Counter(f"{i.fault} ({i.skipped})" for i in injections if i.skipped)
    print(
        f"{options.seconds:.0f} s, a fault every {options.every:.0f} s, {options.streams} streams at any time, "
        f"seed {options.seed}. A verdict needs {least.requests} answers, {least.tokens} tokens and {least.faults} "
        "faults under open streams.\n"
    )
    print(faults_table(injections, outcomes) + "\n")
    if skipped:
        print("Not possible just then: " + ", ".join(f"{name} {times}x" for name, times in skipped.items()) + "\n")
    print(requests_table(outcomes, verdict, unexpected, refused) + "\n")
    found = [f"failed: {o.number} {o.request.name}: {o.error}" for o in unexpected]
    found += [f"not as undisturbed: {o.number} {o.request.name}: {o.wrong}" for o in wrong]
    found += [f"not valid: {o.number} {o.request.name}: {o.invalid}" for o in outcomes if o.invalid]
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
    """Whether a request should not have ended like this: only poison fails, and its error tells why."""
    if outcome.request.name == "poison":
        return "died" not in outcome.error
    return bool(outcome.error)
