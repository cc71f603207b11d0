"""`python -m load.bench.overload [--times 1,2,5,10] [--seconds 40] [-- FLAGS of orca serve]`: too much load.

First an open loop of clients that leave after `PATIENCE` seconds, at multiples of the measured capacity. Then
connections that wait, idle, send half a request or do not read. Another process requests `/health` all the time.
Prints Markdown tables, also of the memory of all processes.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from load.bench.vitals import health, memory, print_memory, probed, quantile, settled
from load.report import table
from load.server import OrcaServer
from services.client.streaming import open_session
from services.progress import Bar

PATIENCE = 20.0  # seconds after which a client leaves
TOKENS = 64
KINDS = ("waiting streams", "idle", "half-open", "slow readers")


@dataclass(slots=True)
class Results:
    """The results of one open loop; times in seconds. `ends`: when the whole answers ended, on the monotonic clock."""

    sent: int = 0
    ends: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)  # of whole answers
    whole: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    left: int = 0
    failed: int = 0


async def one(session: aiohttp.ClientSession, number: int, results: Results, patience: float = PATIENCE) -> None:
    """A client: sends a request and reads the stream to its end, or leaves after `patience` seconds."""
    body = {"prompt": f"Story {number}:", "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
    results.sent += 1
    began = time.monotonic()
    try:
        async with asyncio.timeout(patience), session.post("/v1/completions", json=body) as response:
            if response.status in (429, 503):
                await response.read()
                results.refused.append(time.monotonic() - began)
                return
            first, tail = 0.0, b""
            async for part in response.content.iter_any():
                first = first or (time.monotonic() - began if b"data:" in part else 0.0)
                tail = (tail + part)[-40:]
            if b"[DONE]" in tail:
                results.first.append(first)
                results.ends.append(time.monotonic())
                results.whole.append(results.ends[-1] - began)
            else:
                results.failed += 1
    except TimeoutError:
        results.left += 1
    except (aiohttp.ClientError, OSError):
        results.failed += 1


async def capacity(url: str, clients: int, seconds: float) -> float:
    """Answers per second of `clients` clients that keep the batch full; the first third of the time is not counted."""
    results, began = Results(), time.monotonic()

    async def ask_on(session: aiohttp.ClientSession, client: int) -> None:
        while time.monotonic() - began < seconds:
            await one(session, client, results, 10 * PATIENCE)

    async with open_session(url) as session:
        await asyncio.gather(*(ask_on(session, client) for client in range(clients)))
    return sum(seconds / 3 < end - began < seconds for end in results.ends) / (seconds * 2 / 3)


async def open_loop(url: str, rate: float, seconds: float) -> tuple[Results, float]:
    """Clients that arrive at `rate` per second, whatever happens to earlier ones; at the end all leave.

    Returns their results, and the answers per second in the second half of the time.
    """
    results, began = Results(), time.monotonic()
    tasks = []
    async with open_session(url) as session:
        for number in range(int(rate * seconds)):
            if (wait := began + number / rate - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            elif number % 16 == 0:
                await asyncio.sleep(0)  # this process is late: let the requests that were sent proceed
            tasks.append(asyncio.create_task(one(session, number, results)))
        half = sum(end - began > seconds / 2 for end in results.ends) / (time.monotonic() - began - seconds / 2)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return results, half


async def attack(kind: str, url: str, port: int, count: int, seconds: float) -> str:
    """Hold `count` connections of this kind; returns what became of them in words."""
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


def overload(server: OrcaServer, times: list[float], seconds: float) -> None:
    memories = [("before", memory(server))]
    most = asyncio.run(capacity(server.url, 32, max(seconds / 2, 15)))
    print(f"\nCapacity {most:.1f} requests/s of {TOKENS} tokens; clients leave after {PATIENCE:.0f} s.\n", flush=True)
    rows = []
    for factor in Bar(times, desc="overload", unit="loads"):
        with probed(server.url) as looks:
            began = time.monotonic()
            results, half = asyncio.run(open_loop(server.url, factor * most, seconds))
            goodput = len(results.whole) / (time.monotonic() - began)
        memories.append((f"{factor:g} times", memory(server)))
        gone = settled(server)
        row = [results.sent, f"{goodput:.1f}", f"{half:.1f}", f"{goodput / most:.0%}"]
        row += [quantile(results.first, 0.5), quantile(results.whole, 0.5), quantile(results.whole, 0.99)]
        row += [len(results.refused), *(quantile(results.refused, q, 1e-3, 0) for q in (0.5, 0.99))]
        rows.append((f"{factor:g}", *row, results.left, results.failed, gone, *health(looks)))
        Bar.write(str(rows[-1]), file=sys.stderr)
    memories.append(("after", memory(server)))
    head = ("times", "sent", "goodput, 1/s", "second half", "of capacity", "first token, s", "whole, s", "p99")
    print(
        table(
            (*head, "refused", "ms to refuse", "p99", "left", "failed", "s until gone", "/health", "slowest, s"), rows
        ),
        flush=True,
    )
    print_memory(memories)


async def watched(kind: str, server: OrcaServer, count: int, seconds: float) -> tuple[str, dict[str, float]]:
    """What became of the connections, and the memory near their end."""
    task = asyncio.create_task(attack(kind, server.url, server.port, count, seconds))
    await asyncio.sleep(0.8 * seconds)
    held = await asyncio.to_thread(memory, server)
    return await task, held


def attacks(server: OrcaServer, counts: list[int], seconds: float) -> None:
    rows, memories = [], [("before", memory(server))]
    for kind, count in Bar([of for of in zip(KINDS, counts, strict=True) if of[1]], desc="connections", unit="kinds"):
        with probed(server.url) as looks:
            outcome, held = asyncio.run(watched(kind, server, count, seconds))
        memories.append((kind, held))
        rows.append((kind, count, outcome, settled(server), *health(looks), quantile(looks, 0.5)))
        Bar.write(str(rows[-1]), file=sys.stderr)
    memories.append(("after", memory(server)))
    head = ("connections", "count", "what became of them", "s until gone", "/health", "slowest, s", "median")
    print("\n" + table(head, rows), flush=True)
    print_memory(memories)


def main() -> None:
    own, _, flags = " ".join(sys.argv[1:]).partition("-- ")
    parser = argparse.ArgumentParser(prog="python -m load.bench.overload")
    parser.add_argument("--times", default="1,2,5,10", help="multiples of the capacity")
    parser.add_argument("--seconds", type=float, default=40.0, help="of each part")
    parser.add_argument("--counts", default="5000,2000,4500,50", help=f"connections: {', '.join(KINDS)}")
    given = parser.parse_args(own.split())
    with tempfile.TemporaryDirectory() as folder, OrcaServer(Path(folder), *flags.split()) as server:
        if given.times:
            overload(server, [float(factor) for factor in given.times.split(",")], given.seconds)
        if given.counts:
            attacks(server, [int(count) for count in given.counts.split(",")], given.seconds)


if __name__ == "__main__":
    main()
