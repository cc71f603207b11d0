"""More requests than the server can answer: answers per second, waiting, refusals and `/health`, at multiples of its
capacity."""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.synchronize import Event as Flag

import aiohttp
import httpx

from load.evaluation.bench import Bench, Found, Plots
from load.over_http import OverHttp
from load.plots import Line, Panel
from load.report import Table, quantile
from load.trace import Request
from load.workloads import any_prompt
from services.client.sse import StreamError
from services.client.streaming import open_session
from services.progress import print_beside

HELP = "arrivals at 0.5 to 10 times what the server can answer"
PATIENCE = 20.0  # seconds after which a client leaves
PROMPT, TOKENS = 8, 64
TIMES = (0.5, 1.0, 2.0, 4.0, 10.0)
CLIENTS = 32  # that keep the batch full while the capacity is measured
LEAST, LONGEST = 10.0, 120.0  # seconds of a measurement of the capacity
PROBE = 0.2  # seconds between requests of /health
SETTLED = 60.0  # seconds within which abandoned requests should be cancelled
TITLE = f"Requests of {TOKENS} tokens out; clients leave after {PATIENCE:.0f} s"
ARRIVING, ANSWERED = "arriving, requests/s", "answered, requests/s"
MEDIAN, P99 = "median TTFT, s", "P99 TTFT, s"


@dataclass(slots=True)
class Results:
    """The results of one open loop; times in seconds. `ends`: when the whole answers ended, on the monotonic clock."""

    sent: int = 0
    ends: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)  # of whole answers
    refused: list[float] = field(default_factory=list)
    left: int = 0
    failed: int = 0


def measure(bench: Bench) -> Found:
    rows: Table = {}
    with bench.server() as server:
        most, seconds = 0.0, max(LEAST, bench.seconds)
        while not most:  # a slow machine needs longer
            if seconds > LONGEST:
                raise RuntimeError(f"{CLIENTS} clients had no answer of {TOKENS} tokens in {LONGEST:.0f} s")
            most = asyncio.run(capacity(server.url, seconds))
            seconds *= 2
        for times in TIMES:
            with probed(server.url) as looks:
                results, answered = asyncio.run(open_loop(server.url, times * most, max(LEAST, 5 * bench.seconds)))
            rows[name := f"{times:g} times the capacity"] = cells(results, times * most, answered, looks)
            print_beside(json.dumps({name: rows[name]}))
            server.until_idle(SETTLED)
    return Found({TITLE: rows}, {"capacity": most})


def cells(results: Results, rate: float, answered: float, looks: list[float]) -> dict[str, float]:
    """`answered`: requests/s once the first clients have left. `looks`: seconds of each request of /health."""
    found = {ARRIVING: rate, ANSWERED: answered}
    if results.first:
        found |= {MEDIAN: quantile(results.first, 0.5), P99: quantile(results.first, 0.99)}
    if results.refused:
        found["P99 of a refusal, s"] = quantile(results.refused, 0.99)
    if looks:
        found["slowest `/health`, s"] = max(looks)
    counts = {"sent": results.sent, "refused": len(results.refused), "left": results.left, "failed": results.failed}
    return found | {name: float(count) for name, count in counts.items()}


def plots(found: Found) -> Plots:
    rows = found.figures[TITLE].values()
    rates, answered = [row[ARRIVING] for row in rows], [row[ANSWERED] for row in rows]
    served, most = [row for row in rows if MEDIAN in row], found.series["capacity"]
    lines = [Line("answered", rates, answered), Line("capacity", [0.0, max(rates)], [most, most], dashed=True)]
    waits = [Line(name, [row[ARRIVING] for row in served], [row[name] for row in served]) for name in (MEDIAN, P99)]
    return {
        "overload": [
            Panel("Answers under overload", ARRIVING, ANSWERED, lines),
            Panel("Waiting under overload", ARRIVING, "seconds to the first token", waits),
        ]
    }


async def one(session: aiohttp.ClientSession, number: int, results: Results, patience: float = PATIENCE) -> None:
    """A client: sends a request and reads the stream to its end, or leaves after `patience` seconds."""
    results.sent += 1
    began = time.monotonic()
    try:
        async with asyncio.timeout(patience):
            answer = await OverHttp(session, resume=False).ask(Request(any_prompt(PROMPT, number), TOKENS))
    except TimeoutError:
        results.left += 1
    except StreamError as error:
        if error.status in (429, 503):
            results.refused.append(time.monotonic() - began)
        else:
            results.failed += 1
    else:
        results.first.append(answer.ttft)
        results.ends.append(time.monotonic())


async def capacity(url: str, seconds: float) -> float:
    """Answers per second of clients that keep the batch full; the first third of the time is not counted."""
    results, began = Results(), time.monotonic()

    async def ask_on(session: aiohttp.ClientSession, client: int) -> None:
        while time.monotonic() - began < seconds:
            await one(session, client, results, 10 * PATIENCE)

    async with open_session(url) as session:
        await asyncio.gather(*(ask_on(session, client) for client in range(CLIENTS)))
    return sum(seconds / 3 < end - began < seconds for end in results.ends) / (seconds * 2 / 3)


async def open_loop(url: str, rate: float, seconds: float) -> tuple[Results, float]:
    """Clients that arrive at `rate` per second, whatever happens to earlier ones, until `seconds` after the first may
    have left; then all leave.

    Returns their results, and the answers per second in the last `seconds`.
    """
    results, began = Results(), time.monotonic()
    tasks = []
    async with open_session(url) as session:
        for number in range(int(rate * (PATIENCE + seconds))):
            if (wait := began + number / rate - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            elif number % 16 == 0:
                await asyncio.sleep(0)  # this process is late: let the requests that were sent proceed
            tasks.append(asyncio.create_task(one(session, number, results)))
        await asyncio.sleep(max(0.0, began + PATIENCE + seconds - time.monotonic()))
        counted = began + PATIENCE
        answered = sum(end > counted for end in results.ends) / (time.monotonic() - counted)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return results, answered


@contextlib.contextmanager
def probed(url: str) -> Iterator[list[float]]:
    """Probe /health from another process meanwhile; the list has the seconds of each answer afterwards, infinity for
    one that did not come."""
    times: list[float] = []
    stop = multiprocessing.Event()
    out: multiprocessing.Queue[list[float]] = multiprocessing.Queue()
    watcher = multiprocessing.Process(target=_probe, args=(url, stop, out))
    watcher.start()
    try:
        yield times
    finally:
        stop.set()
        times += out.get()
        watcher.join()


def _probe(url: str, stop: Flag, out: multiprocessing.Queue[list[float]]) -> None:
    times = []
    with httpx.Client(timeout=2.0) as client:
        while not stop.wait(PROBE):
            began = time.monotonic()
            try:
                fine = client.get(url + "/health").status_code == 200
            except httpx.HTTPError:
                fine = False
            times.append(time.monotonic() - began if fine else float("inf"))
    out.put(times)
