"""More than the server can do: `python -m load.overload [--times 1,2,5,10] [--seconds 20] [-- FLAGS of orca serve]`.

An open loop of clients that leave after `PATIENCE` seconds, at multiples of the measured capacity, each part with the
memory of all processes; then connections that wait, idle, send half a request or do not read, while `/health` is asked
from another process. Prints Markdown tables.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import socket
import sys
import tempfile
import time
from dataclasses import dataclass, field
from multiprocessing.synchronize import Event as Flag
from pathlib import Path

import aiohttp
import httpx

from load.markdown import table
from load.server import OrcaServer
from load.stream_client import open_session

PATIENCE = 20.0  # seconds after which a client leaves
TOKENS = 64
PROBE = 0.2  # seconds between looks at /health
PROBE_TIMEOUT = 2.0
KINDS = ("waiting streams", "idle", "half-open", "slow readers")


@dataclass(slots=True)
class Results:
    """Of one open loop; times in seconds."""

    sent: int = 0
    first: list[float] = field(default_factory=list)  # of those that were answered whole
    whole: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    left: int = 0
    failed: int = 0


async def one(session: aiohttp.ClientSession, number: int, results: Results, patience: float = PATIENCE) -> None:
    """A client: asks, reads a stream to its end, or leaves."""
    body = {"prompt": f"Story {number}:", "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
    results.sent += 1
    began = time.monotonic()
    try:
        async with asyncio.timeout(patience), session.post("/v1/completions", json=body) as response:
            if response.status in (429, 503):
                await response.read()
                results.refused.append(time.monotonic() - began)
                return
            first, said = 0.0, b""
            async for part in response.content.iter_any():
                first = first or (time.monotonic() - began if b"data:" in part else 0.0)
                said = (said + part)[-40:]
            if b"[DONE]" in said:
                results.first.append(first)
                results.whole.append(time.monotonic() - began)
            else:
                results.failed += 1
    except TimeoutError:
        results.left += 1
    except (aiohttp.ClientError, OSError):
        results.failed += 1


async def capacity(url: str, clients: int, seconds: float) -> float:
    """Answers per second with as many clients as keep the batch full, the first third of the time left out."""
    results, ends = Results(), []
    began = time.monotonic()

    async def ask_on(session: aiohttp.ClientSession, client: int) -> None:
        while time.monotonic() - began < seconds:
            await one(session, client, results, 10 * PATIENCE)
            ends.append(time.monotonic() - began)

    async with open_session(url) as session:
        await asyncio.gather(*(ask_on(session, client) for client in range(clients)))
    return sum(seconds / 3 < end < seconds for end in ends) / (seconds * 2 / 3)


async def open_loop(url: str, rate: float, seconds: float) -> Results:
    """Clients that come at `rate` a second whatever becomes of those before."""
    results, began = Results(), time.monotonic()
    async with open_session(url) as session, asyncio.TaskGroup() as group:
        for number in range(int(rate * seconds)):
            await asyncio.sleep(began + number / rate - time.monotonic())
            group.create_task(one(session, number, results))
    return results


def memory(server: OrcaServer) -> dict[str, float]:
    """MiB of our processes' own pages, by what they are, those of one kind added up."""
    found: dict[str, float] = {}
    for pid in {*server.cluster(), *server.pool_server()}:
        try:
            title = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        pss = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) / 1024
        name = next((n for n in ("gateway", "scheduler", "EngineActor", "haproxy", "-server ") if n in title), "other")
        found[name] = found.get(name, 0.0) + pss
    return found


def probe(url: str, stop: Flag, out: multiprocessing.Queue[list[float]]) -> None:
    """Another process: how long /health takes; infinity where it does not answer."""
    times = []
    with httpx.Client(timeout=PROBE_TIMEOUT) as client:
        while not stop.wait(PROBE):
            began = time.monotonic()
            try:
                fine = client.get(url + "/health").status_code == 200
            except httpx.HTTPError:
                fine = False
            times.append(time.monotonic() - began if fine else float("inf"))
    out.put(times)


async def attack(kind: str, url: str, port: int, count: int, seconds: float) -> str:
    """Hold `count` connections of this kind; says what became of them."""
    if kind == "waiting streams":
        results = Results()
        async with open_session(url) as session:
            await asyncio.gather(*(one(session, number, results, seconds) for number in range(count)))
        return (
            f"{len(results.whole)} whole, {len(results.refused)} refused, {results.left} left, {results.failed} failed"
        )
    held = await asyncio.gather(*(_hold(kind, port) for _ in range(count)))
    await asyncio.sleep(seconds)
    closed = sum(connection is None or _closed(connection) for connection in held)
    for connection in held:
        if connection is not None:
            connection.close()
    return f"{closed} of {count} closed by the server"


async def _hold(kind: str, port: int) -> socket.socket | None:
    connection = socket.socket()
    connection.setblocking(False)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    loop = asyncio.get_running_loop()
    try:
        await asyncio.wait_for(loop.sock_connect(connection, ("127.0.0.1", port)), 10)
        if kind == "half-open":
            await loop.sock_sendall(connection, b"POST /v1/completions HTTP/1.1\r\nHost: a\r\n")
        if kind == "slow readers":
            body = b'{"prompt":"A","max_tokens":500,"n":8,"ignore_eos":true,"stream":true}'
            head = f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            await loop.sock_sendall(connection, head + body)
    except (OSError, TimeoutError):
        connection.close()
        return None
    return connection


def _closed(connection: socket.socket) -> bool:
    try:
        while part := connection.recv(1 << 16):
            if not part:
                return True
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def quantile(values: list[float], share: float) -> str:
    return f"{sorted(values)[min(int(len(values) * share), len(values) - 1)]:.2f}" if values else "-"


def _row(results: Results, seconds: float, most: float) -> list[object]:
    goodput = len(results.whole) / seconds
    refused = [
        f"{sorted(results.refused)[int(len(results.refused) * q)] * 1e3:.0f}" if results.refused else "-"
        for q in (0.5, 0.99)
    ]
    times = [quantile(results.first, 0.5), quantile(results.whole, 0.5), quantile(results.whole, 0.99)]
    answered = [results.sent, f"{goodput:.1f}", f"{goodput / most:.0%}", *times]
    return [*answered, len(results.refused), *refused, results.left, results.failed]


def overload(server: OrcaServer, times: list[float], seconds: float) -> None:
    most = asyncio.run(capacity(server.url, 32, max(seconds, 15)))
    print(f"\nCapacity {most:.1f} requests/s of {TOKENS} tokens; clients leave after {PATIENCE:.0f} s.\n")
    rows, memories = [], [("before", memory(server))]
    for factor in times:
        began = time.monotonic()
        results = asyncio.run(open_loop(server.url, factor * most, seconds))
        rows.append((f"{factor:g}", *_row(results, time.monotonic() - began, most)))
        memories.append((f"{factor:g} times", memory(server)))
    head = ("times", "sent", "goodput, 1/s", "of capacity", "first token, s", "whole, s", "p99", "refused")
    print(table((*head, "ms to refuse", "p99", "left", "failed"), rows), flush=True)
    names = sorted({name for _, found in memories for name in found})
    print("\nMemory, MiB\n")
    print(table(("", *names), [(w, *(f"{found.get(n, 0):.0f}" for n in names)) for w, found in memories]), flush=True)


def attacks(server: OrcaServer, counts: list[int], seconds: float) -> None:
    rows = []
    for kind, count in zip(KINDS, counts, strict=True):
        if not count:
            continue
        stop = multiprocessing.Event()
        out: multiprocessing.Queue[list[float]] = multiprocessing.Queue()
        watcher = multiprocessing.Process(target=probe, args=(server.url, stop, out))
        watcher.start()
        outcome = asyncio.run(attack(kind, server.url, server.port, count, seconds))
        held = memory(server)
        stop.set()
        times = out.get()
        watcher.join()
        missed = sum(t == float("inf") for t in times)
        told = f"{held.get('gateway', 0):.0f}", f"{held.get('haproxy', 0):.0f}"
        rows.append((kind, count, outcome, len(times), missed, quantile(times, 0.5), quantile(times, 0.99), *told))
    head = ("connections", "count", "what became of them", "/health asked", "no answer", "s", "p99")
    print("\n" + table((*head, "gateways, MiB", "HAProxy, MiB"), rows), flush=True)


def main() -> None:
    own, _, flags = " ".join(sys.argv[1:]).partition("-- ")
    parser = argparse.ArgumentParser(prog="python -m load.overload")
    parser.add_argument("--times", default="1,2,5,10", help="multiples of the capacity")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each part")
    parser.add_argument("--counts", default="5000,2000,4500,50", help=f"connections: {', '.join(KINDS)}")
    given = parser.parse_args(own.split())
    with tempfile.TemporaryDirectory() as folder, OrcaServer(Path(folder), *flags.split()) as server:
        if given.times:
            overload(server, [float(factor) for factor in given.times.split(",")], given.seconds)
        if given.counts:
            attacks(server, [int(count) for count in given.counts.split(",")], given.seconds)


if __name__ == "__main__":
    main()
